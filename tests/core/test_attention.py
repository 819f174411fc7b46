from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import regard
from regard.core.attention import Attention
from regard.core.mask import Mask
from regard.core.score import Dots, Place, Score
from regard.core.state import KV
from regard.errors import ConfigError

from .masks import Shape, by_hand, masks, shapes


def inputs(shape: Shape, dim: int = 12, memory_dim: int = 12) -> tuple[Tensor, Tensor]:
    return (
        torch.randn(shape.b, shape.q, dim, dtype=torch.float64, requires_grad=True),
        torch.randn(shape.b, shape.k, memory_dim, dtype=torch.float64, requires_grad=True),
    )


def explicit(attention: Attention, x: Tensor, memory: Tensor, seen: Tensor) -> Tensor:
    """The formula of the lectures, head by head, with no help from the core."""
    d = x.shape[-1] // attention.heads
    q, k, v = attention.score.query(x), attention.score.key(memory), attention.value(memory)
    contexts = []
    for h in range(attention.heads):
        own = slice(h * d, (h + 1) * d)
        table = q[..., own] @ k[..., own].transpose(1, 2) / math.sqrt(d)
        weights = table.masked_fill(~seen[:, h], -torch.inf).softmax(-1).nan_to_num(0.0)  # a row with nothing to see
        contexts.append(weights @ v[..., own])
    return attention.output(torch.cat(contexts, -1))


