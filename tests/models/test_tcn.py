"""The TCN against the authors' block as they describe it, its receptive field to the step, in pieces, and its sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from regard.core.dropout import dropout
from regard.core.linear import pack
from regard.core.state import State
from regard.errors import ConfigError
from regard.laws import LAWS
from regard.models import build, schema
from regard.models.tcn import SIZES, STD, TCN, Config, Level

VOCAB, INPUTS, DIM = 13, 3, 5
# Seven tokens a row: documents of 3 + 4, one of 7, and 1 + 1 + 5.
DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [5, 5, 5, 5, 5, 5, 5], [2, 0, 1, 1, 1, 1, 1]])


def make(**settings: Any) -> TCN:
    """Of numbers, in float64, without dropout, with weights that are large enough to be seen through every relu."""
    torch.manual_seed(0)
    small = {"dim": DIM, "embedding": DIM, "levels": 3, "kernel": 2, "dropout": 0.0, "embedding_dropout": 0.0}
    reads = {} if "vocab" in settings else {"inputs": INPUTS, "labels": 2}
    model = TCN(Config(**{**small, **reads, **settings}))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model.double().eval()


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def numbers(steps: int, rows: int = 3) -> Tensor:
    return torch.randn(rows, steps, INPUTS, dtype=torch.float64)


def tokens(steps: int = 7, rows: int = 3) -> Tensor:
    return torch.randint(4, VOCAB, (rows, steps))


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


# ------------------------------------------------------------------ the authors' block, from its description


class Padded(nn.Module):
    """A convolution that is padded on both sides; what the right one gives is cut off."""

    def __init__(self, narrow: int, wide: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.conv = weight_norm(nn.Conv1d(narrow, wide, kernel, padding=(kernel - 1) * dilation, dilation=dilation))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)[:, :, : x.shape[2]].contiguous()


class Residual(nn.Module):
    def __init__(self, narrow: int, wide: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.first = Padded(narrow, wide, kernel, dilation)
        self.second = Padded(wide, wide, kernel, dilation)
        self.beside = nn.Conv1d(narrow, wide, 1) if narrow != wide else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(F.relu(self.second(F.relu(self.first(x)))) + self.beside(x))


@torch.no_grad()
def authors(model: TCN) -> nn.Sequential:
    """The same network with the same weights, on (B, C, T)."""
    peers = []
    for i, level in enumerate(model.levels):
        assert isinstance(level, Level)
        wide, kernel, narrow = level.first.v.shape
        peer = Residual(narrow, wide, kernel, 2**i).double()
        for ours, theirs in ((level.first, peer.first), (level.second, peer.second)):
            held = theirs.conv.parametrizations.weight
            held.original0.copy_(ours.g[:, None, None])
            held.original1.copy_(ours.v.transpose(1, 2))
            theirs.conv.bias.copy_(ours.bias)
        if narrow != wide:
            peer.beside.weight.copy_(level.skip.weight[..., None])
            peer.beside.bias.copy_(level.skip.bias)
        peers.append(peer)
    return nn.Sequential(*peers)


@pytest.mark.parametrize(("kernel", "levels"), [(2, 3), (3, 1), (4, 4), (1, 2)])
def test_it_is_the_authors_network(kernel: int, levels: int) -> None:
    model, x = make(kernel=kernel, levels=levels), numbers(20)
    peer = authors(model)
    hidden, _ = model(None, None, x)
    theirs = peer(x.transpose(1, 2)).transpose(1, 2)
    close(hidden, theirs)
    towards = torch.randn_like(hidden)
    (hidden * towards).sum().backward()
    (theirs * towards).sum().backward()
    level, other = model.levels[0], peer[0].first.conv
    close(level.first.v.grad.transpose(1, 2), other.parametrizations.weight.original1.grad)
    close(level.first.g.grad, other.parametrizations.weight.original0.grad.flatten())
    close(level.skip.weight.grad, peer[0].beside.weight.grad[..., 0])


@pytest.mark.parametrize("together", ["element", "channel"])
def test_dropout_is_after_each_relu_of_a_convolution(together: str) -> None:
    """With the same coins, what is said in training is the formula with `drop` where it stands there."""
    model = make(dropout=0.5, dropout_of=together, levels=1, dim=16, inputs=16).train()
    level, x = model.levels[0], torch.randn(3, 9, 16).double()

    def drop(y: Tensor) -> Tensor:
        return dropout(y, 0.5) if together == "element" else y * dropout(y.new_ones(y.shape[0], 1, y.shape[2]), 0.5)

    torch.manual_seed(1)
    said, _ = model(None, None, x)
    torch.manual_seed(1)
    x = x.permute(2, 1, 0)
    y = drop(F.relu(level.first(x)[0]))
    z = drop(F.relu(level.second(y)[0]))
    assert y.any()
    assert z.any()
    close(said, F.relu(z + x).permute(2, 1, 0))


@pytest.mark.parametrize("together", ["element", "channel"])
def test_a_conclusion_leaves_out_as_much(together: str) -> None:
    """Of one step nothing is thinned out, so that the coins are the same."""
    model, x = make(dropout=0.5, dropout_of=together, dim=16).train(), numbers(1, rows=8)
    said = []
    for read in (lambda: model(None, None, x)[0][:, -1], lambda: model.conclude(x), lambda: model.eval().conclude(x)):
        torch.manual_seed(1)
        said.append(read())
    close(said[0], said[1])
    assert not torch.allclose(said[1], said[2])


@torch.no_grad()
def test_word_vectors_are_left_out_too() -> None:
    """With as good as nothing left of them, all texts sound alike, but to a model that no longer learns."""
    model, (one, other) = make(vocab=VOCAB, labels=2, embedding_dropout=0.999999).train(), tokens(rows=2)[:, None]
    for learning in (True, False):
        model.train(learning)
        assert torch.equal(model(None, None, one)[0], model(None, None, other)[0]) == learning
        assert torch.equal(model.conclude(one), model.conclude(other)) == learning


def test_a_channel_is_left_out_at_all_steps_or_at_none() -> None:
    torch.manual_seed(0)
    level = make(dropout=0.5, dropout_of="channel").levels[0].train()
    y = level._activate(torch.ones(40, 30, 20).double())
    assert set(y.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(y.amin(1), y.amax(1))
    assert 0.4 < (y == 0).double().mean() < 0.6
    scattered = make(dropout=0.5).levels[0].train()._activate(torch.ones(40, 30, 20).double())
    assert not torch.equal(scattered.amin(1), scattered.amax(1))


# ------------------------------------------------------------------ how far it hears


@pytest.mark.parametrize(("kernel", "levels"), [(1, 3), (2, 1), (2, 3), (3, 2), (4, 2)])
def test_it_hears_exactly_its_receptive_field(kernel: int, levels: int) -> None:
    """By the support of the gradient: the farthest step within moves what is said, the next farther one does not."""
    model = make(kernel=kernel, levels=levels, dim=16)
    field = model.receptive_field
    assert field == 1 + 2 * (kernel - 1) * (2**levels - 1)
    x = numbers(field + 5, rows=8).requires_grad_()
    hidden, _ = model(None, None, x)
    for t in (field - 1, field + 1, field + 2):
        (moved,) = torch.autograd.grad(hidden[:, t].sum(), x, retain_graph=True)
        heard = moved.abs().sum((0, 2)).nonzero().flatten().tolist()
        assert heard == list(range(t - field + 1, t + 1))


def test_the_receptive_field_of_the_published_sizes() -> None:
    fields = {name: Config(**{"size": name}).receptive_field for name in SIZES}
    assert fields == {
        "adding": 3571, "copy": 3571, "mnist": 3061, "jsb": 13, "nottingham": 151, "words": 61, "characters": 29,
        "text8": 63,
    }  # fmt: skip


@torch.no_grad()
def test_a_kernel_of_one_hears_the_present_alone() -> None:
    model, x = make(kernel=1), numbers(9)
    order = torch.randperm(9)
    close(model(None, None, x[:, order])[0], model(None, None, x)[0][:, order])


# ------------------------------------------------------------------ reading on


@pytest.mark.parametrize("pieces", [[1] * 23, [2, 1, 15, 5], [22, 1]])
@pytest.mark.parametrize("kernel", [1, 2, 4])
@torch.no_grad()
def test_reading_in_uneven_pieces_is_reading_at_once(kernel: int, pieces: list[int]) -> None:
    model, x = make(kernel=kernel), numbers(23)
    state, said = model.start(), []
    for piece in x.split(pieces, 1):
        hidden, state = model.states(piece, state)
        said.append(hidden)
    close(torch.cat(said, 1), model(None, None, x)[0])


@torch.no_grad()
def test_what_it_remembers_does_not_grow() -> None:
    model = make(kernel=3, levels=2)
    _, state = model.states(numbers(100), model.start())
    assert [t.shape[-1] for t in state.past] == [2, 2, 4, 4]
    assert sum(t.shape[-1] for t in state.past) == model.receptive_field - 1


@torch.no_grad()
def test_packed_it_says_the_same() -> None:
    model, x = make(), numbers(9)
    before, _ = model(None, None, x)
    close(pack(model)(None, None, x)[0], before)


def test_what_it_is_exempt_from_are_laws_of_attention() -> None:
    assert set(TCN.exempt) < set(LAWS)
    assert not any(type(part).__name__ == "Attention" for part in make().modules())


# ------------------------------------------------------------------ packed documents


@torch.no_grad()
def test_a_packed_document_is_read_as_if_it_stood_alone() -> None:
    model, words = make(vocab=VOCAB, levels=2), tokens()
    packed, state = model(None, None, words, documents=DOCUMENTS)
    for row in range(3):
        _, lengths = DOCUMENTS[row].unique_consecutive(return_counts=True)
        read = [model(None, None, piece[None]) for piece in words[row].split(lengths.tolist())]
        close(packed[row], torch.cat([hidden for hidden, _ in read], 1)[0])
    then = tokens(2)
    goes_on = model.states(then, State(past=state.past))[0]
    last = [words[row, DOCUMENTS[row] == DOCUMENTS[row, -1]] for row in range(3)]
    for row in range(3):
        alone, _ = model(None, None, torch.cat([last[row], then[row]])[None])
        close(goes_on[row], alone[0, -2:])
    assert not torch.allclose(packed, model(None, None, words)[0])


@torch.no_grad()
def test_packed_documents_can_be_read_in_pieces_too() -> None:
    """A document that a piece cuts in two goes on in the next."""
    model, words = make(vocab=VOCAB), tokens()
    packed, _ = model(None, None, words, documents=DOCUMENTS)
    told = torch.ones_like(words, dtype=torch.bool)
    close(model(None, None, words, told, documents=DOCUMENTS)[0], packed)


# ------------------------------------------------------------------ summaries and labels


@pytest.mark.parametrize(("kernel", "levels"), [(1, 2), (2, 1), (2, 3), (3, 4)])
@pytest.mark.parametrize("steps", [1, 2, 7, 16, 33])
def test_a_conclusion_is_the_summary_of_all_steps(kernel: int, levels: int, steps: int) -> None:
    model, x = make(kernel=kernel, levels=levels), numbers(steps)
    hidden, _ = model(None, None, x)
    last = torch.tensor([steps - 1, 0, steps // 2])
    close(model.conclude(x), hidden[:, -1])
    close(model.conclude(x, last), model.summary(hidden, last))
    ours, theirs = (
        torch.autograd.grad(model.labels(y).square().sum(), list(model.parameters()))
        for y in (model.conclude(x, last), model.summary(hidden, last))
    )
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_of_tokens_there_is_a_conclusion_too() -> None:
    model, words = make(vocab=VOCAB, labels=4), tokens(11)
    hidden, _ = model(None, None, words)
    last = torch.tensor([10, 2, 0])
    close(model.conclude(words, last), model.summary(hidden, last))
    assert model.labels(model.conclude(words, last)).shape == (3, 4)


# ------------------------------------------------------------------ its beginning


def test_its_beginning_takes_effect() -> None:
    """The authors' normal numbers reach the matrices without weight norm alone: the convolutions begin as PyTorch's."""
    torch.manual_seed(0)
    model = TCN(Config(**{"size": "characters", "vocab": 50, "labels": 60}))
    for name, part in model.named_modules():
        if hasattr(part, "reach"):
            fan = part.v[0].numel()
            assert part.weight.std().item() == pytest.approx((3 * fan) ** -0.5, rel=0.02), name
            assert part.weight.abs().max() <= 1.0001 * fan**-0.5, name
    for weight, std in ((model.words.weight, 0.058), (model.labels.weight, STD), (model.levels[0].skip.weight, STD)):
        assert weight.std().item() == pytest.approx(std, rel=0.05)
    assert not model.head.bias.any()
    x = torch.randn(100, 40, 100)
    first = model.levels[0].first
    said = first(x.permute(2, 1, 0))[0][:, 2:] - first.bias[:, None, None]
    assert said.std().item() == pytest.approx(3**-0.5, rel=0.05)  # fan · var(W) · var(x), of which STD would leave 0.17


# ------------------------------------------------------------------ sizes


PUBLISHED = {
    "adding": ({"inputs": 2, "labels": 1}, 70_369),
    "copy": ({"inputs": 1, "labels": 10}, 12_530),
    "mnist": ({"inputs": 1, "labels": 10}, 66_910),
    "jsb": ({"inputs": 88, "labels": 88}, 269_938),
    "nottingham": ({"inputs": 88, "labels": 88}, 1_053_238),
    "words": ({"vocab": 10_000}, 14_659_600),
    "characters": ({"vocab": 50}, 2_222_100),
    "text8": ({"vocab": 27}, 4_129_667),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_has_the_parameters_of_the_authors(name: str) -> None:
    data, wanted = PUBLISHED[name]
    with torch.device("meta"):
        assert size(TCN(Config(**{"size": name, **data}))) == wanted


@pytest.mark.parametrize("name", SIZES)
def test_every_size_can_be_built(name: str) -> None:
    with torch.device("meta"):
        assert isinstance(build("tcn", schema("tcn")(**{"size": name, "vocab": 10_000})), TCN)


def test_an_untied_head_is_as_wide_as_the_last_level() -> None:
    model = TCN(Config(vocab=VOCAB, dim=6, embedding=4, tied=False))
    assert model.head.weight.shape == (VOCAB, 6)
    assert TCN(Config(vocab=VOCAB, dim=6, embedding=4)).head.weight.shape == (VOCAB, 4)


@pytest.mark.parametrize("system", ["tcn", "recurrent", "gpt"])
def test_numbers_or_tokens_are_read_and_not_both(system: str) -> None:
    with pytest.raises(ConfigError, match=r"^inputs: it reads 2 numbers a step or 50 tokens, not both; leave one out$"):
        schema(system)(**{"inputs": 2, "vocab": 50})
    with pytest.raises(ConfigError, match=f"^model.labels: missing; a {system} cannot be built without it$"):
        build(system, schema(system)(**{"inputs": 2}))
    with pytest.raises(ConfigError, match=f"^model.vocab: missing; a {system} cannot be built without it$"):
        build(system, schema(system)())


def test_a_source_is_answered_with_where_to_write_it() -> None:
    sentence = "^a language model has no source apart; write it before the target, as one sequence$"
    with pytest.raises(ValueError, match=sentence):
        make(vocab=VOCAB)(tokens(), None, tokens())


@pytest.mark.parametrize("reads", [{"inputs": 2, "labels": 1}, {"vocab": VOCAB}])
@pytest.mark.parametrize("system", ["tcn", "recurrent", "gpt"])
def test_what_is_neither_tokens_nor_its_numbers_is_refused_in_one_sentence(system: str, reads: dict[str, int]) -> None:
    model = build(system, schema(system)(**reads))
    for x in (torch.zeros(1, 4, 3), torch.zeros(1, 4), torch.zeros(1, 4, 2, dtype=torch.long), torch.zeros(4)):
        with pytest.raises(ValueError, match=r"of shape \(.*\) came, but .* of shape \(batch, steps.* are wanted$"):
            model(None, None, x)


def test_a_model_of_no_words_is_refused() -> None:
    with pytest.raises(ConfigError, match="a head for 0 words came"):
        TCN(Config())


@pytest.mark.parametrize(("rows", "steps"), [(0, 4), (3, 0)])
def test_nothing_is_answered_with_what_is_wanted(rows: int, steps: int) -> None:
    sentence = f"^{rows} rows of {steps} steps came, and nothing to read; give one of each or more$"
    model, x = make(), numbers(steps, rows)
    for read in (lambda: model(None, None, x), lambda: model.conclude(x)):
        with pytest.raises(ValueError, match=sentence):
            read()
    with pytest.raises(ValueError, match=sentence):
        make(vocab=VOCAB)(None, None, tokens(steps, rows))
