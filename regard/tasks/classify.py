"""Text in, a label or a number out: one new layer on the summary of what was read.

    label    p(label) = softmax(W·summary + b)                     one text, or a pair
    number   W·summary + b, squared error                          likewise
    choice   p(choice) = softmax over k of (w·summary_k + b)       what comes first, with each way to go on

A system that writes may go on learning to write meanwhile, on the same sequences: loss + λ·(loss of a language model,
a token), as Radford et al. 2018 have it in eq. 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.autoregressive import Autoregressive
from regard.core.head import Loss
from regard.data.layout import Arrange, Layout, both_orders, choices, for_encoder, lay_out, once
from regard.data.lengths import Lengths, in_order
from regard.data.readings import Batch, Readings
from regard.data.tokenizer import Tokenizer
from regard.errors import ConfigError, DataError
from regard.metrics import Measure
from regard.metrics.classes import accuracy, f1, matthews, pearson, spearman
from regard.tasks import Steady

Kind: TypeAlias = Literal["label", "number", "choice"]

USUAL: Mapping[str, tuple[str, ...]] = {
    "label": ("accuracy",),
    "choice": ("accuracy",),
    "number": ("pearson", "spearman"),
}
OF_LABELS: Mapping[str, Callable[..., Measure]] = {"accuracy": accuracy, "f1": f1, "matthews": matthews}
OF_NUMBERS: Mapping[str, Callable[..., Measure]] = {"pearson": pearson, "spearman": spearman}


@dataclass(frozen=True)
class Question:
    """What is asked: of so many texts, laid out in this way, one of these labels; or a number, where there are none."""

    kind: Kind
    texts: int
    labels: tuple[str, ...]
    layout: Layout

    @property
    def outputs(self) -> int:
        """How many the new layer has: one for each label, or a single score."""
        return len(self.labels) if self.kind == "label" else 1


@dataclass(frozen=True)
class Classified:
    """The likeliest label, and how likely each is."""

    label: str
    probabilities: dict[str, float]


class Classify(Steady):
    """The task: one loss for each example, and GLUE's measures."""

    def __init__(
        self,
        question: Question,
        train: Readings,
        held: Mapping[str, Readings],
        *,
        tokens: int,
        rows: int = 0,
        seed: int,
        task: Any,
    ) -> None:
        _check(question, train, task)
        self.question, self.train, self.held = question, train, held
        self.tokens, self.settings = tokens, task
        self.turns = Lengths(train.lengths, tokens=tokens, rows=rows, seed=seed)
        self.fingerprint = train.fingerprint

    def batch(self, split: str, step: int, rank: int = 0, world: int = 1) -> Batch:
        if split != "train":
            raise ValueError(f"only training draws batches by step; {split!r} is read in order")
        return self.train.batch(self.turns.batch(step, rank, world))

    def epoch(self, step: int, world: int = 1) -> float:
        return self.turns.epoch(step, world)

    def cost(self, model: nn.Module, batch: Batch, before: Any) -> Loss:
        """Summed over examples. Lengths in a batch are alike, so its mean loss a token, for each of its examples, is
        nearly what the authors of GPT have: the mean over each sequence, then over sequences.
        """
        hidden, examples = states(model, batch), len(batch.wanted)
        telling = lost(tell(model, hidden, batch, self.question.kind), batch.wanted).sum()
        if not self.settings.auxiliary:
            return Loss(telling, examples)
        words = _writing(model, hidden, batch)
        writing = words.total * (examples / batch.real[:, 1:].sum())
        parts = {"telling": telling.detach(), "writing": writing.detach()}
        return Loss(telling + self.settings.auxiliary * writing, examples, parts)

    @torch.inference_mode()
    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        if split not in self.held:
            return {}
        held, device = self.held[split], next(model.parameters()).device
        total, told = 0.0, np.zeros(len(held))
        for places in in_order(held.lengths, tokens=self.tokens):
            batch = held.batch(places).to(device)
            answers = tell(model, states(model, batch), batch, self.question.kind)
            total += float(lost(answers, batch.wanted).double().sum())
            told[places] = (answers if answers.dim() == 1 else answers.argmax(-1)).double().cpu()
        error = "squared error" if self.question.kind == "number" else "negative log-likelihood"
        loss = Measure(total / len(held), f"mean {error} of {len(held)} examples")
        return {"loss": loss, **_measures(self.question, self.settings, told, held.arrays["wanted"])}