@settings(max_examples=100)
@given(st.data())
def test_fused_is_explicit_in_value_and_gradient(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    mask = data.draw(masks(shape))
    attention = Attention(4 * shape.h, heads=shape.h, memory_dim=6).double()
    x, memory = inputs(shape, 4 * shape.h, 6)
    kv = attention.project(memory)
    looked, read = attention.look(x, kv, mask), attention.read(attention.weigh(x, kv, mask), kv)
    torch.testing.assert_close(looked, read, rtol=0, atol=1e-12)
    torch.testing.assert_close(looked, explicit(attention, x, memory, by_hand(mask, shape)), rtol=0, atol=1e-12)
    towards = torch.randn_like(looked)
    wrt = [x, memory, *attention.parameters()]
    one, other = (torch.autograd.grad(y, wrt, towards, retain_graph=True) for y in (looked, read))
    for fused, plain in zip(one, other, strict=True):
        torch.testing.assert_close(fused, plain, rtol=0, atol=1e-12)


@given(st.data())
def test_weights_are_a_distribution_over_what_may_be_seen(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    mask = data.draw(masks(shape))
    attention = Attention(4 * shape.h, heads=shape.h).double()
    x, memory = inputs(shape, 4 * shape.h, 4 * shape.h)
    weights, seen = attention.weigh(x, attention.project(memory), mask), by_hand(mask, shape)
    assert (weights >= 0).all()
    assert (weights.masked_select(~seen) == 0).all()
    torch.testing.assert_close(weights.sum(-1), seen.any(-1).double())


def test_a_query_with_nothing_to_see_reads_nothing() -> None:
    attention = Attention(8, heads=2, bias=False)
    x = torch.randn(2, 3, 8, requires_grad=True)
    blind = Mask(keys=torch.tensor([[True] * 3, [False] * 3]))
    y = attention(x, mask=blind)
    assert y[0].abs().min() > 0
    assert torch.equal(y[1], torch.zeros(3, 8))
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.isfinite(grad).all()
    assert torch.equal(grad[1], torch.zeros(3, 8))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize(
    "mask", [Mask(), Mask(causal=True), Mask(causal=True, window=3)], ids=["all", "causal", "window"]
)
def test_low_precision_stays_near_float64(dtype: torch.dtype, tolerance: float, mask: Mask) -> None:
    attention = Attention(32, heads=4)
    x = torch.randn(3, 9, 32)
    rough = attention.to(dtype)(x.to(dtype), mask=mask)
    fine = attention.double()(x.to(dtype).double(), mask=mask)
    assert (rough.double() - fine).abs().max() < tolerance


def plain(dim: int, heads: int = 1) -> Attention:
    """All projections the identity, so that queries, keys and values are what is put in."""
    attention = Attention(dim, heads=heads, bias=False)
    for part in (attention.score.query, attention.score.key, attention.value, attention.output):
        assert isinstance(part, nn.Linear)
        nn.init.eye_(part.weight)
    return attention


def test_worked_example_of_the_lecture() -> None:
    """Scores 112 and 96, divided by √64, are 14 and 12, and the weights 0.88 and 0.12."""
    query, keys = torch.zeros(1, 1, 64), torch.zeros(1, 2, 64)
    query[..., 0] = 16
    keys[0, :, 0] = torch.tensor([7.0, 6.0])
    weights = plain(64).weigh(query, plain(64).project(keys))
    torch.testing.assert_close(weights.flatten(), torch.tensor([0.8808, 0.1192]), rtol=0, atol=5e-5)
    unscaled = Attention(64, score="dot")
    assert unscaled.weigh(query, unscaled.project(keys)).flatten()[0] > 0.9999998  # e^16 to one


def test_dot_is_scaled_dot_of_longer_queries() -> None:
    x, memory = torch.randn(2, 3, 16), torch.randn(2, 5, 16)
    dot, scaled = Attention(16, score="dot", heads=4), plain(16, heads=4)
    torch.testing.assert_close(dot(x, memory), scaled(x * 2.0, memory))  # √D = 2


def test_dot_reads_the_memory_as_it_is() -> None:
    attention = Attention(4, score="dot")
    assert not list(attention.parameters())
    memory = torch.randn(1, 3, 4)
    torch.testing.assert_close(attention(100 * memory[:, 1:2], memory)[0, 0], memory[0, 1], atol=1e-4, rtol=0)


class Nearness(Score):
    """A score that is no dot product: minus the squared distance."""

    def __init__(self, dim: int) -> None:
        super().__init__(nn.Linear(dim, dim), nn.Linear(dim, dim))

    def forward(self, q: Tensor, k: Tensor, place: Place) -> Tensor:
        return -(q[..., :, None, :] - k[..., None, :, :]).square().sum(-1)


class Biased(Score):
    """A dot product plus a table that depends on how far apart two positions are."""

    def __init__(self, dim: int) -> None:
        super().__init__(nn.Linear(dim, dim), nn.Linear(dim, dim))

    def prepare(self, q: Tensor, k: Tensor, place: Place) -> Dots:
        at = torch.arange(q.shape[-2]) + place.offset
        return Dots(q, k, 0.5, -0.3 * (at[:, None] - torch.arange(k.shape[-2])).abs().to(q)[None, None])


BLIND = Mask(keys=torch.tensor([[True, True, False, True, True], [False] * 5]))  # the second row has nothing to see


@pytest.mark.parametrize("score", [Nearness, Biased])
@pytest.mark.parametrize(
    "mask", [Mask(), Mask(causal=True), Mask(window=2), BLIND], ids=["all", "causal", "window", "blind"]
)
def test_any_score_can_be_handed_in(score: Callable[[int], Score], mask: Mask) -> None:
    attention = Attention(8, score=score(8), heads=2).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
    kv = attention.project(x)
    looked, read = attention.look(x, kv, mask), attention.read(attention.weigh(x, kv, mask), kv)
    torch.testing.assert_close(looked, read)
    one, other = (torch.autograd.grad(y.square().sum(), x, retain_graph=True)[0] for y in (looked, read))
    torch.testing.assert_close(one, other)
    with regard.watch(attention, heads=[1], queries=[-1, 0]) as seen:
        attention.look(x, kv, mask)
    torch.testing.assert_close(seen[""][0], attention.weigh(x, kv, mask)[:, 1:, [4, 0]])


def test_a_score_must_say_how_it_compares() -> None:
    attention = Attention(4, score=Score(nn.Linear(4, 4), nn.Linear(4, 4)))
    with pytest.raises(TypeError, match="Score must define prepare or forward"):
        attention(torch.randn(1, 2, 4))


def test_hypotheses_that_share_a_memory_read_what_each_would_alone() -> None:
    attention = Attention(8, heads=2).double()
    x, memory = torch.randn(6, 2, 8, dtype=torch.float64), torch.randn(3, 5, 8, dtype=torch.float64)
    mask = Mask(keys=torch.tensor([5, 3, 1])[:, None] > torch.arange(5))
    copied, copied_mask = memory.repeat_interleave(2, 0), Mask(keys=mask.keys.repeat_interleave(2, 0))  # type: ignore[union-attr]
    kv, own = attention.project(memory), attention.project(copied)
    torch.testing.assert_close(attention.look(x, kv, mask), attention.look(x, own, copied_mask))
    torch.testing.assert_close(attention.weigh(x, kv, mask), attention.weigh(x, own, copied_mask))
    torch.testing.assert_close(attention.read(attention.weigh(x, kv, mask), kv), attention.look(x, own, copied_mask))


@pytest.mark.parametrize(("rows", "mask"), [(5, Mask()), (6, Mask(causal=True))], ids=["odd", "causal"])
def test_rows_that_cannot_share_a_memory_are_told_so(rows: int, mask: Mask) -> None:
    attention = Attention(8)
    kv = attention.project(torch.randn(3, 4, 8))
    with pytest.raises(ValueError, match=f"{rows} rows cannot share a memory of 3.*; repeat the memory first"):
        attention.look(torch.randn(rows, 2, 8), kv, mask)


@pytest.mark.parametrize("score", [None, Nearness], ids=["fused", "explicit"])
def test_attention_dropout_works_in_training_alone(score: Callable[[int], Score] | None) -> None:
    attention = Attention(8, score=score(8) if score else "scaled_dot", heads=2, dropout=0.5)
    x = torch.randn(2, 6, 8)
    assert not torch.equal(attention(x), attention(x))
    attention.eval()
    assert torch.equal(attention(x), attention(x))


class Foreign(nn.Module):
    """Somebody else's model: a recurrent reader whose last state looks back at all the others."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = nn.GRU(4, 8, batch_first=True)
        self.attend = Attention(8, score="scaled_dot", heads=2)
        self.answer = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        states, last = self.reader(x)
        return self.answer(self.attend(last.transpose(0, 1), states))[:, 0, 0]


def test_attention_serves_in_a_foreign_model() -> None:
    model, x = Foreign(), torch.randn(16, 7, 4)
    wanted = x[:, 2, 0]
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    losses = []
    for _ in range(60):
        loss = F.mse_loss(model(x), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    other = Foreign()
    other.load_state_dict(model.state_dict())
    with regard.watch(other) as seen:
        assert torch.equal(other(x), model(x))
    assert [weights.shape for weights in seen["attend"]] == [(16, 2, 1, 7)]


def test_projecting_once_serves_many_looks() -> None:
    attention = Attention(8, heads=2, memory_dim=5).double()
    x, memory = torch.randn(2, 4, 8, dtype=torch.float64), torch.randn(2, 6, 5, dtype=torch.float64)
    kv = attention.project(memory)
    assert isinstance(kv, KV)
    one_by_one = torch.cat([attention.look(x[:, t : t + 1], kv) for t in range(4)], 1)
    torch.testing.assert_close(one_by_one, attention(x, memory))


@pytest.mark.parametrize(("dim", "heads", "fits"), [(64, 5, 4), (7, 2, 1), (12, 8, 6)])
def test_heads_that_do_not_divide(dim: int, heads: int, fits: int) -> None:
    with pytest.raises(ConfigError, match=f"dim={dim} does not divide into heads={heads}; try heads={fits}"):
        Attention(dim, heads=heads)


def test_unknown_score_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"score 'scaled-dot' is not known; did you mean 'scaled_dot'\?"):
        Attention(8, score="scaled-dot")
    with pytest.raises(ConfigError, match=r"score 'quux' is not known; known: additive, concat, .*, scaled_dot"):
        Attention(8, score="quux")


WRONG_CALLS: dict[str, tuple[Any, ...]] = {
    r"a mask of shape \(3, 6\) came, but \(3, 7\) is wanted": ((3, 2), torch.ones(3, 6, dtype=torch.bool)),
    r"a mask of shape \(3, 4, 2, 7\) came, but \(3, 1, 2, 7\) is wanted": (
        (3, 2),
        torch.ones(3, 4, 2, 7, dtype=torch.bool),
    ),
    r"a mask of type list came; wanted is a Mask or a tensor of torch.bool": ((3, 2), [[True] * 7] * 3),
    r"6 rows of queries and 3 of memory came": ((6, 2), None),
}


@pytest.mark.parametrize("said", WRONG_CALLS)
def test_what_does_not_fit_a_call_is_said(said: str) -> None:
    shape, mask = WRONG_CALLS[said]
    with pytest.raises((ValueError, TypeError), match=said):
        Attention(16)(torch.randn(*shape, 16), torch.randn(3, 7, 16), mask)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"dropout": 2.0}, "dropout=2.0 came, but a share from 0 to below 1 is wanted"),
        ({"heads": "2"}, "heads='2' came, but a whole number from 1 on is wanted"),
        ({"dim": 16.0}, "dim=16.0 came, but a whole number from 1 on is wanted"),
    ],
)
def test_what_no_attention_has_is_refused_at_birth(how: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Attention(**{"dim": 16, **how})
