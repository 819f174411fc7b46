from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard.core.state import KV, State, each, reorder, repeat


def kv(rows: int, length: int, start: int = 0) -> KV:
    """Keys that count from `start`, values that count downwards."""
    k = torch.arange(start, start + rows * length, dtype=torch.float64).view(rows, 1, length, 1)
    return KV.of(k.clone(), -k)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.booleans())
def test_pieces_laid_end_to_end_are_the_whole(lengths: list[int], learning: bool) -> None:
    """Through every growth of the buffer, in place or not."""
    pieces = [kv(2, length, 100 * i) for i, length in enumerate(lengths)]
    wanted = torch.cat([piece.keys for piece in pieces], -2)
    grown = pieces[0]
    with torch.set_grad_enabled(learning):
        for piece in pieces[1:]:
            grown = grown.extend(piece)
    assert grown.length == sum(lengths)
    assert torch.equal(grown.keys, wanted)
    assert torch.equal(grown.values, -wanted)


@torch.no_grad()
def test_a_cache_with_room_is_written_in_place() -> None:
    """Otherwise each step would copy all that came before."""
    grown = kv(2, 1).extend(kv(2, 1))
    room = grown.k.shape[-2]
    assert room > 2
    for _ in range(room - 2):
        longer = grown.extend(kv(2, 1))
        assert longer.k is grown.k
        grown = longer
    assert grown.extend(kv(2, 1)).k.shape[-2] > room


def test_gradients_flow_through_what_was_extended() -> None:
    parts = [torch.randn(2, 1, 3, 4, requires_grad=True) for _ in range(3)]
    grown = KV.of(parts[0], parts[0]).extend(KV.of(parts[1], parts[1])).extend(KV.of(parts[2], parts[2]))
    grown.keys.square().sum().backward()
    for part in parts:
        torch.testing.assert_close(part.grad, 2 * part.detach())


@torch.no_grad()
def test_the_first_extension_leaves_the_projection_alone() -> None:
    """A memory that was projected once may be looked at again by somebody else."""
    first = kv(1, 3)
    before = first.keys.clone()
    first.extend(kv(1, 2, 50))
    assert torch.equal(first.keys, before)
    assert first.length == 3


@dataclass(frozen=True)
class Pair:
    left: Tensor
    right: Tensor | None
    name: str = "pair"


def tree() -> dict[str, object]:
    return {"list": [torch.ones(2), None], "tuple": (torch.zeros(2), 3), "pair": Pair(torch.ones(2), None), "word": "x"}


def test_each_changes_every_tensor_and_nothing_else() -> None:
    changed = each(tree(), lambda t: t + 1)
    assert changed["word"] == "x"
    assert changed["tuple"][1] == 3
    assert isinstance(changed["tuple"], tuple)
    assert changed["list"][1] is None
    assert changed["pair"].name == "pair"
    assert changed["pair"].right is None
    for tensor, value in ((changed["list"][0], 2), (changed["tuple"][0], 1), (changed["pair"].left, 2)):
        assert torch.equal(tensor, torch.full((2,), float(value)))


def state(rows: int = 3) -> State:
    own = torch.arange(rows)
    return State(memory={"real": own + 10}, past=[kv(rows, 2), None], length=2, notes={"entropy": own + 20})


def test_reorder_moves_what_belongs_to_a_hypothesis() -> None:
    before = state()
    after = reorder(before, torch.tensor([2, 0, 0, 1]))
    assert torch.equal(after.past[0].keys, kv(3, 2).keys[[2, 0, 0, 1]])
    assert torch.equal(after.past[0].values, kv(3, 2).values[[2, 0, 0, 1]])
    assert after.notes["entropy"].tolist() == [22, 20, 20, 21]
    assert after.past[1] is None
    assert after.length == 2
    assert after.memory is before.memory  # one copy a sentence, however wide the beam


def test_reorder_drops_sentences_that_are_done() -> None:
    after = reorder(state(), torch.tensor([1, 2]), torch.tensor([1, 2]))
    assert after.memory["real"].tolist() == [11, 12]


def test_repeat_puts_copies_side_by_side() -> None:
    before = state(2)
    after = repeat(before, 3)
    assert after.notes["entropy"].tolist() == [20, 20, 20, 21, 21, 21]
    assert after.memory is before.memory


@pytest.mark.parametrize(
    "copy", [lambda s: reorder(s, torch.arange(3)), lambda s: repeat(s, 1)], ids=["reorder", "repeat"]
)
@torch.no_grad()
def test_copies_of_a_state_go_their_own_ways(copy: Callable[[State], State]) -> None:
    """Writing into one must not be seen in the other."""
    long = State(past=kv(3, 2).extend(kv(3, 1)))
    twin = copy(long)
    long.past.extend(kv(3, 1, 70))
    other = twin.past.extend(kv(3, 1, 90))
    assert torch.equal(other.keys[:, 0, 3, 0], torch.tensor([90.0, 91.0, 92.0], dtype=torch.float64))
    assert torch.equal(long.past.k[:, 0, 3, 0], torch.tensor([70.0, 71.0, 72.0], dtype=torch.float64))
