"""Random masks, and what they mean, spelled out one pair of query and key at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from regard.core.mask import Mask


@dataclass(frozen=True)
class Shape:
    b: int
    h: int
    q: int
    k: int


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    k = draw(st.integers(1, 6))
    return Shape(draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, k)), k)


@st.composite
def masks(draw: st.DrawFn, shape: Shape) -> Mask:
    """Any combination of parts; many of them leave some query with nothing to see."""
    b, h, q, k = shape.b, shape.h, shape.q, shape.k
    dice = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    flip = st.booleans()
    segments = torch.randint(0, 2, (b, k), generator=dice) if draw(flip) else None
    first, last = (0, k - q) if segments is not None else (-1, k)  # a query must stand on a key to have a segment
    here = st.integers(first, last)
    offset = draw(st.none() | here | here.map(torch.tensor) | st.lists(here, min_size=b, max_size=b).map(torch.tensor))
    ways = (draw(st.sampled_from([1, b])), draw(st.sampled_from([1, h])), q, k)
    return Mask(
        causal=draw(flip),
        window=draw(st.none() | st.integers(1, k)),
        keys=torch.rand(b, k, generator=dice) < 0.7 if draw(flip) else None,
        segments=segments,
        pairs=torch.rand(ways, generator=dice) < 0.7 if draw(flip) else None,
        offset=offset,
    )


def by_hand(mask: Mask, shape: Shape) -> Tensor:
    """(B, H, Q, K), from the words of Mask's own comments."""
    seen = torch.zeros(shape.b, shape.h, shape.q, shape.k, dtype=torch.bool)
    for b in range(shape.b):
        for h in range(shape.h):
            for q in range(shape.q):
                for k in range(shape.k):
                    seen[b, h, q, k] = _may_look(mask, shape, b, h, q, k)
    return seen


def _may_look(mask: Mask, shape: Shape, b: int, h: int, q: int, k: int) -> bool:
    at = q + _start(mask, shape, b)
    if mask.causal and k > at:
        return False
    if mask.window is not None and at - k >= mask.window:
        return False
    if mask.keys is not None and not mask.keys[b, k]:
        return False
    if mask.segments is not None and mask.segments[b, at] != mask.segments[b, k]:
        return False
    return mask.pairs is None or bool(mask.pairs[b % len(mask.pairs), h % mask.pairs.shape[1], q, k])


def _start(mask: Mask, shape: Shape, b: int) -> int:
    if mask.offset is None:
        return shape.k - shape.q
    if isinstance(mask.offset, int):
        return mask.offset
    return int(mask.offset[b] if mask.offset.ndim else mask.offset)
