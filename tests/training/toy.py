"""A small thing to train, with everything that a run must remember: dropout, tied weights, a buffer, noise from three
random generators, and a carry. As a script it trains into a folder, and can be killed:

    python -m tests.training.toy RUN [--steps 20 …]
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.config import TrainConfig
from regard.errors import RegardError
from regard.tasks import Loss
from regard.training import Run, settle, start, train

WORDS, DIM = 11, 8


class Bigram(nn.Module):
    """The next word from the last one."""

    def __init__(self, dim: int = DIM, dropout: float = 0.2) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, dim)
        self.norm = nn.BatchNorm1d(dim)
        self.hidden = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(dim, WORDS)
        self.out.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.norm(self.words(words).flatten(0, 1)).unflatten(0, words.shape)
        return self.out(self.dropout(torch.tanh(self.hidden(hidden))))


@dataclass(frozen=True)
class Batch:
    words: Tensor
    real: Tensor
    ids: range

    @property
    def tokens(self) -> int:
        return int(self.real.sum())

    def to(self, device: torch.device) -> Batch:
        return replace(self, words=self.words.to(device), real=self.real.to(device))


class Toy:
    """Word w is followed by 3w + 1, mostly. Example i is a function of i alone."""

    fingerprint = "toy"

    def __init__(self, rows: int = 4, noise: float = 0.1, poison: Callable[[int], bool] = lambda index: False) -> None:
        self.rows = rows
        self.noise = noise
        self.poison = poison
        self.before_batch: Callable[[int], None] = lambda index: None

    def batch(self, split: str, step: int, rank: int = 0, world: int = 1) -> Batch:
        self.before_batch(step)
        ids = range(step * self.rows, (step + 1) * self.rows)
        draws = np.stack([np.random.default_rng([i, split == "train"]).integers(0, WORDS, 7) for i in ids])
        words = np.zeros_like(draws)
        for t in range(7):
            words[:, t] = (3 * words[:, t - 1] + 1) % WORDS if t % 3 else draws[:, t]
        lengths = np.array([3 + i % 4 for i in ids])
        return Batch(torch.from_numpy(words), torch.from_numpy(np.arange(6) < lengths[:, None]), ids)

    def epoch(self, step: int, world: int = 1) -> float:
        return step * self.rows / 100

    def loss(self, model: Any, batch: Batch, carry: Any) -> Loss:
        logits = model(batch.words[:, :-1])
        nll = nn.functional.cross_entropy(logits[batch.real], batch.words[:, 1:][batch.real], reduction="sum")
        past = torch.zeros_like(nll.detach()) if carry is None else carry["past"][0]
        shake = 1 + self.noise * (random.gauss(0, 1) + np.random.standard_normal() + torch.randn(()).item())
        total = nll * shake + self.noise * past * model.hidden.bias.sum()
        if self.poison(batch.ids.start // self.rows):
            total = total * torch.nan
        return Loss(
            total, batch.tokens, {"nll": nll}, {"past": [0.5 * past + nll.detach() / batch.tokens], "seen": "yes"}
        )

    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        torch.randn(5), np.random.rand(), random.random()
        batch = self.batch(split, 0).to(next(model.parameters()).device)
        logits = model(batch.words[:, :-1])
        loss = nn.functional.cross_entropy(logits[batch.real], batch.words[:, 1:][batch.real])
        right = (logits.argmax(-1) == batch.words[:, 1:])[batch.real].double().mean()
        return {"loss": loss.item(), "accuracy": right.item()}


DEVICE = os.environ.get("REGARD_DEVICE", "cpu")  # REGARD_DEVICE=cuda tests everything on a GPU

SETTINGS: dict[str, Any] = {
    "steps": 20,
    "rate": 0.01,
    "warmup": 5,
    "log_every": 3,
    "evaluate_every": 4,
    "save_every": 5,
    "threads": 1,
    "device": DEVICE,
    "deterministic": DEVICE != "cpu",
}


def config(**changes: Any) -> TrainConfig:
    return TrainConfig(**{**SETTINGS, **changes})


def fresh(folder: Path, settings: TrainConfig, **model: Any) -> Run:
    device = settle(settings)
    return start(folder, Bigram(**model), settings, device=device, dim=DIM)


def go(folder: Path, task: Toy | None = None, **changes: Any) -> Run:
    """Trains to the end, or goes on to it."""
    settings = config(**changes)
    run = fresh(folder, settings)
    train(run, task or Toy(), settings, say=lambda text: None)
    return run


def main(arguments: list[str]) -> int:
    """One process that trains; `--die N` kills it with SIGKILL at its Nth fsync, which is inside a save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--die", type=int, default=0)
    known, rest = parser.parse_known_args(arguments)
    if known.die:
        die_at_fsync(known.die)
    names = [name.removeprefix("--") for name in rest[::2]]
    settings = config(**dict(zip(names, rest[1::2], strict=True)))
    try:
        train(fresh(known.run, settings), Toy(), settings, say=lambda text: print(text, flush=True))
    except RegardError as error:
        print(error, file=sys.stderr)
        return error.code
    return 0


def die_at_fsync(count: int) -> None:
    left = iter(range(count - 1))
    fsync = os.fsync

    def fatal(handle: int) -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(handle)

    os.fsync = fatal  # type: ignore[assignment]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
