"""The answer to a question is a part of a passage: where it begins and where it ends (Devlin et al. 2019, 4.2).

    p(begins at i) = softmax over the window (s · hᵢ)        p(ends at j) = softmax over the window (e · hⱼ)
    loss = -½ (log p(begins) + log p(ends))                  score of i…j = s · hᵢ + e · hⱼ,   i ≤ j < i + limit

The softmax is over all real tokens of a window, question and marks too, as in the authors' code; theirs includes the
padding, ours does not. Where the answer is not in the window, it begins and ends at the begin mark; so the score of the
begin mark is that of "no answer", and of several windows the least counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.head import Loss
from regard.data.batch import pad
from regard.data.forms import lengthen, longer
from regard.data.lengths import Lengths, in_order
from regard.data.pieces import Pieces, pieces
from regard.data.tokenizer import Marks, Tokenizer
from regard.data.windows import Cut, Window, Windows
from regard.errors import DataError
from regard.metrics import Measure
from regard.metrics.squad import best_threshold, exact, overlap, squad
from regard.tasks import Steady

Progress: TypeAlias = Callable[[int, int], None]  # done, of how many

MEASURES = ("loss", "exact", "f1")
OF_BOTH_KINDS = ("exact_with", "f1_with", "exact_without", "f1_without", "best_exact", "best_f1", "threshold")


@dataclass(frozen=True, eq=False)
class SpanBatch:
    """Windows side by side, padded to the longest among them."""

    words: Tensor  # (B, T) begin question end passage end
    real: Tensor  # (B, T)
    segments: Tensor  # (B, T) 0 for the question, 1 for the passage and its end
    spans: Tensor  # (B, 2) where the answer begins and ends; 0, 0 where it is not inside
    ids: tuple[int, ...]  # numbers of the questions
    tokens: int  # real ones: each is asked whether the answer begins or ends there

    @property
    def count(self) -> int:
        """What the loss is summed over."""
        return len(self.ids)

    def steady(self, longest: int | None = None) -> SpanBatch:
        """The same in one of few shapes."""
        length = longer(self.words.shape[1], longest)
        words, real, segments = (lengthen(t, length) for t in (self.words, self.real, self.segments))
        return replace(self, words=words, real=real, segments=segments)

    def to(self, device: torch.device | str) -> SpanBatch:
        names = "words", "real", "segments", "spans"
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    @classmethod
    def of(cls, windows: Sequence[Window], marks: Marks) -> SpanBatch:
        words, real = pad([window.tokens.tolist() for window in windows], marks.pad)
        passages = torch.tensor([window.passage for window in windows])
        segments = (torch.arange(words.shape[1]) >= passages[:, None]) & real
        spans = torch.tensor([(window.start, window.end) for window in windows])
        numbers = tuple(window.question for window in windows)
        return cls(words, real, segments.long(), spans, numbers, int(real.sum()))


class Spanned(NamedTuple):
    """A part of a passage, by its tokens, `last` included."""

    score: float
    first: int
    last: int


@dataclass(frozen=True)
class Answered:
    """What a passage answers: text = passage[start:end]; "" where it seems to have no answer."""

    text: str
    start: int
    end: int
    score: float
    probability: float  # among the best that were found
    others: tuple[Answered, ...] = ()  # the next best


class Span(Steady):
    """The task: windows in training, answers to whole questions in evaluation."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        train: Windows,
        held: dict[str, Windows],
        *,
        tokens: int,
        rows: int = 0,
        seed: int,
        settings: Any,
    ) -> None:
        self.tokenizer, self.train, self.held = tokenizer, train, held
        self.tokens, self.settings = tokens, settings
        self.batches = Lengths(train.lengths, tokens=tokens, rows=rows, seed=seed)
        self.fingerprint = train.fingerprint

    def batch(self, split: str, step: int, rank: int = 0, world: int = 1) -> SpanBatch:
        if split != "train":
            raise ValueError(f"only training draws batches by step; {split!r} is read in order")
        places = self.batches.batch(step, rank, world)
        return SpanBatch.of([self.train[place] for place in places], self.tokenizer.marks)

    def epoch(self, step: int, world: int = 1) -> float:
        return self.batches.epoch(step, world)

    def cost(self, model: nn.Module, batch: SpanBatch, before: Any) -> Loss:
        """Summed over windows."""
        return Loss(surprise(edges(model, batch), batch).sum(), len(batch.words))

    def evaluate(self, model: nn.Module, split: str, progress: Progress | None = None) -> dict[str, float]:
        if split not in self.held:
            return {}
        return measure(model, self.held[split], self.settings, tokens=self.tokens, progress=progress)


