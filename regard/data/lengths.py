"""Examples of similar lengths together, within a budget of tokens; each batch a pure function of its number.

What `data.batch` does for pairs in a store, for anything that has one length and can be fetched by its place.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from regard.data.bucket import Bucket, batches_of, cut, join, room
from regard.data.shuffle import shuffled
from regard.errors import ConfigError


class Lengths:
    """The places of examples, batch by batch, epoch after epoch; `tokens` bounds rows × longest of each, and `rows`
    the rows, where it is no 0.
    """

    def __init__(self, lengths: np.ndarray, *, tokens: int, rows: int = 0, seed: int | str = 0) -> None:
        longest = int(lengths.max())
        if longest > tokens:
            either = f"write train.tokens = {longest} or more, or data.longest = {tokens} or less"
            raise ConfigError(f"train.tokens = {tokens} cannot hold the longest example of {longest} tokens; {either}")
        self.seed = seed
        self.order = np.argsort(lengths, kind="stable").astype(np.uint32)
        self.buckets = join(_buckets(lengths[self.order]), tokens, rows)
        self.shares = [batches_of(bucket, tokens, rows) for bucket in self.buckets]
        self.ends = np.cumsum(self.shares)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return int(self.ends[-1])

    def epoch(self, step: int, world: int = 1) -> float:
        """How often the data has been seen before this step."""
        return step / self._steps(world)

    def batch(self, step: int, rank: int = 0, world: int = 1) -> np.ndarray:
        """The places of what one of `world` processes learns from at this step."""
        epoch, turn = divmod(step, self._steps(world))
        return self.turn(epoch, turn * world + rank)

    def turn(self, epoch: int, turn: int) -> np.ndarray:
        """The places that come at some turn of an epoch; more turns than there are show some a second time."""
        number = int(shuffled(np.array([turn % len(self)]), len(self), f"{self.seed} {epoch}")[0])
        which = int(np.searchsorted(self.ends, number, side="right"))
        bucket, shares = self.buckets[which], self.shares[which]
        share = number - int(self.ends[which]) + shares
        turns = np.arange(bucket.count * share // shares, bucket.count * (share + 1) // shares)
        places = self.order[bucket.start + shuffled(turns, bucket.count, f"{self.seed} {epoch} {which}")]
        return places.astype(np.int64)

    def _steps(self, world: int) -> int:
        return -(-len(self) // world)


def in_order(lengths: np.ndarray, *, tokens: int) -> Iterator[np.ndarray]:
    """Every place once, from long to short, so that what does not fit fails first; each batch within the budget."""
    order = np.argsort(-lengths, kind="stable")
    while len(order):
        rows = room(max(1, int(lengths[order[0]])), tokens)
        yield order[:rows]
        order = order[rows:]


def _buckets(lengths: np.ndarray) -> list[Bucket]:
    """Of lengths in ascending order."""
    bands = cut(np.bincount(lengths))[lengths]
    starts = np.flatnonzero(np.append(True, bands[1:] != bands[:-1]))
    ends = np.append(starts[1:], len(lengths))
    return [
        Bucket(start, end - start, int(lengths[end - 1]), 0)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
