"""Numbers come step by step, and something is said of them: one layer on what a system has in mind at a step.

    number   W·h + b at the last step, squared error
    label    p(label) = softmax(W·h + b) at the last step
    labels   likewise at each step
    keys     p(key is down at the next step) = σ(W·h + b), each key by itself

A loss is a mean over outputs: over examples, over steps, or over frames, in each of which the keys are summed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.head import Loss
from regard.data.lengths import Lengths, in_order
from regard.data.series import Batch, Source
from regard.metrics import Measure
from regard.tasks import Steady
from regard.tasks.classify import Classified

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Frame:
    """The likeliest next step: which keys are down, and how likely each is."""

    keys: tuple[str, ...]
    probabilities: dict[str, float]


Answer = float | Classified | list[Classified] | Frame


@dataclass(frozen=True)
class Kind:
    """What is said of a series, what it costs, and what a user is told."""

    lost: Callable[[Tensor, Tensor], Tensor]  # outputs (…, K), wanted -> (…)
    answer: Callable[[Tensor, Sequence[str]], Answer]  # outputs (steps, K), names -> what is told
    means: str  # of what the loss is the mean
    end: bool = False  # only the last step counts
    labels: bool = False  # an output is right or not


class Series(Steady):
    """The task: batches of series, one loss for each output that counts."""

    def __init__(self, train: Source, held: Mapping[str, Source], *, tokens: int, rows: int = 0, seed: int = 0) -> None:
        self.train, self.held, self.tokens = train, held, tokens
        self.kind = KINDS[train.kind]
        self.turns = Lengths(train.lengths, tokens=tokens, seed=seed, rows=rows)
        self.fingerprint = train.fingerprint

    def batch(self, split: str, step: int, rank: int = 0, world: int = 1) -> Batch:
        if split != "train":
            raise ValueError(f"only training draws batches by step; {split!r} is read in order")
        return self.train.batch(self.turns.batch(step, rank, world))

    def epoch(self, step: int, world: int = 1) -> float:
        return self.turns.epoch(step, world)

    def cost(self, model: nn.Module, batch: Batch, before: Any) -> Loss:
        return Loss(lost(model, batch, self.kind)[0].sum(), batch.tokens)

    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        return measure(model, self.held[split], tokens=self.tokens) if split in self.held else {}


def suited(model: nn.Module, x: Tensor) -> Tensor:
    """Numbers where the model is, and as precise as its own."""
    like = next(model.parameters())
    return x.to(like.device, like.dtype)


def say(model: nn.Module, hidden: Tensor) -> Tensor:
    """Outputs of each step, (…, K)."""
    outputs: Tensor = model.labels(hidden)  # type: ignore[operator]
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))


def lost(model: nn.Module, batch: Batch, kind: Kind) -> tuple[Tensor, Tensor]:
    """What each output costs, (B,) or (B, T) with zeros where it does not count; and the outputs."""
    outputs = say(model, _concluded(model, batch) if kind.end else model(None, None, suited(model, batch.x))[0])
    costs = kind.lost(outputs, batch.wanted)
    return costs if kind.end else costs.where(batch.scored, 0.0), outputs


def _concluded(model: nn.Module, batch: Batch) -> Tensor:
    """What a system has in mind at the last step, (B, dim); a TCN need not compute most of the others."""
    last = None if batch.even else batch.real.sum(1) - 1
    found: Tensor = model.conclude(suited(model, batch.x), last)  # type: ignore[operator]
    return found


# ---- the four kinds


def _squared(outputs: Tensor, wanted: Tensor) -> Tensor:
    return (outputs[..., 0] - wanted).square()


def _unlikely(outputs: Tensor, wanted: Tensor) -> Tensor:
    """-log p of the right label."""
    return F.cross_entropy(outputs.flatten(0, -2), wanted.flatten(), reduction="none").view_as(wanted)


def _out_of_tune(outputs: Tensor, wanted: Tensor) -> Tensor:
    """-log p of a frame: the sum over its keys."""
    return F.binary_cross_entropy_with_logits(outputs, wanted, reduction="none").sum(-1)


def _labelled(outputs: Tensor, names: Sequence[str]) -> Classified:
    shares = outputs.softmax(-1)
    return Classified(names[int(shares.argmax())], dict(zip(names, shares.tolist(), strict=True)))


def _frame(outputs: Tensor, names: Sequence[str]) -> Frame:
    shares = dict(zip(names, outputs.sigmoid().tolist(), strict=True))
    return Frame(tuple(name for name, share in shares.items() if share > 0.5), shares)


KINDS: Mapping[str, Kind] = {
    "number": Kind(
        _squared,
        lambda outputs, names: float(outputs[-1, 0]),
        "squared error of {count} numbers",
        end=True,
    ),
    "label": Kind(
        _unlikely,
        lambda outputs, names: _labelled(outputs[-1], names),
        "negative log-likelihood of {count} labels",
        end=True,
        labels=True,
    ),
    "labels": Kind(
        _unlikely,
        lambda outputs, names: [_labelled(step, names) for step in outputs],
        "negative log-likelihood of {count} labels, one for each step",
        labels=True,
    ),
    "keys": Kind(
        _out_of_tune,
        lambda outputs, names: _frame(outputs[-1], names),
        "negative log-likelihood of a frame, summed over its keys, in nats; {count} frames, all but a piece's first",
    ),
}


# ---- what is measured


def measured(kind: str, *, blank: bool = False) -> tuple[str, ...]:
    """The names of all that is measured."""
    return ("loss", *(["accuracy"] if KINDS[kind].labels else []), *(["recalled"] if blank else []))


@torch.inference_mode()
def measure(
    model: nn.Module, held: Source, *, tokens: int, progress: Progress = lambda done, total: None
) -> dict[str, float]:
    kind, device = KINDS[held.kind], next(model.parameters()).device
    sums: defaultdict[str, float] = defaultdict(float)
    for places in in_order(held.lengths, tokens=tokens):
        batch = held.batch(places).to(device)
        costs, outputs = lost(model, batch, kind)
        sums["count"] += batch.tokens
        sums["loss"] += float(costs.double().sum())
        for name, hits in _hits(outputs, batch, kind, held.blank).items():
            sums[name] += hits
        sums["done"] += len(places)
        progress(int(sums["done"]), len(held))
    return _measures(kind, held, sums)


def _hits(outputs: Tensor, batch: Batch, kind: Kind, blank: int | None) -> dict[str, int]:
    """How many labels were right; and how many of those that stand for something."""
    if not kind.labels:
        return {}
    counts = torch.ones_like(batch.wanted, dtype=torch.bool) if kind.end else batch.scored
    right, filled = counts & (outputs.argmax(-1) == batch.wanted), counts & (batch.wanted != blank)
    return {"right": int(right.sum()), "filled": int(filled.sum()), "recalled": int((right & filled).sum())}


def _measures(kind: Kind, held: Source, sums: Mapping[str, float]) -> dict[str, float]:
    count, chance = int(sums["count"]), f"; {held.chance}" * bool(held.chance)
    found = {"loss": Measure(sums["loss"] / count, f"mean {kind.means.format(count=count)}{chance}")}
    if kind.labels:
        found["accuracy"] = Measure(100 * sums["right"] / count, f"labels told right, in % of {count}")
    if held.blank is not None:
        what = f"labels told right, in % of the {int(sums['filled'])} steps at which another than the blank is wanted"
        found["recalled"] = Measure(100 * sums["recalled"] / sums["filled"], what)
    return {**found}


# ---- what a user asks


@torch.inference_mode()
def predict(
    model: nn.Module, kind: str, names: Sequence[str], examples: Sequence[np.ndarray], *, tokens: int = 4096
) -> list[Answer]:
    """What is said of each series (steps, channels), in the order in which they came."""
    lengths = np.array([len(example) for example in examples], np.int64)
    found: dict[int, Answer] = {}
    for places in in_order(lengths, tokens=tokens):
        x = torch.zeros(len(places), int(lengths[places].max()), examples[0].shape[1])
        for row, place in enumerate(places.tolist()):
            x[row, : lengths[place]] = torch.from_numpy(examples[place])
        outputs = say(model, model(None, None, suited(model, x))[0]).cpu()
        for row, place in zip(outputs, places.tolist(), strict=True):
            found[place] = KINDS[kind].answer(row[: lengths[place]], names)
    return [found[place] for place in range(len(examples))]
