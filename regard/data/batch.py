"""Batches of similar lengths within a budget of tokens, each a pure function of (seed, step, rank, world).

An epoch's order is never listed: a Feistel network tells which pair comes at which place, so that batch one million
costs what batch one does, any step can be asked for, and resuming needs nothing but its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.bucket import batches_of, join
from regard.data.forms import lengthen, longer, more, with_rows
from regard.data.shuffle import shuffled
from regard.data.store import Ragged, Store
from regard.errors import ConfigError

RUNS, LONGEST_RUN = 4096, 32  # a large bucket is shuffled by runs of pairs, which lie side by side on disk


@dataclass(frozen=True, eq=False)
class Batch:
    """Pairs side by side, padded to the longest among them. True in `real` is a token, False is padding."""

    source: Tensor  # (B, S) … end, then padding
    real: Tensor  # (B, S)
    target: Tensor  # (B, T) begin … end, then padding
    written: Tensor  # (B, T) as `real`, of the target: an end may have the number that pads
    ids: tuple[int, ...]  # line numbers in the data
    tokens: int  # of the target that are predicted: all but its beginning and padding
    room: tuple[int, int] | None = None  # places for what is read and for what is asked, where padding is left out

    @property
    def rows(self) -> int:
        return len(self.source)

    @property
    def count(self) -> int:
        """What the loss is summed over."""
        return self.tokens

    @property
    def asked(self) -> Tensor:
        """(B, T - 1) what is to be told, the words before it given."""
        return self.written[:, 1:]

    @property
    def read(self) -> Tensor:
        """(B, S) what has to be read for that: nothing of rows that only fill up."""
        return self.real & self.asked.any(1, keepdim=True)

    def steady(self, longest: int | None = None) -> Batch:
        """The same in one of few shapes; of the rows that fill it up, nothing is to be written."""
        rows, read = more(self.rows), longer(self.source.shape[1], longest)
        return self._filled(rows, read, 1 + longer(self.target.shape[1] - 1, longest))

    def roomy(self, longest: int | None = None) -> Batch:
        """Likewise, to be learnt from without padding. What fills a table up is nobody's work then, so tables have
        fewer shapes, and what is left has room of its own."""
        rows, read = more(self.rows, 4), longer(self.source.shape[1], longest, 1)
        found = self._filled(rows, read, 1 + longer(self.target.shape[1] - 1, longest, 1))
        return replace(found, room=(more(int(found.read.sum())), more(int(found.asked.sum()))))

    def _filled(self, rows: int, read: int, written: int) -> Batch:
        def fill(table: Tensor, length: int) -> Tensor:
            return with_rows(lengthen(table, length), rows)

        wanted = F.pad(lengthen(self.written, written), (0, 0, 0, rows - self.rows))
        source, real, target = fill(self.source, read), fill(self.real, read), fill(self.target, written)
        return replace(self, source=source, real=real, target=target, written=wanted)

    def to(self, device: torch.device | str) -> Batch:
        """On a GPU the copy goes on while the caller does."""
        pinned = torch.device(device).type == "cuda" and not self.source.is_cuda

        def move(tensor: Tensor) -> Tensor:
            return (tensor.pin_memory() if pinned else tensor).to(device, non_blocking=pinned)

        source, real, target, written = map(move, (self.source, self.real, self.target, self.written))
        return replace(self, source=source, real=real, target=target, written=written)

    @classmethod
    def of(cls, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], ids: Sequence[int]) -> Batch:
        """From lists of tokens: source … end, begin target … end."""
        return cls.padded(_ragged(sources), _ragged(targets), ids)

    @classmethod
    def padded(cls, source: Ragged, target: Ragged, ids: Sequence[int]) -> Batch:
        return cls(*_rectangle(source), *_rectangle(target), tuple(ids), int(target.lengths.sum()) - len(ids))


class Batches:
    """The batches of a store, epoch after epoch; `tokens` bounds rows × longest side of each, and `rows` the rows,
    where it is no 0.
    """

    def __init__(self, store: Store, *, tokens: int, rows: int = 0, seed: int = 0) -> None:
        longest = max(bucket.longest for bucket in store.buckets)
        if longest > tokens:
            either = f"write train.tokens = {longest} or more, or data.longest = {tokens} or less"
            raise ConfigError(f"train.tokens = {tokens} cannot hold the longest example of {longest} tokens; {either}")
        self.store = store
        self.seed = seed
        self.buckets = join(store.buckets, tokens, rows)
        self.shares = [batches_of(bucket, tokens, rows) for bucket in self.buckets]
        self.ends = np.cumsum(self.shares)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return int(self.ends[-1])

    def steps(self, world: int = 1) -> int:
        """Steps in an epoch that so many processes share."""
        return -(-len(self) // world)

    def epoch(self, step: int, world: int = 1) -> float:
        """How often the data has been seen before this step."""
        return step / self.steps(world)

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """What one of `world` processes learns from at this step."""
        epoch, turn = divmod(step, self.steps(world))
        turn = (turn * world + rank) % len(self)  # too few for the last step: some come twice
        number = int(shuffled(np.array([turn]), len(self), f"{self.seed} {epoch}")[0])
        which = int(np.searchsorted(self.ends, number, side="right"))
        bucket, shares = self.buckets[which], self.shares[which]
        share = number - int(self.ends[which]) + shares
        turns = np.arange(bucket.count * share // shares, bucket.count * (share + 1) // shares)
        run = min(1 + bucket.count // RUNS, LONGEST_RUN)
        places = shuffled(turns, bucket.count, f"{self.seed} {epoch} {which}", run=run)
        return _batch(self.store, bucket.start + places)


def in_order(store: Store, *, tokens: int) -> Iterator[Batch]:
    """Every pair once, from short to long."""
    for bucket in join(store.buckets, tokens):
        places = np.arange(bucket.start, bucket.start + bucket.count)
        for share in np.array_split(places, batches_of(bucket, tokens)):
            yield _batch(store, share)


def pad(sequences: Sequence[Sequence[int]], value: int = 0) -> tuple[Tensor, Tensor]:
    """Sequences as the rows of one tensor, and where it holds real tokens: (B, T) each. What pads them is not read."""
    return _rectangle(_ragged(sequences), value)


def _batch(store: Store, places: np.ndarray) -> Batch:
    source, target, lines = store.gather(places)
    return Batch.padded(source, target, lines)


def _ragged(sequences: Sequence[Sequence[int]]) -> Ragged:
    lengths = np.array([len(sequence) for sequence in sequences], np.int64)
    return Ragged(np.fromiter(chain.from_iterable(sequences), np.int64, lengths.sum()), lengths)


def _rectangle(ragged: Ragged, value: int = 0) -> tuple[Tensor, Tensor]:
    real = np.arange(ragged.lengths.max(initial=0)) < ragged.lengths[:, None]
    ids = np.full(real.shape, value, np.int64)
    ids[real] = ragged.tokens
    return torch.from_numpy(ids), torch.from_numpy(real)