def edges(model: nn.Module, batch: SpanBatch) -> Tensor:
    """How well the answer begins (0) and ends (1) at each token: (B, T, 2), -inf at padding."""
    hidden = model(batch.words, batch.real, batch.segments)
    scores = model.labels(hidden).float()  # type: ignore[operator]
    return scores.masked_fill(~batch.real[..., None], -torch.inf)


def surprise(scores: Tensor, batch: SpanBatch) -> Tensor:
    """The loss of each window, (B,)."""
    lost = F.cross_entropy(scores.transpose(1, 2).flatten(0, 1), batch.spans.flatten(), reduction="none")
    return lost.view(-1, 2).mean(1)


# ---- from scores to answers


def best_spans(scores: Tensor, windows: Sequence[Window], *, nbest: int, limit: int) -> list[list[Spanned]]:
    """Of each window the best parts of the passage, the best first: the `nbest` beginnings with the `nbest` ends.

    An answer must begin at a token that counts in this window, and has at most `limit` tokens.
    """
    shifts = [window.passage - window.part.first for window in windows]
    homes = [(w.part.home + shift, w.part.away + shift) for w, shift in zip(windows, shifts, strict=True)]
    begin, i = _top(scores[..., 0], homes, nbest)
    end, j = _top(scores[..., 1], [(w.passage, w.passage + w.part.length) for w in windows], nbest)
    length = j[:, None, :] - i[:, :, None]
    sums = (begin[:, :, None] + end[:, None, :]).masked_fill((length < 0) | (length >= limit), -torch.inf)
    best = sums.flatten(1).topk(min(nbest, sums[0].numel()))
    first, last = i.gather(1, best.indices // j.shape[1]), j.gather(1, best.indices % j.shape[1])
    rows = zip(best.values.tolist(), first.tolist(), last.tolist(), shifts, strict=True)
    return [
        [Spanned(score, a - shift, b - shift) for score, a, b in zip(*row, strict=True) if score > -torch.inf]
        for *row, shift in rows
    ]


def _top(scores: Tensor, within: list[tuple[int, int]], count: int) -> tuple[Tensor, Tensor]:
    """The best scores of each row and their places, from the first to before the second that is given for the row."""
    place = torch.arange(scores.shape[1], device=scores.device)
    first, end = torch.tensor(within, device=scores.device).T[..., None]
    found = scores.masked_fill((place < first) | (place >= end), -torch.inf).topk(min(count, scores.shape[1]))
    return found.values, found.indices


class Found(NamedTuple):
    """What the windows of a question say together."""

    spans: list[Spanned]  # the best first
    nothing: float  # score of no answer: the least of all windows


@torch.inference_mode()
def search(
    model: nn.Module,
    windows: Windows | Sequence[Window],
    lengths: np.ndarray,
    marks: Marks,
    settings: Any,
    *,
    tokens: int = 4096,
    progress: Progress | None = None,
) -> tuple[dict[int, Found], float]:
    """What is found for each question, by its number, and the summed loss of the windows."""
    device = next(model.parameters()).device
    found: dict[int, Found] = {}
    lost, done = 0.0, 0
    for places in in_order(lengths, tokens=tokens):
        some = [windows[place] for place in places]
        batch = SpanBatch.of(some, marks).to(device)
        scores = edges(model, batch)
        lost += float(surprise(scores, batch).double().sum())
        nothing = scores[:, 0].sum(-1).tolist()
        best = best_spans(scores, some, nbest=settings.nbest, limit=settings.answer)
        for window, spans, none in zip(some, best, nothing, strict=True):
            before = found.get(window.question, Found([], float("inf")))
            merged = sorted(before.spans + spans, key=lambda span: -span.score)[: settings.nbest]
            found[window.question] = Found(merged, min(before.nothing, none))
        done += len(places)
        if progress is not None:
            progress(done, len(lengths))
    return found, lost


def measure(
    model: nn.Module, windows: Windows, settings: Any, *, tokens: int = 4096, progress: Progress | None = None
) -> dict[str, float]:
    """Loss of the windows; exact match and F1 of the questions; where some have no answer, the best threshold too."""
    found, lost = search(model, windows, windows.lengths, windows.marks, settings, tokens=tokens, progress=progress)
    asked = list(enumerate(windows.questions))
    ranked = [rank(question.passage, windows.passage(n), found[n].spans) for n, question in asked]
    doubts = [doubt(answers, found[n].nothing) for n, answers in enumerate(ranked)]
    best = [answers[0].text if answers else "" for answers in ranked]
    given = [
        "" if settings.impossible and doubted > settings.threshold else text
        for text, doubted in zip(best, doubts, strict=True)
    ]
    references = [[answer.text for answer in question.answers] for _, question in asked]
    halves = "half the negative log-likelihoods of where the answer begins and where it ends"
    loss = Measure(lost / len(windows), f"{halves}, mean over {len(windows)} windows")
    measures: dict[str, float] = {"loss": loss, **squad(given, references)}
    return {**measures, **_at_best(doubts, best, references)} if settings.impossible else measures


def _at_best(doubts: list[float], best: list[str], references: list[list[str]]) -> dict[str, Measure]:
    """What another threshold could have given, chosen in sight of the references."""
    _, hits = best_threshold(doubts, best, references, exact)
    threshold, words = best_threshold(doubts, best, references, overlap)
    return {
        "best_exact": Measure(hits, "exact match at the threshold that suits these questions best, in %"),
        "best_f1": Measure(words, "F1 at the threshold that suits these questions best, in %"),
        "threshold": Measure(threshold, "the threshold that gives these questions the best F1"),
    }


def rank(passage: str, tokens: Pieces, spans: Sequence[Spanned]) -> list[Answered]:
    """The answers that spans say, the best first; of those that say the same, the best one."""
    answers: dict[str, Answered] = {}
    for score, first, last in spans:
        start = int(tokens.starts[first])
        text = passage[start : int(tokens.ends[last])].rstrip()
        if text:  # a token can be white space alone
            answers.setdefault(text, Answered(text, start, start + len(text), score, 0.0))
    return [*answers.values()]


def doubt(answers: Sequence[Answered], nothing: float) -> float:
    """How much better no answer is than the best."""
    return nothing - answers[0].score if answers else float("inf")


# ---- asking a trained model


def answer(
    model: nn.Module,
    tokenizer: Tokenizer,
    asked: Sequence[tuple[str, str]],
    settings: Any,
    *,
    longest: int,
    tokens: int = 4096,
    progress: Progress | None = None,
) -> list[Answered]:
    """Answers to questions about passages, (question, passage) each, in the order in which they came."""
    for number, pair in enumerate(asked, 1):
        if len(pair) != 2:
            raise DataError(f"input {number} has {len(pair)} text{'s' * (len(pair) != 1)}; give question and passage")
        if not all(text.strip() for text in pair):
            raise DataError(
                f"input {number} is no question with a passage; give both, with a tab between, or as a pair"
            )
    cut = Cut(longest, settings.question, settings.stride)
    queries, passages = (pieces(tokenizer, texts) for texts in zip(*asked, strict=True)) if asked else ([], [])
    windows = [
        window
        for number, (query, passage) in enumerate(zip(queries, passages, strict=True))
        for window in cut.windows(query.ids, passage, None, tokenizer.marks, number)
    ]
    lengths = np.array([len(window.tokens) for window in windows], np.int64)
    found, _ = search(model, windows, lengths, tokenizer.marks, settings, tokens=tokens, progress=progress)
    return [
        choose(rank(text, passages[n], found[n].spans), found[n].nothing, settings) for n, (_, text) in enumerate(asked)
    ]


def choose(answers: Sequence[Answered], nothing: float, settings: Any) -> Answered:
    """The best answer with the others behind it; or none, where that is better by more than the threshold."""
    ranked = list(answers)
    if settings.impossible or not ranked:
        silent = Answered("", 0, 0, nothing, 0.0)
        ranked.insert(0 if doubt(answers, nothing) > settings.threshold else len(ranked), silent)
    shares = torch.tensor([one.score for one in ranked], dtype=torch.float64).softmax(0).tolist()
    best, *others = (replace(one, probability=share) for one, share in zip(ranked, shares, strict=True))
    return replace(best, others=tuple(others))
