"""Each word gets a tag: parts of speech, or the entities that a text names.

p(tag of a word) = softmax(W h + b)   at the first token of the word; its other tokens are not asked
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.head import Loss
from regard.data.batch import pad
from regard.data.forms import lengthen, longer
from regard.data.lengths import Lengths, in_order
from regard.data.tokenizer import Marks, Tokenizer
from regard.data.words import NONE, Row, Words, rows, spell
from regard.metrics import Measure
from regard.metrics.entities import entities, entity_scores, tag_accuracy
from regard.tasks import Steady

Progress: TypeAlias = Callable[[int, int], None]  # done, of how many

MEASURES = ("loss", "accuracy", "precision", "recall", "f1")
PLAIN_MEASURES = ("loss", "accuracy")
LETTER = r"[\w\u0300-\u036f]"  # with the accents that stand behind a letter
# U.N. · all-rounder, 3.5, AT&T, 1996-08-22 · 's · any other sign by itself
WORD = re.compile(rf"(?:\w\.){{2,}}|{LETTER}+(?:[-.,&/:]{LETTER}+)*|['’]{LETTER}+|[^\w\s]")


@dataclass(frozen=True, eq=False)
class TagBatch:
    """Sequences side by side, padded to the longest among them."""

    words: Tensor  # (B, T) begin … end
    real: Tensor  # (B, T)
    labels: Tensor  # (B, T) at the first token of each word; NONE elsewhere
    ids: tuple[int, ...]  # lines in the data
    tokens: int  # words that get a tag

    @property
    def count(self) -> int:
        """What the loss is summed over."""
        return self.tokens

    def steady(self, longest: int | None = None) -> TagBatch:
        """The same in one of few shapes."""
        length = longer(self.words.shape[1], longest)
        words, real = (lengthen(t, length) for t in (self.words, self.real))
        return replace(self, words=words, real=real, labels=lengthen(self.labels, length, NONE))

    def to(self, device: torch.device | str) -> TagBatch:
        return replace(self, **{name: getattr(self, name).to(device) for name in ("words", "real", "labels")})

    @classmethod
    def of(cls, some: Sequence[Row], marks: Marks) -> TagBatch:
        words, real = pad([row.tokens.tolist() for row in some], marks.pad)
        labels, _ = pad([row.labels.tolist() for row in some], NONE)
        return cls(words, real, labels, tuple(row.line for row in some), int((labels != NONE).sum()))


@dataclass(frozen=True)
class Named:
    """An entity of a text: text = the text's letters from `start` to before `end`."""

    text: str
    kind: str
    start: int
    end: int


@dataclass(frozen=True)
class Tagged:
    """A sentence, word by word, and the entities that its tags spell."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    entities: tuple[Named, ...] = ()


class Tag(Steady):
    """The task. `labels` are all tags, in the order in which the model numbers them."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        train: Words,
        held: dict[str, Words],
        *,
        tokens: int,
        rows: int = 0,
        seed: int,
        settings: Any,
    ) -> None:
        self.tokenizer, self.train, self.held = tokenizer, train, held
        self.labels, self.tokens, self.settings = train.labels, tokens, settings
        self.batches = Lengths(train.lengths, tokens=tokens, rows=rows, seed=seed)
        self.fingerprint = train.fingerprint

    def batch(self, split: str, step: int, rank: int = 0, world: int = 1) -> TagBatch:
        if split != "train":
            raise ValueError(f"only training draws batches by step; {split!r} is read in order")
        places = self.batches.batch(step, rank, world)
        return TagBatch.of([self.train[place] for place in places], self.tokenizer.marks)

    def epoch(self, step: int, world: int = 1) -> float:
        return self.batches.epoch(step, world)

    def cost(self, model: nn.Module, batch: TagBatch, before: Any) -> Loss:
        """Summed over words. All tokens are told a tag: how many of them begin a word, the host need not ask."""
        scores: Tensor = model.labels(model(batch.words, batch.real, None))  # type: ignore[operator]
        flat, wanted = scores.float().flatten(0, 1), batch.labels.flatten()
        return Loss(F.cross_entropy(flat, wanted, ignore_index=NONE, reduction="sum"), batch.count)

    def evaluate(self, model: nn.Module, split: str, progress: Progress | None = None) -> dict[str, float]:
        if split not in self.held:
            return {}
        marks = self.tokenizer.marks
        return measure(model, self.held[split], marks, self.settings, tokens=self.tokens, progress=progress)


def tell(model: nn.Module, batch: TagBatch) -> Tensor:
    """How well each label fits each word, (words, labels), sentence by sentence."""
    hidden = model(batch.words, batch.real, None)
    scores: Tensor = model.labels(hidden[batch.labels != NONE])  # type: ignore[operator]
    return scores.float()


