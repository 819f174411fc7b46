"""Documents to sequences: `[begin] A [end] B [end]`, where B follows A in its document or comes from another one.

As in BERT (Devlin et al. 2019): neighbouring sentences are collected until they fill a sequence, and parted at random
into A and B. Half of the time B is replaced by sentences from another document, and what it would have been is put back
for the next sequence; so is it always where there is one sentence alone. What is too long is cut, token by token, at a
random end of the longer side.

How many sequences there are depends on these draws, so they are made beforehand: a layout is one pass over the
documents, written to disk as a record for each sequence (where A and B begin among the tokens, and how long they are).
Each epoch shows one of several layouts, in batches of similar lengths and an order of its own. A batch is read in a
time that does not depend on the size of the data, and is a pure function of (seed, step, rank, world).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from random import Random
from typing import NamedTuple

import numpy as np

from regard.data.documents import Documents
from regard.data.lengths import Lengths
from regard.data.store import AGAIN, Mapped, beside
from regard.data.tokenizer import Marks
from regard.data.writer import spans
from regard.errors import ConfigError, DataError

RECORD = np.dtype([("a", "<i8"), ("b", "<i8"), ("a_length", "<u4"), ("b_length", "<u4"), ("random", "u1")])
BLOCK = 1 << 16  # records at a time


@dataclass(frozen=True)
class How:
    """What a sequence is. `short` is the share of those that are collected to a random shorter length."""

    length: int
    pairs: bool = True
    short: float = 0.1

    @property
    def room(self) -> int:
        """Tokens of text."""
        return self.length - (3 if self.pairs else 2)


class Sequences(NamedTuple):
    """Some sequences side by side, padded to the longest; B × T."""

    tokens: np.ndarray
    real: np.ndarray
    segments: np.ndarray  # 1 in B and its end mark, else 0
    random: np.ndarray  # of each: 0 where B follows A, 1 where it does not


class Turn(NamedTuple):
    """What a step shows: some places of a layout."""

    epoch: int
    layout: int
    places: np.ndarray


class Layouts:
    """The sequences of some documents, laid out `count` times."""

    def __init__(self, documents: Documents, how: How, *, count: int, seed: int) -> None:
        if how.pairs and len(documents) < 2:
            needs = "a random next segment comes from another document"
            ways = "part the text by blank lines, or set task.next_sentence = false"
            raise DataError(f"{documents.folder.name}: one document, but {needs}; {ways}")
        self.documents, self.how, self.seed = documents, how, seed
        self.batches: dict[tuple[int, int], list[Lengths]] = {}
        name = f"{'pairs' if how.pairs else 'single'}-{how.length}-{how.short:g}-{count}-{seed}"
        folder = documents.folder / name
        if not folder.exists():
            with beside(folder) as work:
                for number in range(count):
                    with (work / str(number)).open("wb") as file:
                        walk = _walk(documents, how, Random(f"{seed} {name} {number}"))
                        while block := list(islice(walk, BLOCK)):
                            file.write(np.array(block, RECORD).tobytes())
        try:
            self.records = [Mapped(folder / str(number), RECORD) for number in range(count)]
        except (OSError, ValueError) as error:
            raise DataError(f"{folder}: cannot be read as sequences ({error}); {AGAIN}") from None

    def lengths(self, layout: int) -> np.ndarray:
        """Of each sequence, its marks included."""
        return self._lengths(self.records[layout].array)

    def counts(self) -> np.ndarray:
        """How many sequences there are of each length, in all layouts."""
        found = np.zeros(self.how.length + 1, np.int64)
        for records in self.records:
            for start in range(0, len(records.array), BLOCK):
                lengths = self._lengths(records.array[start : start + BLOCK])
                found += np.bincount(lengths, minlength=len(found))
            records.let_go()
        return found

    def turn(self, step: int, rank: int, world: int, *, tokens: int, rows: int = 0) -> Turn:
        """Which sequences one of `world` processes learns from at a step, within its budget."""
        batches = self._batches(tokens, rows)
        ends = _ends(batches, world)
        cycle, step = divmod(step, ends[-1])
        layout = int(np.searchsorted(ends, step, side="right"))
        epoch, begin = cycle * len(ends) + layout, ends[layout - 1] if layout else 0
        return Turn(epoch, layout, batches[layout].turn(epoch, (step - begin) * world + rank))

    def epoch(self, step: int, world: int, *, tokens: int, rows: int = 0) -> float:
        """How often the documents have been seen before this step."""
        ends = _ends(self._batches(tokens, rows), world)
        cycle, step = divmod(step, ends[-1])
        return cycle * len(ends) + float(np.interp(step, [0, *ends], np.arange(len(ends) + 1)))

    def _batches(self, tokens: int, rows: int) -> list[Lengths]:
        """Of each layout, for this budget."""
        if (tokens, rows) not in self.batches:
            check(tokens, self.how.length)
            seed = f"{self.seed} {self.how.length}"
            each = (self.lengths(layout) for layout in range(len(self.records)))
            self.batches[tokens, rows] = [Lengths(some, tokens=tokens, rows=rows, seed=seed) for some in each]
        return self.batches[tokens, rows]

    def gather(self, layout: int, places: np.ndarray, marks: Marks) -> Sequences:
        records = self.records[layout].array[places]
        a, b = records["a_length"].astype(np.int64), records["b_length"].astype(np.int64)
        lengths = self._lengths(records)
        middle, last = a[:, None] + 1, lengths[:, None] - 1  # where the end marks stand
        at = np.arange(lengths.max())
        tokens = np.full((len(records), len(at)), marks.pad)
        tokens[:, 0] = marks.begin
        tokens[(at == middle) | (at == last)] = marks.end
        corpus = self.documents.tokens
        tokens[(at > 0) & (at < middle)] = corpus.array[spans(records["a"], a)]
        tokens[(at > middle) & (at < last)] = corpus.array[spans(records["b"], b)]
        corpus.let_go()
        self.records[layout].let_go()
        real = at <= last
        return Sequences(tokens, real, (real & (at > middle)).astype(np.int64), records["random"].astype(np.int64))

    def _lengths(self, records: np.ndarray) -> np.ndarray:
        marks = self.how.length - self.how.room
        return records["a_length"].astype(np.int64) + records["b_length"] + marks


def _ends(batches: Sequence[Lengths], world: int) -> list[int]:
    """The step at which each layout has been shown."""
    return list(accumulate(-(-len(some) // world) for some in batches))


def check(tokens: int, length: int) -> None:
    """A budget of tokens holds one sequence at least."""
    if length > tokens:
        either = f"write train.tokens = {length} or more, or data.longest = {tokens} or less"
        raise ConfigError(f"train.tokens = {tokens} cannot hold a sequence of {length} tokens; {either}")


def _walk(documents: Documents, how: How, chance: Random) -> Iterator[tuple[int, int, int, int, int]]:
    """The records of one layout: every sentence of every document goes into one A or one B that follows its A."""
    begins = documents.sentences.array

    def draw(count: int) -> int:
        return int(chance.random() * count)

    def reach(sentence: int, stop: int, tokens: int) -> int:
        """The sentence before which so many tokens have been collected, or `stop`; at least one is taken."""
        return min(stop, bisect_left(begins, int(begins[sentence]) + tokens, sentence + 1, stop + 1))

    def record(a: int, a_stop: int, b: int, b_stop: int, random: int) -> tuple[int, int, int, int, int]:
        """From numbers of sentences, cut to the room there is."""
        a, a_stop, b, b_stop = (int(begins[sentence]) for sentence in (a, a_stop, b, b_stop))
        a_length = min(a_stop - a, max(how.room - (b_stop - b), (how.room + 1) // 2))
        b_length = min(b_stop - b, how.room - a_length)
        a += chance.getrandbits(a_stop - a - a_length).bit_count()  # a coin for each token: off the front, or the back
        b += chance.getrandbits(b_stop - b - b_length).bit_count()
        return a, b, a_length, b_length, random

    for number in range(len(documents)):
        here, stop = documents.span(number)
        while here < stop:
            wanted = 2 + draw(how.room - 1) if chance.random() < how.short else how.room
            end = reach(here, stop, wanted)
            if not how.pairs:
                yield record(here, end, end, end, 0)
                here = end
                continue
            middle = here + 1 + draw(end - here - 1)
            if middle < end and chance.random() < 0.5:
                yield record(here, middle, middle, end, 0)
                here = end
                continue
            other = draw(len(documents) - 1)
            first, last = documents.span(other + (other >= number))
            b = first + draw(last - first)
            yield record(here, middle, b, reach(b, last, wanted - int(begins[middle] - begins[here])), 1)
            here = middle
