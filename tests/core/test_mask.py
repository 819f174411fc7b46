from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.core.attention import Attention
from regard.core.mask import Mask

from .masks import Shape, by_hand, masks, shapes


def drawn(mask: Mask, shape: Shape, rows: Tensor | None = None) -> Tensor:
    seen = mask.dense(shape.q, shape.k, rows=rows)
    q = shape.q if rows is None else len(rows)
    everything = torch.ones(shape.b, shape.h, q, shape.k, dtype=torch.bool)
    return everything if seen is None else everything & seen


@settings(max_examples=200)
@given(st.data())
def test_a_mask_is_what_a_double_loop_says(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    mask = data.draw(masks(shape))
    assert torch.equal(drawn(mask, shape), by_hand(mask, shape))


@settings(max_examples=200)
@given(st.data())
def test_lines_drawn_alone_are_lines_of_the_whole(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    mask = data.draw(masks(shape))
    rows = torch.tensor(data.draw(st.lists(st.integers(0, shape.q - 1), max_size=4)), dtype=torch.long)
    assert torch.equal(drawn(mask, shape, rows), drawn(mask, shape)[:, :, rows])


@settings(max_examples=200)
@given(st.data())
def test_joined_masks_allow_what_both_allow(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    one, other = data.draw(masks(shape)), data.draw(masks(shape))
    one = Mask(one.causal, one.window, one.keys, one.segments, one.pairs)
    other = Mask(other.causal, other.window, other.keys, None, other.pairs)
    assert torch.equal(drawn(one & other, shape), drawn(one, shape) & drawn(other, shape))


def test_joining_keeps_the_one_offset_and_the_one_segmentation() -> None:
    segments = torch.tensor([[0, 0, 1]])
    joined = Mask(causal=True, offset=2) & Mask(segments=segments)
    assert joined.offset == 2
    assert joined.segments is segments
    assert (Mask(offset=int("1000")) & Mask(offset=int("1000"))).offset == 1000


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        (Mask(segments=torch.zeros(1, 2)), Mask(segments=torch.zeros(1, 2)), "segments"),
        (Mask(offset=torch.tensor(1)), Mask(offset=torch.tensor(2)), "offset"),
    ],
)
def test_two_segmentations_cannot_be_joined(one: Mask, other: Mask, name: str) -> None:
    sentence = f"two masks with different {name} cannot be joined; give {name} in one of them only"
    with pytest.raises(ValueError, match=sentence):
        one & other


@settings(max_examples=200)
@given(st.data())
def test_only_the_triangle_is_left_to_the_kernel(data: st.DataObject) -> None:
    """The kernel's own causal mask is aligned top-left: right for Q = K and nothing else."""
    shape = data.draw(shapes())
    mask = data.draw(masks(shape))
    if mask.plainly_causal(shape.q, shape.k):
        assert torch.equal(by_hand(mask, shape), torch.ones(shape.b, shape.h, shape.q, shape.k).tril().bool())


def test_the_triangle_is_recognised() -> None:
    assert Mask(causal=True).plainly_causal(3, 3)
    assert Mask(causal=True, offset=0).plainly_causal(3, 3)
    assert not Mask(causal=True).plainly_causal(1, 3)
    assert not Mask(causal=True, offset=torch.tensor([0, 1])).plainly_causal(3, 3)
    assert not Mask(causal=True, keys=torch.ones(1, 3, dtype=torch.bool)).plainly_causal(3, 3)


def test_nothing_is_materialised_where_everything_is_visible() -> None:
    assert Mask().dense(3, 5) is None
    assert Mask(causal=True).dense(1, 5) is None  # the last query sees all that came before
    assert Mask(causal=True, offset=2).dense(1, 5) is not None


def test_hypotheses_that_share_a_memory_bring_their_own_pairs() -> None:
    pairs = torch.arange(4)[:, None, None, None] > torch.arange(3)  # (4, 1, 1, 3): four hypotheses, two sentences
    shared = Mask(keys=torch.ones(2, 3, dtype=torch.bool), pairs=pairs).shared(4, 2)
    assert shared.pairs is not None
    assert shared.pairs.shape == (2, 1, 2, 3)
    for hypothesis in range(4):
        assert torch.equal(shared.pairs[hypothesis // 2, 0, hypothesis % 2], pairs[hypothesis, 0, 0])
    plain = Mask(keys=torch.ones(2, 3, dtype=torch.bool))
    assert plain.shared(4, 2) is plain
    for mask in (Mask(causal=True), Mask(window=2), Mask(segments=torch.zeros(2, 3))):
        assert mask.shared(2, 2) is mask
        with pytest.raises(ValueError, match="4 rows cannot share a memory of 2 under this mask"):
            mask.shared(4, 2)


def test_a_tensor_is_a_mask_where_it_is_true() -> None:
    x, memory, attention = torch.randn(2, 3, 8), torch.randn(2, 4, 8), Attention(8, heads=2)
    keys = torch.tensor([[True, True, False, False], [True, True, True, True]])
    wanted = attention(x, memory, Mask(keys=keys))
    for mask in (keys, keys[:, None].expand(2, 3, 4), keys[:, None, None].expand(2, 2, 3, 4)):
        torch.testing.assert_close(attention(x, memory, mask), wanted)
    torch.testing.assert_close(attention(x, memory, None), attention(x, memory))
    for wrong in (keys.float(), keys[0]):
        with pytest.raises(
            ValueError, match=r"a mask of torch\.\w+ with \d dimensions came; wanted is torch\.bool, True where"
        ):
            attention(x, memory, wrong)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.integers(1, 3))
def test_rows_of_unlike_length_see_their_own_past_alone(own: list[int], queries: int) -> None:
    longest = max(own)
    mask = Mask.after(longest, queries, torch.tensor(own))
    drawn = mask.dense(queries, longest + queries)
    assert drawn is not None
    for row, read in enumerate(own):
        wanted = [[key <= read + query for key in range(longest + queries)] for query in range(queries)]
        assert drawn[row, 0].tolist() == wanted
    assert mask.own is not None
    assert mask.own.tolist() == own
    assert Mask.after(longest, queries) == Mask(causal=True)
    assert Mask(offset=3).own is Mask(offset=torch.tensor(3)).own is None
