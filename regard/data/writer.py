"""Writing a token store: pairs come in any order and leave in buckets, with little in memory at any time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import numpy as np

from regard.data.bucket import assign
from regard.data.shuffle import shuffled

FORMAT = 1
RECORD = np.dtype([("start", "<i8"), ("source", "<u4"), ("target", "<u4"), ("line", "<i8")])
CHUNK = 1 << 23  # tokens of a side sorted at once, at most
CLASSES = 1024  # of lengths, at most


class Writer:
    """Takes encoded pairs block by block, then sorts them into buckets."""

    def __init__(self, folder: Path, *, vocabulary: int, longest: int) -> None:
        self.folder = folder
        self.dtype = np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")
        self.draft = Pile(folder, self.dtype, "draft.")
        self._unit = 1 + longest // CLASSES
        self._counts = np.zeros((1 + longest // self._unit,) * 2, np.int64)
        self._chunk = 1 + CHUNK // longest
        self._hash = blake2b(f"{FORMAT} {self.dtype}".encode(), digest_size=16)

    def sign(self, data: bytes) -> None:
        """Make this part of the fingerprint."""
        self._hash.update(data)

    def add(self, tokens: np.ndarray, records: np.ndarray) -> None:
        """Pairs one behind the other, and the record of each."""
        self.draft.add(tokens, records)
        np.add.at(self._counts, self._classes(records), 1)
        self.sign(tokens.astype("<u4").tobytes())
        self.sign(records[["source", "target"]].tobytes())

    def finish(self) -> None:
        """Pile upon pile, then store.json, without which it is no store."""
        pairs = Pile(self.folder, self.dtype)
        buckets = []
        for pile in self._sort():
            longest = np.zeros(2, np.int64)
            for tokens, records in pile.chunks(self._chunk):
                pairs.add(tokens, records)
                longest = np.maximum(longest, (records["source"].max(), records["target"].max()))
            if pile.count:
                buckets.append((pairs.count - pile.count, pile.count, *longest.tolist()))
            pile.remove()
        about = {
            "format": FORMAT,
            "pairs": pairs.count,
            "tokens": pairs.size,
            "bytes": self.dtype.itemsize,
            "buckets": buckets,
            "fingerprint": self._hash.hexdigest(),
        }
        (self.folder / "store.json").write_text(json.dumps(about), "utf-8")

    def _sort(self) -> list[Pile]:
        """A pile for each bucket. Chunks are shuffled, so that neighbours in a pile are none in the corpus."""
        bucket = assign(self._counts)
        piles = [Pile(self.folder, self.dtype, f"{which}.") for which in range(bucket.max() + 1)]
        for turn, (tokens, records) in enumerate(self.draft.chunks(self._chunk)):
            first = records["start"][0]
            records = records[shuffled(np.arange(len(records)), len(records), f"chunk {turn}")]
            numbers = bucket[self._classes(records)]
            for which in np.unique(numbers):
                some = records[numbers == which]
                piles[which].add(tokens[spans(some["start"] - first, _lengths(some))], some)
        self.draft.remove()
        return piles

    def _classes(self, records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return records["target"] // self._unit, records["source"] // self._unit


class Pile:
    """Tokens and records of pairs, appended to two files and read back in the same order."""

    def __init__(self, folder: Path, dtype: np.dtype, prefix: str = "") -> None:
        self.files = folder / f"{prefix}tokens", folder / f"{prefix}listing"
        self.dtype = dtype
        self.count = self.size = 0

    def add(self, tokens: np.ndarray, records: np.ndarray) -> None:
        """The records learn where they begin."""
        lengths = _lengths(records)
        records["start"] = self.size + np.cumsum(lengths) - lengths
        for path, array in zip(self.files, (tokens.astype(self.dtype), records), strict=True):
            with path.open("ab") as file:
                file.write(array.tobytes())
        self.count += len(records)
        self.size += len(tokens)

    def chunks(self, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        if not self.count:
            return
        with self.files[0].open("rb") as tokens, self.files[1].open("rb") as listing:
            while len(records := np.fromfile(listing, RECORD, count)):
                yield np.fromfile(tokens, self.dtype, _lengths(records).sum()), records

    def remove(self) -> None:
        for path in self.files:
            path.unlink(missing_ok=True)


def spans(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """start, start + 1, … of each sequence, one behind the other."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - ends + lengths, lengths) + np.arange(lengths.sum())


def _lengths(records: np.ndarray) -> np.ndarray:
    """Tokens of each pair, the beginning mark included."""
    return records["source"].astype(np.int64) + 1 + records["target"]
