"""Arithmetic that PyTorch does not count: a fused kernel counts what its plain products would."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.flop_counter import FlopCounterMode

from regard.core import convolution, linear
from regard.core.convolution import Columns, Taps
from regard.core.head import Head
from regard.core.linear import Linear
from regard.training.flops import FORMULAS

CELLS = {nn.RNN: nn.RNNCell, nn.GRU: nn.GRUCell, nn.LSTM: nn.LSTMCell}
LENGTHS = [5, 3, 2]
WIDTH, DIM = 6, 8

CUDNN, CUDNN_BACKWARD = torch.ops.aten._cudnn_rnn, torch.ops.aten._cudnn_rnn_backward


def counting() -> FlopCounterMode:
    return FlopCounterMode(display=False, custom_mapping=FORMULAS)


def both_ways(run: Any, *given: Any) -> tuple[int, int]:
    """What forward and backward count."""
    with counting() as forward:
        y = run(*given)
    with counting() as backward:
        torch.autograd.backward(y.sum())
    return forward.get_total_flops(), backward.get_total_flops()


def start(body: nn.RNNBase, *shape: int) -> Any:
    """A state that wants its gradient, as all states but the first do."""
    h = torch.zeros(*shape, DIM, requires_grad=True)
    return (h, h) if isinstance(body, nn.LSTM) else h


def fused(body: nn.RNNBase, x: Tensor, lengths: list[int] | None) -> Tensor:
    ways = body.num_layers * (1 + body.bidirectional)
    if lengths is None:
        return body(x, start(body, ways, len(x)))[0]
    packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first=True)
    return body(packed, start(body, ways, len(x)))[0].data


def by_cells(body: nn.RNNBase, x: Tensor, lengths: list[int] | None) -> Tensor:
    """Sentence by sentence, word by word: padding cannot come in."""
    whole = lengths or [x.shape[1]] * len(x)
    return torch.cat([sentence(body, row[:length]) for row, length in zip(x, whole, strict=True)])


def sentence(body: nn.RNNBase, x: Tensor) -> Tensor:
    for _ in range(body.num_layers):
        x = torch.cat([direction(body, words) for words in (x, x.flip(0))[: 1 + body.bidirectional]], -1)
    return x


def direction(body: nn.RNNBase, words: Tensor) -> Tensor:
    cell, state, states = CELLS[type(body)](words.shape[-1], DIM), start(body, 1), []
    for word in words:
        state = cell(word[None], state)
        states.append(state[0] if isinstance(body, nn.LSTM) else state)
    return torch.cat(states)


def sentences() -> Tensor:
    return torch.randn(len(LENGTHS), max(LENGTHS), WIDTH, requires_grad=True)


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["padded", "packed"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["forward", "both-ways"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", CELLS)
def test_a_fused_layer_counts_what_its_cells_count(
    kind: Any, layers: int, bidirectional: bool, lengths: list[int] | None
) -> None:
    body = kind(WIDTH, DIM, layers, batch_first=True, bidirectional=bidirectional)
    assert both_ways(fused, body, sentences(), lengths) == both_ways(by_cells, body, sentences(), lengths)


def test_an_lstm_is_four_gates_a_gru_three_an_rnn_one() -> None:
    rnn, gru, lstm = (both_ways(fused, kind(WIDTH, DIM, batch_first=True), sentences(), None) for kind in CELLS)
    words = len(LENGTHS) * max(LENGTHS)
    assert rnn == (2 * words * DIM * (WIDTH + DIM), 4 * words * DIM * (WIDTH + DIM))
    assert gru == tuple(3 * flops for flops in rnn)
    assert lstm == tuple(4 * flops for flops in rnn)


# ---- cuDNN, by shapes alone


@pytest.mark.parametrize("bias", [False, True], ids=["bare", "bias"])
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["padded", "packed"])
@pytest.mark.parametrize("kind", CELLS)
def test_cudnn_counts_what_the_cells_count(kind: Any, lengths: list[int] | None, bias: bool) -> None:
    body = kind(WIDTH, DIM, 2, batch_first=True, bidirectional=True, bias=bias)
    x = (sum(lengths), WIDTH) if lengths else (len(LENGTHS), max(LENGTHS), WIDTH)
    as_held = [tuple(p.shape) for p in body.parameters()]
    flat = [(p.numel(), 1) for p in body.parameters()]  # how autocast hands them over, biases as well
    forward, backward = both_ways(by_cells, body, sentences(), lengths)
    for weights in (as_held, flat):
        given: tuple[Any, ...] = (x, weights, 4 if bias else 2)
        assert FORMULAS[CUDNN](*given) == forward
        assert FORMULAS[CUDNN_BACKWARD](*given, None, [True, True, True, True]) == backward
        assert FORMULAS[CUDNN_BACKWARD](*given, None, [True, True, True, False]) == backward / 2


def test_cudnn_is_called_as_the_formulas_expect() -> None:
    for operator in (CUDNN, CUDNN_BACKWARD):
        names = [argument.name for argument in operator.default._schema.arguments]
        assert names[:3] == ["input", "weight", "weight_stride0"]
    assert names[-1] == "output_mask"


@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (3, 2), (4, 3)])
def test_a_causal_convolution_counts_its_products(kernel: int, dilation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of x, of the gradient of x and of that of the weight as much each; what lies before the beginning costs nothing
    where each tap is a product of its own, and is multiplied where all are one."""
    rows, steps = 3, 8
    reach, numbers = (kernel - 1) * dilation, partial(torch.randn, requires_grad=True)
    given = numbers(WIDTH, steps * rows), numbers(DIM, kernel, WIDTH), numbers(DIM), dilation * rows, 0
    once = 2 * rows * sum(max(0, steps - j * dilation) for j in range(kernel)) * WIDTH * DIM
    whole = 2 * rows * steps * kernel * WIDTH * DIM
    assert both_ways(Taps.apply, *given) == (once, 2 * whole)
    monkeypatch.setattr(convolution, "NEAR", 0)
    assert both_ways(Taps.apply, *given) == (once, 2 * once)
    assert both_ways(Columns.apply, *given) == (whole, 2 * whole)
    padded = nn.functional.pad(numbers(rows, WIDTH, steps), (reach, 0))
    convolve = partial(nn.functional.conv1d, dilation=dilation)
    assert both_ways(convolve, padded, numbers(DIM, WIDTH, kernel))[0] == whole


def test_large_products_count_as_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    for worth in (0, 2**60):
        monkeypatch.setattr(linear, "WORTH", worth)
        counted.append(both_ways(Linear(6, 9), torch.randn(2, 5, 6, requires_grad=True)))
    assert counted[0] == counted[1] == (2 * 10 * 6 * 9, 2 * 2 * 10 * 6 * 9)


def test_a_head_counts_its_three_products() -> None:
    head, hidden = Head(6, 11), torch.randn(2, 5, 6, requires_grad=True)
    with counting() as counter:
        head(hidden, torch.zeros(2, 5, dtype=torch.long))
    assert counter.get_total_flops() == 3 * 2 * 10 * 6 * 11