def arrangement(task: Any, texts: int) -> Arrange:
    """Which sequences an example of so many texts takes."""
    if task.kind == "choice":
        if texts < 3:
            wanted = "name what comes first, then two choices or more"
            raise ConfigError(f'task.kind = "choice", but data.texts names {texts} of them; {wanted}')
        return choices
    if texts not in (1, 2):
        wanted = 'name one text or a pair, or write task.kind = "choice"'
        raise ConfigError(f'task.kind = "{task.kind}", but data.texts names {texts} of them; {wanted}')
    if task.similar and texts == 1:
        raise ConfigError("task.similar is of the two texts of a pair, but data.texts names one; write similar = false")
    return both_orders if task.similar else once


def measured(task: Any) -> tuple[str, ...]:
    """The names of all that is measured."""
    return ("loss", *(task.measures or USUAL[task.kind]))


# ---- what a system says


def states(model: nn.Module, batch: Batch) -> Tensor:
    """What a system has in mind at each token, (B·n, T, dim). One that writes cannot see the padding behind."""
    if isinstance(model, Autoregressive):
        hidden: Tensor = model(None, None, batch.sequences)[0]
        return hidden
    return model(batch.sequences, batch.real, batch.segments)


def tell(model: nn.Module, hidden: Tensor, batch: Batch, kind: Kind) -> Tensor:
    """Scores of the labels or choices, (B, labels), or numbers, (B,)."""
    examples = len(batch.wanted)
    summary = model.summary(hidden, batch.summaries)  # type: ignore[operator]
    if kind == "choice":
        scores: Tensor = model.labels(summary).view(examples, -1)  # type: ignore[operator]
    else:
        scores = model.labels(summary.view(examples, -1, summary.shape[-1]).sum(1))  # type: ignore[operator]
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return scores.squeeze(1) if kind == "number" else scores


def lost(told: Tensor, wanted: Tensor) -> Tensor:
    """Of each example, (B,): the squared error of a number, else -log p of the right label."""
    if told.dim() == 1:
        return (told - wanted).square()
    return F.cross_entropy(told, wanted, reduction="none")


def _writing(model: nn.Module, hidden: Tensor, batch: Batch) -> Loss:
    """Each token but the first, from those before it."""
    if not isinstance(model, Autoregressive):
        raise ConfigError("task.auxiliary is for systems that write, such as gpt, and this one does not; write 0")
    words = batch.tokens - len(batch.sequences)
    loss: Loss = model.head(hidden[:, :-1], batch.sequences[:, 1:], real=batch.real[:, 1:], count=words)
    return loss


# ---- what is measured


def _measures(question: Question, task: Any, told: np.ndarray, wanted: np.ndarray) -> dict[str, float]:
    if question.kind == "number":
        return {name: OF_NUMBERS[name](told, wanted) for name in measured(task)[1:]}
    positive = {"f1": {"positive": 1, "name": question.labels[1]}}
    return {name: OF_LABELS[name](told, wanted, **positive.get(name, {})) for name in measured(task)[1:]}


