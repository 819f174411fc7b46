"""Buckets: pairs of similar lengths together, so that a batch has little padding.

Target lengths are cut into bands, and source lengths in each of them. Every second band goes from long sources to
short ones, so that neighbouring buckets are alike and small ones can be joined.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

BANDS = 6


@dataclass(frozen=True)
class Bucket:
    """Neighbours in a store; `source` and `target` are the longest of them."""

    start: int
    count: int
    source: int
    target: int

    @property
    def longest(self) -> int:
        return max(self.source, self.target)


def room(longest: int, tokens: int, rows: int = 0) -> int:
    """Examples of this length that a batch holds: as many as `tokens` do, and at most `rows`, where that is no 0."""
    fit = max(1, tokens // longest)
    return min(fit, rows) if rows else fit


def join(buckets: Iterable[Bucket], tokens: int, rows: int = 0) -> list[Bucket]:
    """Buckets that fill at least half a batch of so many tokens, or of so many rows; the last one perhaps less."""
    joined: list[Bucket] = []
    for bucket in buckets:
        if joined and _small(joined[-1], tokens, rows):
            small = joined.pop()
            longest = max(small.source, bucket.source), max(small.target, bucket.target)
            bucket = Bucket(small.start, small.count + bucket.count, *longest)
        joined.append(bucket)
    return joined


def _small(bucket: Bucket, tokens: int, rows: int) -> bool:
    return bucket.count * bucket.longest < tokens / 2 and not 0 < rows <= 2 * bucket.count


def batches_of(bucket: Bucket, tokens: int, rows: int = 0) -> int:
    """Into how many batches a bucket goes, all of about the same size."""
    return -(-bucket.count // room(bucket.longest, tokens, rows))


def assign(counts: np.ndarray) -> np.ndarray:
    """The bucket for each (target length, source length), from how often each occurs."""
    band = cut(counts.sum(1))
    across = np.stack([cut(counts[band == row].sum(0)) for row in range(BANDS)])
    across[1::2] = BANDS - 1 - across[1::2]
    return (BANDS * np.arange(BANDS)[:, None] + across)[band]


def cut(counts: np.ndarray) -> np.ndarray:
    """The band of each length. Padding is least when the cuts lie as dense as the square root of the counts."""
    weight = np.cumsum(np.sqrt(counts))
    ends = np.searchsorted(weight, weight[-1] * np.arange(1, BANDS) / BANDS)
    return np.searchsorted(ends, np.arange(len(counts)))
