"""Masks are described, not materialised, so that the fused kernel can recognise the cheap ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from regard.core.spans import Spans

T = TypeVar("T")


@dataclass(frozen=True)
class Mask:
    """Which keys each query may look at. A key is visible when every part that is given allows it."""

    causal: bool = False  # nothing ahead of the query
    window: int | None = None  # at most this many keys back, the query's own included
    keys: Tensor | None = None  # (B, K) False at padding
    segments: Tensor | None = None  # (B, K) packed documents: equal ids may look at each other
    pairs: Tensor | None = None  # (B|1, H|1, Q, K) anything else
    offset: int | Tensor | None = None  # of the first query among the keys; None: the last query on the last key
    spans: Spans | None = None  # a batch packed without padding: rows look at themselves
    drawn: Tensor | None = None  # (B, H|1, Q, K) what is added to scores: 0 where one may look, -inf elsewhere
    starts: Tensor | None = None  # (R + 1,) of segments, rows one behind the other, for a kernel that is told them

    def __post_init__(self) -> None:
        if self.starts is not None and self.segments is None:
            raise ValueError("starts came without segments, but they say where segments begin; give both")
        if self.spans is not None and not (self._alone and self.offset is None):
            raise ValueError(
                "spans came with a window, keys, segments, pairs or an offset, but rows that are packed join with "
                "causality alone; pad the batch, and say what is padding by keys"
            )

    @classmethod
    def of(cls, given: Mask | Tensor | None) -> Mask:
        """From a tensor that is True where one may look: (B, K), (B, Q, K) or (B, H, Q, K)."""
        if given is None or isinstance(given, Mask):
            return given or cls()
        if not isinstance(given, Tensor):
            raise TypeError(f"a mask of type {type(given).__name__} came; wanted is a Mask or a tensor of torch.bool")
        if given.dtype != torch.bool or given.ndim not in (2, 3, 4):
            raise ValueError(
                f"a mask of {given.dtype} with {given.ndim} dimensions came; wanted is torch.bool, True where "
                "one may look, as (B, K), (B, Q, K) or (B, H, Q, K)"
            )
        return cls(keys=given) if given.ndim == 2 else cls(pairs=given[:, None] if given.ndim == 3 else given)

    @classmethod
    def after(cls, start: int, queries: int, own: Tensor | None = None) -> Mask:
        """Nothing ahead, for queries that follow so many keys; `own` (B,): how many of them are a row's, where rows
        differ. That is drawn once for all blocks, and says where each row's next key goes. A number for all that is a
        tensor is of keys whose buffers are fixed: they know what may be seen of them."""
        if own is None or not own.ndim:
            return cls(causal=True, offset=own)
        seen = cls(causal=True, offset=own).dense(queries, start + queries, own.device)
        return cls(pairs=seen, offset=own)

    def __and__(self, other: Mask) -> Mask:
        windows = [w for w in (self.window, other.window) if w is not None]
        return Mask(
            causal=self.causal or other.causal,
            window=min(windows) if windows else None,
            keys=_both(self.keys, other.keys),
            segments=_one("segments", self.segments, other.segments),
            pairs=_both(self.pairs, other.pairs),
            offset=_one("offset", self.offset, other.offset),  # type: ignore[arg-type]
            spans=_one("spans", self.spans, other.spans),
            drawn=_one("drawn", self.drawn, other.drawn),
            starts=_one("starts", self.starts, other.starts),
        )

    def shared(self, queries: int, rows: int) -> Mask:
        """The mask where several hypotheses, in `queries` rows, ask together at the memory of their sentence."""
        if queries == rows:
            return self
        if self.causal or self.window is not None or self.segments is not None or self.spans is not None:
            raise ValueError(f"{queries} rows cannot share a memory of {rows} under this mask; repeat the memory first")
        if self.pairs is None:
            return self
        each = self.pairs.expand(queries, -1, -1, -1)
        together = each.unflatten(0, (rows, -1)).transpose(1, 2).flatten(2, 3)  # (B, H, n·Q, K)
        return replace(self, pairs=together)

    @property
    def only_keys(self) -> bool:
        """True where all queries of a row may look at the same of its keys, and not at others."""
        others = (self.window, self.segments, self.pairs, self.drawn, self.spans)
        return self.keys is not None and not self.causal and all(part is None for part in others)

    def only_starts(self, q: int, k: int) -> bool:
        """True where segments and causality are all, and it is known where segments begin."""
        others = (self.window, self.keys, self.pairs, self.drawn, self.spans, self.offset)
        return self.starts is not None and q == k and all(part is None for part in others)

    def plainly_causal(self, q: int, k: int) -> bool:
        """True for the one mask that a fused kernel draws by itself. It aligns top-left, hence only where Q = K."""
        if not (self.causal and self._alone and self.spans is None) or q != k:
            return False
        return self.offset is None or (isinstance(self.offset, int) and self.offset == 0)

    @property
    def _alone(self) -> bool:
        parts = (self.window, self.keys, self.segments, self.pairs, self.drawn)  # starts come with segments
        return all(part is None for part in parts)

    def unpacked(self) -> Mask:
        """The same once the packed rows are side by side again: padding neither looks nor is seen."""
        if self.spans is None:
            return self
        asking, real = self.spans.asking.real, self.spans.real
        return Mask(self.causal, pairs=asking[:, None, :, None] & real[:, None, None, :])

    @property
    def own(self) -> Tensor | None:
        """(B,) where the first query of each row stands, where rows differ."""
        return self.offset if isinstance(self.offset, Tensor) and self.offset.ndim else None

    def start(self, q: int, k: int) -> int | Tensor:
        """Where the first query stands among the keys."""
        return k - q if self.offset is None else self.offset

    def dense(self, q: int, k: int, device: torch.device | None = None, rows: Tensor | None = None) -> Tensor | None:
        """(B|1, H|1, Q, K), or None when everything is visible. `rows` draws the lines of those queries alone."""
        seen = self.pairs if self.pairs is None or rows is None else self.pairs.index_select(-2, rows)
        if self.keys is not None:
            seen = _both(seen, self.keys[:, None, None, :])
        if self.drawn is not None:
            seen = _both(seen, self.drawn == 0)
        nothing_ahead = q == 1 and self.offset is None
        own_only = self.segments is not None or self.spans is not None
        if (self.causal and not nothing_ahead) or self.window is not None or own_only:
            steps = torch.arange(q, device=device) if rows is None else rows
            start = self.start(q, k)
            at = steps + (start[:, None] if isinstance(start, Tensor) and start.ndim else start)  # (Q,) or (B, Q)
            seen = _both(seen, self._near(at, k))
        return seen

    def _near(self, at: Tensor, k: int) -> Tensor:
        """What causality, window, segments and spans let the queries at these positions see."""
        ahead = torch.arange(k, device=at.device) - at[..., None]  # (Q, K) or (B, Q, K)
        near = ahead <= 0 if self.causal else torch.ones_like(ahead, dtype=torch.bool)
        if self.window is not None:
            near = near & (ahead > -self.window)
        if self.segments is not None:
            own = self.segments.gather(1, at.expand(len(self.segments), -1))  # (B, Q)
            near = near & (own[..., None] == self.segments[:, None, :])
        if self.spans is not None:
            near = near & (self.spans.asking.rows[at][..., None] == self.spans.rows)
        return near[None, None] if near.ndim == 2 else near[:, None]


def _both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a & b


def _one(name: str, a: T | None, b: T | None) -> T | None:
    if a is not None and b is not None and not _same(a, b):
        raise ValueError(f"two masks with different {name} cannot be joined; give {name} in one of them only")
    return b if a is None else a


def _same(a: object, b: object) -> bool:
    return a is b or (isinstance(a, int) and a == b)  # tensors are the same only where they are one