def _check(question: Question, train: Readings, task: Any) -> None:
    if question.kind != "number" and len(question.labels) < 2:
        raise ConfigError(f"data.labels names {len(question.labels)}, and there is nothing to tell; write two or more")
    known = OF_NUMBERS if question.kind == "number" else OF_LABELS
    for name in measured(task)[1:]:
        if name not in known:
            raise ConfigError(
                f'task.measures: {name} is not measured where task.kind = "{question.kind}"; write {" or ".join(known)}'
            )
        if name == "f1" and len(question.labels) != 2:
            raise ConfigError(
                f"task.measures: f1 is of two labels, and there are {len(question.labels)}; write accuracy"
            )
    if question.kind == "choice" and train.each != len(question.labels):
        raise ConfigError(
            f"data.texts names {train.each} choices, but the labels are {', '.join(question.labels)}; "
            "write data.labels with one for each choice, in their order"
        )


# ---- what a user asks


@torch.inference_mode()
def classify(
    model: nn.Module, tokenizer: Tokenizer, question: Question, examples: Sequence[Sequence[str]], *, tokens: int = 4096
) -> list[Classified]:
    """The label of each example, which is one text or more, in the order in which they came."""
    rows = [scores.softmax(-1) for scores in _ask(model, tokenizer, question, examples, tokens)]
    return [
        Classified(question.labels[int(row.argmax())], dict(zip(question.labels, row.tolist(), strict=True)))
        for row in rows
    ]


@torch.inference_mode()
def rate(
    model: nn.Module, tokenizer: Tokenizer, question: Question, examples: Sequence[Sequence[str]], *, tokens: int = 4096
) -> list[float]:
    """The number of each example, where numbers were learnt."""
    return [float(number) for number in _ask(model, tokenizer, question, examples, tokens)]


@torch.inference_mode()
def embed(
    model: nn.Module,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    longest: int,
    pooling: str = "mean",
    normalise: bool = True,
    tokens: int = 4096,
) -> Tensor:
    """A vector for each text, (texts, dim): the mean of what stands at its tokens, marks included, or at the first.

    Normalised, the product of two is the cosine of the angle between them.
    """
    if pooling not in ("mean", "first"):
        raise ConfigError(f'pooling = "{pooling}" is not known; write "mean" or "first"')
    if pooling == "first" and isinstance(model, Autoregressive):
        raise ConfigError('pooling = "first" says nothing of a system whose first token sees no other; write "mean"')

    def pool(batch: Batch) -> Tensor:
        hidden = states(model, batch).float()
        real = batch.real[..., None]
        vectors = hidden[:, 0] if pooling == "first" else (hidden * real).sum(1) / real.sum(1)
        return F.normalize(vectors, dim=-1) if normalise else vectors

    layout = Layout(for_encoder, once, tokenizer.marks, longest)
    found = _read(model, tokenizer, layout, [[text] for text in texts], tokens, pool)
    return torch.stack(found) if found else torch.empty(0, 0)


def _ask(
    model: nn.Module,
    tokenizer: Tokenizer,
    question: Question,
    examples: Sequence[Sequence[str]],
    tokens: int,
) -> list[Tensor]:
    for number, texts in enumerate(examples, 1):
        if len(texts) != question.texts:
            wanted = f"this model was trained on {question.texts}; give as many, in the order of its data"
            raise DataError(f"input {number}: {len(texts)} text{'s' * (len(texts) != 1)}, but {wanted}")

    def say(batch: Batch) -> Tensor:
        return tell(model, states(model, batch), batch, question.kind)

    return _read(model, tokenizer, question.layout, examples, tokens, say)


def _read(
    model: nn.Module,
    tokenizer: Tokenizer,
    layout: Layout,
    examples: Sequence[Sequence[str]],
    tokens: int,
    say: Callable[[Batch], Tensor],
) -> list[Tensor]:
    """What is said of each example, batched by length, in the order in which they came."""
    device = next(model.parameters()).device
    readings = Readings.of(lay_out(tokenizer, examples, layout), padding=layout.marks.pad)
    found: dict[int, Tensor] = {}
    for places in in_order(readings.lengths, tokens=tokens):
        found.update(zip(places.tolist(), say(readings.batch(places).to(device)).cpu(), strict=True))
    return [found[place] for place in range(len(examples))]
