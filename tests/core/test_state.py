from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard.core.state import KV, ROOM, Memory, State, each, join, reorder, repeat, trim


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


# ------------------------------------------------------------------ rows that did not begin together


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.lists(st.integers(1, 3), max_size=4), st.booleans())
def test_each_row_goes_on_where_its_own_keys_end(begun: list[int], pieces: list[int], learning: bool) -> None:
    """Whatever lies behind them, through every growth of the buffer, in place or not."""
    alone = [kv(1, length, 100 * i) for i, length in enumerate(begun)]
    together, at = KV.beside(alone), torch.tensor(begun)
    with torch.set_grad_enabled(learning):
        for step, length in enumerate(pieces):
            new = [kv(1, length, 1000 * (step + 1) + 100 * i) for i in range(len(begun))]
            together = together.extend(KV.beside(new), at)
            at = at + length
            alone = [
                KV.of(torch.cat([a.keys, n.keys], -2), torch.cat([a.values, n.values], -2))
                for a, n in zip(alone, new, strict=True)
            ]
    assert together.length == max(one.length for one in alone)
    for row, one in enumerate(alone):
        assert torch.equal(together.keys[row, :, : one.length], one.keys[0])
        assert torch.equal(together.values[row, :, : one.length], one.values[0])


def test_gradients_flow_through_rows_of_unlike_length() -> None:
    old, new = (torch.randn(2, 1, n, 4, requires_grad=True) for n in (3, 1))
    grown = KV.of(old, old).extend(KV.of(new, new), torch.tensor([1, 3]))
    grown.keys.square().sum().backward()
    covered = torch.ones_like(old)
    covered[0, :, 1] = 0.0  # the first row had read one, and the new one was written behind it
    torch.testing.assert_close(old.grad, 2 * old.detach() * covered)
    torch.testing.assert_close(new.grad, 2 * new.detach())


@torch.no_grad()
def test_buffers_much_larger_than_what_is_left_are_given_back() -> None:
    long = kv(2, 100)
    assert long.first(90).k is long.k
    short = long.first(3)
    assert short.k.shape[-2] == short.length == 3
    assert torch.equal(short.keys, long.keys[:, :, :3])
    assert short.k.untyped_storage().nbytes() < long.k.untyped_storage().nbytes()
    assert long.first(3).extend(kv(2, 1)).k.shape[-2] <= 2 * 4 + ROOM


def begun(length: int, source: int, rows: int = 1, **more: Tensor | None) -> State:
    memory = Memory([kv(rows, source)], more.get("real"))
    return State(memory, {"keys": kv(rows, length), "hidden": (torch.full((rows, 2), length),)}, length)


def test_states_are_joined_whatever_is_in_them() -> None:
    states = begun(2, 5), begun(4, 3, rows=2)
    noted = [
        State(s.memory, s.past, s.length, {"choice": torch.full((len(s.past["keys"].k), s.length), s.length)})
        for s in states
    ]
    both = join(noted)
    assert (both.length, both.lengths.tolist()) == (4, [2, 4, 4])  # type: ignore[union-attr]
    assert both.memory.real.tolist() == [[True] * 5, *[[True] * 3 + [False] * 2] * 2]
    assert torch.equal(both.memory.keys[0].keys[1:, :, :3], kv(2, 3).keys)
    assert both.past["hidden"][0].tolist() == [[2, 2], [4, 4], [4, 4]]
    assert both.notes["choice"].tolist() == [[2], [4], [4]]  # of the last token
    assert both.after(3, both.past).lengths.tolist() == [5, 7, 7]  # type: ignore[union-attr]
    assert torch.equal(both.at, both.lengths)  # type: ignore[arg-type]
    assert states[0].at == 2


def test_what_is_equally_long_is_joined_without_masks() -> None:
    both = join([begun(3, 4), begun(3, 4)])
    assert both.lengths is None
    assert both.memory.real is None
    one = begun(3, 4)
    assert join([one]) is one


def test_padding_that_was_there_stays_padding() -> None:
    real = torch.tensor([[True, False, True]])
    both = join([begun(1, 3, real=real), begun(1, 4)])
    assert both.memory.real.tolist() == [[True, False, True, False], [True] * 4]


def test_what_no_row_has_any_more_is_cut_off() -> None:
    all_three = join([begun(2, 5), begun(9, 3), begun(4, 2)])
    two = trim(reorder(all_three, torch.tensor([0, 2]), torch.tensor([0, 2])))
    assert (two.length, two.lengths.tolist()) == (4, [2, 4])  # type: ignore[union-attr]
    assert two.past["keys"].keys.shape[-2] == 4
    assert two.memory.keys[0].length == two.memory.real.shape[1] == 5
    last = trim(reorder(two, torch.tensor([1]), torch.tensor([1])))
    assert (last.length, last.lengths) == (4, None)
    assert last.memory.real is None
    assert torch.equal(last.memory.keys[0].keys, kv(1, 2).keys)
    assert torch.equal(last.past["keys"].keys, kv(1, 4).keys)


def test_lengths_move_with_their_rows() -> None:
    both = join([begun(2, 3), begun(5, 3)])
    assert reorder(both, torch.tensor([1, 0, 1])).lengths.tolist() == [5, 2, 5]  # type: ignore[union-attr]
    assert repeat(both, 2).lengths.tolist() == [2, 2, 5, 5]  # type: ignore[union-attr]


def test_what_cannot_be_joined_says_why() -> None:
    with pytest.raises(
        ValueError, match="a state came that has read nothing, but rows join in mid-decode; step it first"
    ):
        join([begun(1, 2), State(past=[None])])
    with pytest.raises(
        ValueError, match=r"states with 1 and with 3 hypotheses a sentence came, .* join like with like"
    ):
        join([begun(1, 2), repeat(begun(1, 2), 3)])
    with pytest.raises(
        ValueError, match="'a' cannot be joined with another; give its class a method beside, which says"
    ):
        join([State(past=Pair(torch.ones(1), None, name)) for name in "ab"])


def test_parts_of_a_kind_are_joined_field_by_field() -> None:
    both = join([State(past=Pair(torch.full((1,), float(i)), None)) for i in range(2)])
    assert both.past.left.tolist() == [0, 1]
    assert both.past.right is None
