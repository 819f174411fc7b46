"""A question and a passage as windows that a model can hold:  begin question end part-of-the-passage end.

A long passage is read in overlapping parts. A token near the edge of a part lacks context there, so it counts only in
the one where it has most of it (Devlin et al. 2019): where min(left, right) + 0.01 · tokens of the part is largest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from regard.data.arrays import Arrays
from regard.data.pieces import Pieces, pieces
from regard.data.squad import Answer, Question
from regard.data.tokenizer import Marks, Tokenizer
from regard.errors import ConfigError

MARKS = 3  # of a window: begin, end, end
BLOCK = 256  # passages encoded at once
LETTERS = np.dtype([("start", "<u4"), ("end", "<u4")])
ASKED = np.dtype([("query", "<i8"), ("passage", "<i8"), ("asked", "<u4"), ("told", "<u4")])
WINDOW = np.dtype([(name, "<i4") for name in ("question", "first", "length", "home", "away", "start", "end")])


class Part(NamedTuple):
    """Some tokens of a passage, and which of them count here: from `home` to before `away`."""

    first: int
    length: int
    home: int
    away: int


class Window(NamedTuple):
    """What a model reads. Positions count from the beginning of the window, (0, 0) says that the answer is not here."""

    tokens: np.ndarray
    passage: int  # where the part of the passage begins
    part: Part
    start: int
    end: int
    question: int  # its number


def parts(tokens: int, room: int, stride: int) -> list[Part]:
    """A passage of so many tokens in parts of at most `room`, each begun `stride` after the one before, if no gap."""
    spans = [(0, min(tokens, room))]
    while sum(spans[-1]) < tokens:
        first, length = spans[-1]
        first += min(length, stride)
        spans.append((first, min(tokens - first, room)))
    homes = _homes(spans, tokens)
    return [Part(*span, *home) for span, home in zip(spans, homes, strict=True)]


def _homes(spans: list[tuple[int, int]], tokens: int) -> Iterator[tuple[int, int]]:
    """From where to where the tokens have more context in this part than in any other; in equal cases, the first."""
    most, home = np.full(tokens, -np.inf), np.full(tokens, -1)
    for number, (first, length) in enumerate(spans):
        here = slice(first, first + length)
        context = _context(length)
        home[here][context > most[here]] = number
        most[here] = np.maximum(most[here], context)
    for number, (first, length) in enumerate(spans):
        own = first + np.flatnonzero(home[first : first + length] == number)
        yield (int(own[0]), int(own[-1]) + 1) if len(own) else (first, first)


def _context(length: int) -> np.ndarray:
    """Of each token of a part of this length."""
    place = np.arange(length)
    return np.minimum(place, place[::-1]) + 0.01 * length


@dataclass(frozen=True)
class Cut:
    """How questions and passages are cut: tokens of a window, of a question at most, and from window to window."""

    longest: int
    query: int
    stride: int

    def __post_init__(self) -> None:
        if self.longest - self.query - MARKS < 1:
            short = f"data.longest = {self.longest} leaves no room for a passage beside task.question = {self.query}"
            most = f"write data.longest = {self.query + MARKS + 1} or more, or a smaller task.question"
            raise ConfigError(f"{short}; {most}")

    def windows(
        self, query: np.ndarray, passage: Pieces, answer: Answer | None, marks: Marks, question: int
    ) -> list[Window]:
        """All windows of a question. Where the answer is not inside as a whole, the begin mark stands for it."""
        query = query[: min(self.query, self.longest - _before(marks) - 2)]
        span = None if answer is None else passage.about(answer.start, answer.start + len(answer.text))
        found = []
        first = len(query) + _before(marks)
        for part in parts(len(passage.ids), self.longest - first - 1, self.stride):
            tokens = _tokens(query, passage.ids[part.first : part.first + part.length], marks)
            found.append(Window(tokens, first, part, *_target(span, part, first), question))
        return found


def _tokens(query: np.ndarray, part: np.ndarray, marks: Marks) -> np.ndarray:
    return np.concatenate(([marks.begin], query, [marks.end, *marks.between], part, [marks.end])).astype(np.int64)


def _before(marks: Marks) -> int:
    """How many stand before the passage, besides the question."""
    return 2 + len(marks.between)


def _target(span: tuple[int, int] | None, part: Part, passage: int) -> tuple[int, int]:
    if span is None or span[0] < part.first or span[1] >= part.first + part.length:
        return 0, 0
    shift = passage - part.first
    return span[0] + shift, span[1] + shift


class Windows:
    """The windows of many questions, on disk. Questions and passages are kept once, and put together when asked for.

    tokens   of each passage, and of the questions about it
    letters  where each token begins and ends in its text
    asked    of each question: where its tokens and those of its passage begin, and how many they are
    listing  of each window: its question, its part of the passage, the answer
    texts    the questions as they were read, to measure by
    """

    def __init__(self, data: Arrays, marks: Marks) -> None:
        self.data, self.marks, self.fingerprint = data, marks, data.fingerprint
        queries = data["asked"]["asked"][data["listing"]["question"]]
        self.lengths = np.asarray(queries + data["listing"]["length"] + _before(marks) + 1, np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, place: int) -> Window:
        question, *part, start, end = self.data["listing"][place].item()
        query, passage, asked, _ = self.data["asked"][question].item()
        where, tokens = Part(*part), self.data["tokens"]
        first = passage + where.first
        words = _tokens(tokens[query : query + asked], tokens[first : first + where.length], self.marks)
        return Window(words, asked + _before(self.marks), where, start, end, question)

    def passage(self, question: int) -> Pieces:
        """The tokens of what a question is about, and where they stand in its text."""
        _, first, _, count = self.data["asked"][question].item()
        letters = self.data["letters"][first : first + count]
        return Pieces(self.data["tokens"][first : first + count], letters["start"], letters["end"])

    @cached_property
    def questions(self) -> list[Question]:
        passages, questions = json.loads(self.data["texts"].tobytes())
        return [
            Question(name, text, passages[passage], tuple(Answer(*answer) for answer in answers))
            for name, text, passage, answers in questions
        ]

    @classmethod
    def build(
        cls,
        folder: Path,
        questions: Iterable[Question],
        tokenizer: Tokenizer,
        cut: Cut,
        progress: Callable[[int], None] | None = None,
    ) -> Windows:
        draft = _Draft()
        told = ([*about] for _, about in groupby(questions, key=lambda question: question.passage))
        while block := list(islice(told, BLOCK)):
            draft.add(block, tokenizer, cut)
            if progress:
                progress(len(draft.questions))
        made = {"tokenizer": tokenizer.fingerprint, **asdict(cut)}
        return cls(Arrays.build(folder, draft.arrays(), made), tokenizer.marks)

    @classmethod
    def open(cls, folder: Path, marks: Marks) -> Windows:
        return cls(Arrays.open(folder), marks)


class _Draft:
    """What has been encoded so far."""

    def __init__(self) -> None:
        self.pieces: list[Pieces] = []
        self.size = 0  # in tokens
        self.asked: list[tuple[int, int, int, int]] = []
        self.listing: list[tuple[int, ...]] = []
        self.passages: list[str] = []
        self.questions: list[tuple[str, str, int, tuple[Answer, ...]]] = []

    def add(self, block: list[list[Question]], tokenizer: Tokenizer, cut: Cut) -> None:
        """Questions by passage; many texts are encoded faster together."""
        texts = [text for about in block for text in (about[0].passage, *(question.text for question in about))]
        encoded = iter(pieces(tokenizer, texts))
        for about in block:
            passage = next(encoded)
            where = self._keep(passage)
            self.passages.append(about[0].passage)
            for question in about:
                query = Pieces(*(column[: cut.query] for column in next(encoded)))
                self.asked.append((self._keep(query), where, len(query.ids), len(passage.ids)))
                self._cut(question, query, passage, tokenizer.marks, cut)

    def _cut(self, question: Question, query: Pieces, passage: Pieces, marks: Marks, cut: Cut) -> None:
        number, answer = len(self.questions), question.answers[0] if question.answers else None
        self.questions.append((question.id, question.text, len(self.passages) - 1, question.answers))
        for window in cut.windows(query.ids, passage, answer, marks, number):
            self.listing.append((number, *window.part, window.start, window.end))

    def _keep(self, tokens: Pieces) -> int:
        self.pieces.append(tokens)
        self.size += len(tokens.ids)
        return self.size - len(tokens.ids)

    def arrays(self) -> dict[str, np.ndarray]:
        ids, starts, ends = (np.concatenate(column) for column in zip(*self.pieces, strict=True))
        letters = np.empty(self.size, LETTERS)
        letters["start"], letters["end"] = starts, ends
        return {
            "tokens": ids.astype("<u4"),
            "letters": letters,
            "asked": np.array(self.asked, ASKED),
            "listing": np.array(self.listing, WINDOW),
            "texts": np.frombuffer(json.dumps([self.passages, self.questions]).encode(), np.uint8),
        }