@torch.inference_mode()
def search(
    model: nn.Module,
    found: Words | Sequence[Row],
    lengths: np.ndarray,
    marks: Marks,
    *,
    tokens: int = 4096,
    progress: Progress | None = None,
) -> tuple[list[np.ndarray], float]:
    """The best label of each word of each sequence, and the summed loss."""
    device = next(model.parameters()).device
    best: list[np.ndarray] = [np.empty(0)] * len(lengths)
    lost, done = 0.0, 0
    for places in in_order(lengths, tokens=tokens):
        batch = TagBatch.of([found[place] for place in places], marks).to(device)
        scores = tell(model, batch)
        asked = batch.labels != NONE
        lost += float(F.cross_entropy(scores, batch.labels[asked], reduction="sum"))
        told = scores.argmax(-1).cpu().numpy()
        for place, labels in zip(places, np.split(told, asked.sum(1).cumsum(0).tolist()[:-1]), strict=True):
            best[place] = labels
        done += len(places)
        if progress is not None:
            progress(done, len(lengths))
    return best, lost


def measure(
    model: nn.Module,
    found: Words,
    marks: Marks,
    settings: Any,
    *,
    tokens: int = 4096,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Loss and accuracy of words; of entities precision, recall and F1, unless the tags are plain."""
    best, lost = search(model, found, found.lengths, marks, tokens=tokens, progress=progress)
    every = [found[place] for place in range(len(found))]
    owners = [row.sentence for row in every]
    predicted = _whole(owners, best, found.labels)
    wanted = _whole(owners, [row.labels[row.labels != NONE] for row in every], found.labels)
    count = sum(map(len, wanted))
    measures: dict[str, float] = {
        "loss": Measure(lost / count, f"mean negative log-likelihood of the tags of {count} words"),
        "accuracy": tag_accuracy(predicted, wanted),
    }
    return measures if settings.scheme == "plain" else {**measures, **entity_scores(predicted, wanted)}


def _whole(owners: Sequence[int], parts: Sequence[np.ndarray], labels: Sequence[str]) -> list[list[str]]:
    """The tags of each sentence, from its sequences in their order."""
    sentences: list[list[str]] = [[] for _ in range(max(owners, default=-1) + 1)]
    for owner, numbers in zip(owners, parts, strict=True):
        sentences[owner] += [labels[number] for number in numbers]
    return sentences


# ---- asking a trained model


def tag(
    model: nn.Module,
    tokenizer: Tokenizer,
    sentences: Sequence[str | Sequence[str]],
    labels: Sequence[str],
    settings: Any,
    *,
    longest: int,
    tokens: int = 4096,
    progress: Progress | None = None,
) -> list[Tagged]:
    """Tags for each sentence, in order. A sentence is a text or a list of words; entities point into the text, or into
    the words with a space between them.
    """
    texts = [sentence if isinstance(sentence, str) else " ".join(sentence) for sentence in sentences]
    spans = [split(one) if isinstance(one, str) else _listed(one) for one in sentences]
    words = [[text[a:b] for a, b in some] for text, some in zip(texts, spans, strict=True)]
    found = [
        row
        for number, spelt in enumerate(spell(tokenizer, words))
        for row in rows(spelt, [0] * len(spelt), tokenizer.marks, longest=longest, sentence=number)
    ]
    lengths = np.array([len(row.tokens) for row in found], np.int64)
    best, _ = search(model, found, lengths, tokenizer.marks, tokens=tokens, progress=progress)
    told = _whole([row.sentence for row in found], best, labels)
    told += [[] for _ in range(len(sentences) - len(told))]
    plain = settings.scheme == "plain"
    return [
        Tagged(tuple(some), tuple(tags), () if plain else _named(text, where, tags))
        for text, where, some, tags in zip(texts, spans, words, told, strict=True)
    ]


def split(text: str) -> list[tuple[int, int]]:
    """Where the words and signs of a running text begin and end."""
    return [match.span() for match in WORD.finditer(text)]


def _listed(words: Sequence[str]) -> list[tuple[int, int]]:
    ends = np.cumsum([len(word) + 1 for word in words]).tolist()
    return [(end - 1 - len(word), end - 1) for word, end in zip(words, ends, strict=True)]


def _named(text: str, spans: Sequence[tuple[int, int]], tags: Sequence[str]) -> tuple[Named, ...]:
    found = [(entity.kind, spans[entity.first][0], spans[entity.last][1]) for entity in entities(tags)]
    return tuple(Named(text[start:end], kind, start, end) for kind, start, end in found)
