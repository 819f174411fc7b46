"""Sentences of tagged words as tokens: the label of a word stands at its first token, and its others have none.

A sentence that is too long for one sequence is read in several, cut between words, so that each word gets its label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from regard.data.arrays import Arrays
from regard.data.conll import Sentence
from regard.data.pieces import Pieces, pieces
from regard.data.text import BadLines, OnBad
from regard.data.tokenizer import Marks, Tokenizer
from regard.errors import DataError

MARKS = 2  # of a sequence: begin, end
NONE = -1  # the label of a token that does not begin a word
BLOCK = 4096  # sentences encoded at once
UNKNOWN = "with a tag that the labels lack"
RECORD = np.dtype([("start", "<i8"), ("count", "<u4"), ("sentence", "<u4"), ("line", "<i8")])


class Row(NamedTuple):
    """What a model reads of a sentence, begin tokens end, with the numbers of the labels."""

    tokens: np.ndarray
    labels: np.ndarray
    sentence: int  # its number
    line: int


def spell(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]) -> list[list[np.ndarray]]:
    """The tokens of each word of each sentence, spelt as in running text; a word without any is unknown."""
    found = pieces(tokenizer, [" ".join(words) for words in sentences])
    return [_by_word(words, text, tokenizer.marks) for words, text in zip(sentences, found, strict=True)]


def _by_word(words: Sequence[str], text: Pieces, marks: Marks) -> list[np.ndarray]:
    """A token belongs to the word in which it begins, white space alone to the word that follows."""
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])
    firsts = np.searchsorted(text.starts, starts)
    tokens = [text.ids[first:last] for first, last in pairwise(firsts)]
    nothing = np.array([marks.end if marks.unknown is None else marks.unknown])
    return [some if len(some) else nothing for some in tokens]


def cut(words: Sequence[np.ndarray], room: int) -> Iterator[tuple[int, int]]:
    """From which word to before which, so that each part has at most `room` tokens; a longer word stands alone."""
    first = size = 0
    for place, tokens in enumerate(words):
        if place > first and size + len(tokens) > room:
            yield first, place
            first, size = place, 0
        size += len(tokens)
    if words:
        yield first, len(words)


def rows(
    words: Sequence[np.ndarray], labels: Sequence[int], marks: Marks, *, longest: int, sentence: int, line: int = 0
) -> Iterator[Row]:
    """A sentence as sequences of at most `longest` tokens; of a word that is longer, as many as there is room for."""
    room = longest - MARKS
    for first, last in cut(words, room):
        tokens = np.concatenate(words[first:last])[:room]
        wanted = np.full(len(tokens), NONE)
        wanted[np.cumsum([0, *map(len, words[first : last - 1])])] = labels[first:last]
        yield Row(
            np.concatenate(([marks.begin], tokens, [marks.end])),
            np.concatenate(([NONE], wanted, [NONE])),
            sentence,
            line,
        )


class Words:
    """The sequences of many sentences, on disk.

    tokens, labels  of all sequences, one behind the other
    listing         of each sequence: where it begins, how long it is, its sentence and its line in the data
    """

    def __init__(self, data: Arrays) -> None:
        self.data, self.fingerprint = data, data.fingerprint
        self.labels: list[str] = data.about["labels"]
        self.lengths = data["listing"]["count"].astype(np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, place: int) -> Row:
        start, count, sentence, line = self.data["listing"][place].item()
        return Row(
            self.data["tokens"][start : start + count].astype(np.int64),
            self.data["labels"][start : start + count].astype(np.int64),
            sentence,
            line,
        )

    @classmethod
    def build(
        cls,
        folder: Path,
        sentences: Iterable[Sentence],
        tokenizer: Tokenizer,
        labels: Sequence[str],
        *,
        longest: int,
        bad: BadLines,
        on_bad: OnBad = "skip",
        progress: Callable[[int], None] | None = None,
    ) -> Words:
        """A sentence with a tag that is not among the labels is bad."""
        numbers = {label: number for number, label in enumerate(labels)}
        found: list[Row] = []
        count = 0
        waiting = (sentence for sentence in sentences if _known(sentence, numbers, bad, on_bad))
        while block := list(islice(waiting, BLOCK)):
            for sentence, words in zip(block, spell(tokenizer, [one.words for one in block]), strict=True):
                wanted, place = [numbers[tag] for tag in sentence.tags], {"sentence": count, "line": sentence.line}
                found += rows(words, wanted, tokenizer.marks, longest=longest, **place)
                count += 1
            if progress:
                progress(count)
        if not found:
            raise DataError(f"{bad.file}: no sentence is left ({bad}); give other data, or another task.scheme")
        about = {"labels": list(labels), "tokenizer": tokenizer.fingerprint, "longest": longest}
        return cls(Arrays.build(folder, _arrays(found), about))

    @classmethod
    def open(cls, folder: Path) -> Words:
        return cls(Arrays.open(folder))


def _known(sentence: Sentence, numbers: dict[str, int], bad: BadLines, on_bad: OnBad) -> bool:
    for tag in sentence.tags:
        if tag not in numbers:
            what = f"the sentence that begins here has the tag {tag!r}, but the labels are only: {', '.join(numbers)}"
            bad.add(UNKNOWN, sentence.line, what, on_bad=on_bad)
            return False
    return True


def _arrays(found: list[Row]) -> dict[str, np.ndarray]:
    counts = np.array([len(row.tokens) for row in found])
    listing = np.empty(len(found), RECORD)
    listing["start"], listing["count"] = np.cumsum(counts) - counts, counts
    listing["sentence"], listing["line"] = [row.sentence for row in found], [row.line for row in found]
    return {
        "tokens": np.concatenate([row.tokens for row in found]).astype("<u4"),
        "labels": np.concatenate([row.labels for row in found]).astype("<i4"),
        "listing": listing,
    }
