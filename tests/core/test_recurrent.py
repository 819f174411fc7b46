from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.core.recurrent import CELLS, GATES, Past, Recurrent

WIDTH, DIM = 5, 4
TORCHS: dict[str, Any] = {"rnn": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}
REAL = torch.arange(7) < torch.tensor([[7], [3], [1], [5]])

every_cell = pytest.mark.parametrize("cell", CELLS)
every_shape = pytest.mark.parametrize(("layers", "bidirectional"), [(1, False), (3, False), (1, True), (2, True)])


def make(cell: str, layers: int = 1, bidirectional: bool = False) -> Recurrent:
    """In float64, with biases that are not zero."""
    net = Recurrent(cell, WIDTH, DIM, layers=layers, bidirectional=bidirectional).double()
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.6)
    return net


def some_past(net: Recurrent, rows: int) -> Past:
    return tuple(torch.randn_like(t) for t in net.empty(rows, torch.zeros((), dtype=torch.float64)))


def by_cells(net: Recurrent, x: Tensor, past: Past) -> tuple[Tensor, Past]:
    """The same layers as loops over PyTorch's own cells with copied weights."""
    ends = []
    for layer in range(net.layers):
        outputs = []
        for direction in range(net.directions):
            index = layer * net.directions + direction
            words = range(x.shape[1]) if direction == 0 else reversed(range(x.shape[1]))
            ys, end = run(copied(net, layer, direction, x.shape[-1]), x, words, tuple(t[:, index] for t in past))
            outputs.append(ys)
            ends.append(end)
        x = torch.cat(outputs, -1)
    return x, tuple(torch.stack(tensors, 1) for tensors in zip(*ends, strict=True))


def copied(net: Recurrent, layer: int, direction: int, width: int) -> nn.RNNCellBase:
    cell: nn.RNNCellBase = TORCHS[net.cell](width, DIM).double()
    suffix = f"_l{layer}" + "_reverse" * direction
    cell.load_state_dict({name: getattr(net.body, name + suffix) for name in cell.state_dict()})
    return cell


def run(cell: nn.RNNCellBase, x: Tensor, words: Any, past: Past) -> tuple[Tensor, Past]:
    ys = {}
    for t in words:
        after = cell(x[:, t], past if len(past) == 2 else past[0])
        past = after if isinstance(after, tuple) else (after,)
        ys[t] = past[0]
    return torch.stack([ys[t] for t in sorted(ys)], 1), past


