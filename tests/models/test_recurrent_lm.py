"""The recurrent language model against PyTorch's cells, a document at a time, and in pieces."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.core.linear import pack
from regard.laws import LAWS
from regard.models import build, schema
from regard.models.recurrent import SIZES, Config, LanguageModel

VOCAB, DIM, EMBEDDING = 13, 8, 6
CELLS: dict[str, Any] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
every_cell = pytest.mark.parametrize("cell", CELLS)
# Seven tokens a row: documents of 3 + 4, one of 7, and 1 + 1 + 5.
DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [5, 5, 5, 5, 5, 5, 5], [2, 0, 1, 1, 1, 1, 1]])


def make(**settings: Any) -> LanguageModel:
    """In float64, without dropout, with biases that are not zero."""
    torch.manual_seed(0)
    model = LanguageModel(Config(**{"vocab": VOCAB, "dim": DIM, "embedding": EMBEDDING, "dropout": 0.0, **settings}))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model.double().eval()


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def tokens(rows: int = 3, length: int = 7) -> Tensor:
    return torch.randint(4, VOCAB, (rows, length))


def alone(row: Tensor, documents: Tensor) -> list[Tensor]:
    """The documents of one row, in their order."""
    _, lengths = documents.unique_consecutive(return_counts=True)
    return [piece[None] for piece in row.split(lengths.tolist())]


# ------------------------------------------------------------------ the formula


@every_cell
@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_logits_are_those_of_pytorchs_cells_between_two_tables(cell: str, tied: bool) -> None:
    model, words = make(cell=cell, tied=tied), tokens()
    peer = CELLS[cell](EMBEDDING, DIM, 2, batch_first=True).double()
    peer.load_state_dict(model.rnn.body.state_dict())
    y, _ = peer(model.words.weight[words])
    if tied:
        y = y @ model.narrow.weight.T
    table = model.words.weight if tied else model.head.weight
    close(model.head.logits(model(None, None, words)[0]), y @ table.T + model.head.bias)


def test_a_tied_head_of_equal_width_needs_no_matrix_between() -> None:
    held = dict(make(embedding=DIM).named_parameters())
    assert [name for name in held if not name.startswith("rnn.")] == ["words.weight", "head.bias"]


# ------------------------------------------------------------------ reading on


@every_cell
@torch.no_grad()
def test_reading_in_uneven_pieces_is_reading_at_once(cell: str) -> None:
    model, words = make(cell=cell), tokens(length=9)
    state, pieces = model.start(None, None, rows=3), []
    for piece in words.split([2, 1, 5, 1], 1):
        hidden, state = model.states(piece, state)
        pieces.append(hidden)
    close(torch.cat(pieces, 1), model(None, None, words)[0])


@torch.no_grad()
def test_packed_it_says_the_same() -> None:
    model, words = make(), tokens()
    before, _ = model(None, None, words)
    close(pack(model)(None, None, words)[0], before)


@every_cell
def test_a_token_moves_with_those_before_it_and_not_with_those_after(cell: str) -> None:
    model, words = make(cell=cell), tokens(rows=1)
    vectors = model.words(words).detach().requires_grad_()
    model.words.register_forward_hook(lambda part, given, result: vectors)
    hidden, _ = model(None, None, words)
    for t in range(words.shape[1]):
        (moved,) = torch.autograd.grad(hidden[0, t].sum(), vectors, retain_graph=True)
        assert moved[0, : t + 1].abs().amax(-1).min() > 0
        assert not moved[0, t + 1 :].any()


def test_what_it_is_exempt_from_are_laws_of_attention() -> None:
    assert set(LanguageModel.exempt) < set(LAWS)
    assert not any(type(part).__name__ == "Attention" for part in make().modules())


# ------------------------------------------------------------------ packed documents


@every_cell
@torch.no_grad()
def test_a_packed_document_is_read_as_if_it_stood_alone(cell: str) -> None:
    model, words = make(cell=cell), tokens()
    packed, state = model(None, None, words, documents=DOCUMENTS)
    for row in range(3):
        read = [model(None, None, piece) for piece in alone(words[row], DOCUMENTS[row])]
        close(packed[row : row + 1], torch.cat([hidden for hidden, _ in read], 1))
        for ours, last in zip(state.past, read[-1][1].past, strict=True):
            close(ours[row : row + 1], last)
    assert not torch.allclose(packed, model(None, None, words)[0])


@every_cell
@torch.no_grad()
def test_packed_documents_can_be_read_in_pieces_too(cell: str) -> None:
    """A document that a piece cuts in two goes on in the next."""
    model, words = make(cell=cell), tokens()
    packed, _ = model(None, None, words, documents=DOCUMENTS)
    told = torch.ones_like(words, dtype=torch.bool)
    close(model(None, None, words, told, documents=DOCUMENTS)[0], packed)


def test_packed_documents_have_the_gradients_of_each_alone() -> None:
    model, words = make(), tokens()
    towards = torch.randn(3, 7, EMBEDDING).double()
    (model(None, None, words, documents=DOCUMENTS)[0] * towards).sum().backward()
    packed = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for row in range(3):
        pieces = [model(None, None, piece)[0] for piece in alone(words[row], DOCUMENTS[row])]
        (torch.cat(pieces, 1)[0] * towards[row]).sum().backward()
    assert "rnn.body.weight_hh_l1" in packed
    for name, p in model.named_parameters():
        if name in packed:
            close(p.grad, packed[name])  # type: ignore[arg-type]


# ------------------------------------------------------------------ summaries and labels


@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_a_summary_knows_nothing_of_what_follows_it(tied: bool) -> None:
    model, words, last = make(labels=4, tied=tied), tokens(), torch.tensor([6, 2, 0])
    hidden, _ = model(None, None, words)
    for row, at in enumerate(last.tolist()):
        short, _ = model(None, None, words[row : row + 1, : at + 1])
        close(model.summary(hidden, last)[row], short[0, -1])
    assert model.labels(model.summary(hidden, last)).shape == (3, 4)


# ------------------------------------------------------------------ numbers


@every_cell
@torch.no_grad()
def test_of_numbers_its_states_are_those_of_pytorchs_cells(cell: str) -> None:
    model, x = make(cell=cell, vocab=None, inputs=3, labels=4), torch.randn(2, 9, 3).double()
    peer = CELLS[cell](3, DIM, 2, batch_first=True).double()
    peer.load_state_dict(model.rnn.body.state_dict())
    hidden, _ = model(None, None, x)
    close(hidden, peer(x)[0])
    close(model.labels(hidden), hidden @ model.labels[1].weight.T + model.labels[1].bias)
    close(model.conclude(x), hidden[:, -1])
    close(model.conclude(x, torch.tensor([8, 3])), model.summary(hidden, torch.tensor([8, 3])))


def test_of_numbers_a_state_is_dropped_once() -> None:
    model = make(vocab=None, inputs=3, labels=4, dropout=0.5).train()
    hidden, _ = model(None, None, torch.randn(50, 9, 3).double())
    assert 0.4 < (hidden == 0).double().mean() < 0.6
    assert torch.equal(model.labels(hidden), model.labels(hidden))


@pytest.mark.parametrize(
    ("size", "data", "wanted"),
    [
        ("adding", {"inputs": 2, "labels": 1}, 69_811),
        ("mnist", {"inputs": 1, "labels": 10}, 70_470),
        ("copy", {"inputs": 1, "labels": 10}, 11_110),
    ],
)
def test_it_has_the_parameters_of_the_lstms_beside_the_tcn(size: str, data: dict[str, int], wanted: int) -> None:
    with torch.device("meta"):
        model = LanguageModel(Config(**{"size": size, **data}))
    assert sum(p.numel() for p in model.parameters()) == wanted


@pytest.mark.parametrize("forget", [1.0, 10.0, -2.0])
def test_an_lstm_begins_with_the_forget_gate_that_was_asked_for(forget: float) -> None:
    """The two biases that PyTorch's cells have add up to it."""
    model = LanguageModel(Config(inputs=3, labels=1, dim=DIM, layers=2, forget=forget))
    for layer in range(2):
        both = sum(getattr(model.rnn.body, f"bias_{kind}_l{layer}") for kind in ("ih", "hh"))
        assert (both.view(4, DIM)[1] == forget).all()
        assert not both.view(4, DIM)[[0, 2, 3]].any()


# ------------------------------------------------------------------ settings


@pytest.mark.parametrize("size", SIZES)
def test_every_size_can_be_built(size: str) -> None:
    with torch.device("meta"):
        model = build("recurrent", schema("recurrent")(**{"size": size, "vocab": 10_000}))
    assert model.config.dim == SIZES[size]["dim"]


def test_the_large_size_has_the_parameters_of_its_paper() -> None:
    """Zaremba et al.: 66 million with 10,000 words. PyTorch's cells have a second bias for each gate."""
    with torch.device("meta"):
        model = LanguageModel(Config(**{"size": "large", "vocab": 10_000}))
    assert sum(p.numel() for p in model.parameters()) == 2 * 15_000_000 + 10_000 + 2 * (4 * 1500 * 3000 + 2 * 4 * 1500)


def test_a_source_is_answered_with_where_to_write_it() -> None:
    sentence = "^a language model has no source apart; write it before the target, as one sequence$"
    with pytest.raises(ValueError, match=sentence):
        make()(tokens(), None, tokens())
