"""What the core lends to a search that goes ahead by itself: masks that are drawn already, a place that is a tensor,
products of one vector."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.core.attention import Attention
from regard.core.linear import Linear
from regard.core.mask import Mask
from regard.core.position import POSITIONS
from regard.core.state import KV, Fixed
from regard.core.watch import silence, watch


def drawn(seen: Tensor) -> Tensor:
    return torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, float("-inf"))


@pytest.mark.parametrize("score", ["scaled_dot", "additive", "cosine"])
@pytest.mark.parametrize("near", [False, True])
@torch.inference_mode()
def test_what_is_drawn_hides_what_is_described(score: str, near: bool) -> None:
    """In the fused kernel and outside of it, alone and with pairs beside it."""
    attention = Attention(8, score=score, heads=2).double()
    x, kv = torch.randn(3, 4, 8, dtype=torch.float64), attention.project(torch.randn(3, 6, 8, dtype=torch.float64))
    seen = torch.rand(3, 1, 4, 6) < 0.6
    seen[..., 0] = True
    pairs = (torch.rand(3, 1, 4, 6) < 0.8) | (torch.arange(6) == 0) if near else None
    wanted = Mask(pairs=seen if pairs is None else seen & pairs)
    torch.testing.assert_close(
        attention.look(x, kv, Mask(pairs=pairs, drawn=drawn(seen))), attention.look(x, kv, wanted)
    )
    torch.testing.assert_close(
        attention.weigh(x, kv, Mask(pairs=pairs, drawn=drawn(seen))), attention.weigh(x, kv, wanted)
    )


def test_two_that_are_drawn_cannot_be_joined() -> None:
    one, other = (Mask(drawn=torch.zeros(1, 1, 2, 2)) for _ in range(2))
    assert (one & Mask(causal=True)).drawn is one.drawn
    with pytest.raises(ValueError, match="two masks with different drawn cannot be joined; give drawn in one of them"):
        one & other


@torch.inference_mode()
def test_hypotheses_that_write_into_one_buffer_see_their_own_alone() -> None:
    """Each row reads what it would read of a buffer of its own."""
    attention, rows, width = Attention(8, heads=2).double(), 2, 3
    words = torch.randn(4, rows * width, 1, 8, dtype=torch.float64)
    seen, places = torch.full((rows, 1, width, 4 * width), float("-inf"), dtype=torch.float64), torch.arange(width)
    buffer = torch.zeros(rows, 2, 4 * width, 4, dtype=torch.float64)
    fixed = Fixed(buffer.clone(), buffer.clone(), 4 * width, seen, places)
    growing: KV | None = None
    for t, word in enumerate(words):
        for own in range(width):
            seen[:, :, own, t * width + own] = 0.0
        found, after = attention.inward(word, fixed, Mask(causal=True, offset=torch.tensor(t)))
        wanted, growing = attention.inward(word, growing, Mask(causal=True))
        torch.testing.assert_close(found, wanted)
        assert isinstance(after, Fixed)
        assert after.k is fixed.k
        places += width


@pytest.mark.parametrize("name", POSITIONS)
def test_a_place_may_be_a_tensor(name: str) -> None:
    positions = POSITIONS[name](8, 16, 2)
    wanted = positions(5, 1)
    torch.testing.assert_close(positions(9, 1, torch.tensor(5)), wanted)


def test_somebody_minds_an_attention_as_long_as_it_is_watched_or_silenced() -> None:
    attention = Attention(8, heads=2)
    model = torch.nn.ModuleDict({"self": attention})
    assert not attention.minded
    with watch(model):
        assert attention.minded
    with silence(model, "self", 1):
        assert attention.minded
    assert not attention.minded


@pytest.mark.parametrize("rows", [1, 2])
def test_of_one_vector_the_bias_is_left_to_the_compiler(rows: int) -> None:
    """Which makes one kernel of a product of one vector and whatever follows it."""
    found: list[str] = []

    def keep(graph: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        found.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    part, x = Linear(4, 3), torch.randn(rows, 1, 4)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(part, backend=keep, dynamic=False)(x), part(x))
    assert any("add" in name for name in found) == (rows == 1)