def close(ours: tuple[Tensor, Past], theirs: tuple[Tensor, Past]) -> None:
    assert len(ours[1]) == len(theirs[1])
    for one, other in zip((ours[0], *ours[1]), (theirs[0], *theirs[1]), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@every_cell
@every_shape
def test_layers_are_loops_over_torchs_cells(cell: str, layers: int, bidirectional: bool) -> None:
    net, x = make(cell, layers, bidirectional), torch.randn(3, 6, WIDTH, dtype=torch.float64)
    past = some_past(net, 3)
    close(net(x, past), by_cells(net, x, past))
    close(net(x), by_cells(net, x, net.empty(3, x)))


@every_cell
@every_shape
def test_a_padded_row_is_what_it_is_alone(cell: str, layers: int, bidirectional: bool) -> None:
    net, x = make(cell, layers, bidirectional), torch.randn(4, 7, WIDTH, dtype=torch.float64)
    past = some_past(net, 4)
    y, after = net(x, past, REAL)
    assert (y[~REAL] == 0).all()
    for row, length in enumerate(REAL.sum(1).tolist()):
        alone = slice(row, row + 1)
        wanted = by_cells(net, x[alone, :length], tuple(t[alone] for t in past))
        close((y[alone, :length], tuple(t[alone] for t in after)), wanted)


@every_cell
@every_shape
def test_padding_changes_nothing(cell: str, layers: int, bidirectional: bool) -> None:
    """Bit for bit: whatever stands in it, and however much of it there is."""
    net, x = make(cell, layers, bidirectional), torch.randn(4, 7, WIDTH, dtype=torch.float64)
    y, after = net(x, None, REAL)
    wider = torch.cat([x.masked_fill(~REAL[..., None], torch.nan), torch.full((4, 3, WIDTH), torch.nan).double()], 1)
    y_wider, after_wider = net(wider, None, nn.functional.pad(REAL, (0, 3)))
    assert torch.equal(y_wider[:, :7], y)
    assert all(torch.equal(one, other) for one, other in zip(after, after_wider, strict=True))


@every_cell
@every_shape
@pytest.mark.parametrize("real", [None, REAL], ids=["whole", "padded"])
def test_reading_as_a_recording_does_is_reading(
    cell: str, layers: int, bidirectional: bool, real: Tensor | None
) -> None:
    """In value and in every gradient, whatever stands in the padding."""
    net, x = make(cell, layers, bidirectional), torch.randn(4, 7, WIDTH, dtype=torch.float64, requires_grad=True)
    past = some_past(net, 4)
    close(net.read(x, None, real), net(x, None, real))
    found, wanted = net.read(x, past, real), net(x, past, real)
    close(found, wanted)
    one, other = (
        torch.autograd.grad(y.sin().sum() + sum(t.cos().sum() for t in after), [x, *net.parameters()])
        for y, after in (found, wanted)
    )
    for ours, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    if real is not None:
        close(net.read(x.masked_fill(~real[..., None], torch.nan), past, real), wanted)


@every_cell
@pytest.mark.parametrize("layers", [1, 3])
def test_word_by_word_is_the_whole_sequence(cell: str, layers: int) -> None:
    """In value and in every gradient; the inputs may come in parts, of which the first brings the bias."""
    net, x = make(cell, layers), torch.randn(3, 6, WIDTH, dtype=torch.float64, requires_grad=True)
    past = some_past(net, 3)
    words, others = net.inputs(x[..., :2])
    gates = words + x[..., 2:] @ others
    hidden, ys = past, []
    for t in range(6):
        y, hidden = net.advance(gates[:, t], hidden)
        ys.append(y)
    stepped, whole = (torch.stack(ys, 1), hidden), net(x, past)
    close(stepped, whole)
    towards = torch.randn_like(stepped[0])
    one, other = (torch.autograd.grad((y * towards).sum(), [x, *net.parameters()]) for y, _ in (stepped, whole))
    for ours, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@every_cell
def test_gradients_are_those_of_small_differences(cell: str) -> None:
    net = make(cell, 2)
    past = tuple(t.requires_grad_() for t in some_past(net, 2))
    x = torch.randn(2, 3, WIDTH, dtype=torch.float64, requires_grad=True)
    real = torch.tensor([[True] * 3, [True, False, False]])

    def whole(x: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        y, after = net(x, past, real)
        return (y, *after)

    def one_word(gates: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        y, after = net.advance(gates, past)
        return (y, *after)

    gates = torch.randn(2, GATES[cell] * DIM, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(whole, (x, *past))
    assert torch.autograd.gradcheck(one_word, (gates, *past))


@every_cell
def test_the_state_feeds_back_through_orthogonal_matrices(cell: str) -> None:
    net = Recurrent(cell, WIDTH, DIM, layers=2, bidirectional=True)
    feedback = [p for name, p in net.named_parameters() if "weight_hh" in name]
    assert len(feedback) == 4
    for gate in torch.stack(feedback).flatten(0, 1).split(DIM):
        torch.testing.assert_close(gate @ gate.T, torch.eye(DIM))


def test_an_lstm_begins_by_remembering() -> None:
    """PyTorch keeps two biases, which are added: the forget gate's sum to one, all others to nothing."""
    net = Recurrent("lstm", WIDTH, DIM, layers=2, bidirectional=True)
    biases = dict(net.body.named_parameters())
    for suffix in ("l0", "l0_reverse", "l1", "l1_reverse"):
        i, f, g, o = (biases[f"bias_ih_{suffix}"] + biases[f"bias_hh_{suffix}"]).chunk(4)
        assert torch.equal(f, torch.ones(DIM))
        assert not torch.cat([i, g, o]).any()


@every_cell
def test_before_anything_is_read_the_state_is_zero(cell: str) -> None:
    net = Recurrent(cell, WIDTH, DIM, layers=3, bidirectional=True)
    empty = net.empty(2, torch.zeros(()))
    assert [t.shape for t in empty] == [(2, 6, DIM)] * (2 if cell == "lstm" else 1)
    assert not any(t.any() for t in empty)


@every_cell
def test_dropout_stands_between_layers_and_nowhere_else(cell: str) -> None:
    x = torch.randn(2, 3, WIDTH)

    def outputs(net: Recurrent) -> tuple[Tensor, Tensor]:
        return net(x)[0], net.advance(net.inputs(x[:, 0])[0], net.empty(2, x))[0]

    for layers, varies in ((1, False), (2, True)):
        net = Recurrent(cell, WIDTH, DIM, layers=layers, dropout=0.5)
        draws = [outputs(net) for _ in range(12)]
        for way in zip(*draws, strict=True):
            assert any(not torch.equal(one, other) for one, other in pairwise(way)) is varies
        torch.testing.assert_close(*(outputs(net.eval()) for _ in range(2)), rtol=0, atol=0)
