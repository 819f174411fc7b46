"""The product's own training step in a race, and what all races of training share."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from bench.harness import PATIENCE, Comparison, clock, race
from regard.config import TrainConfig
from regard.fast import quicken
from regard.tasks import Loss, Steady, Task
from regard.training import start
from regard.training.compiled import compile_in_place
from regard.training.log import Log
from regard.training.loop import Steps

Step = Callable[[], int]  # one update; how many real tokens it learnt from
Batches = list[Any]


def product(
    model: nn.Module,
    task: Task,
    folder: Path,
    device: str,
    *,
    backend: str | None = None,
    precision: str = "auto",
    tokens_of: Callable[[Any], int] = lambda batch: int(batch.tokens),
) -> Step:
    """What `regard train` does at each step: the next batch made aside, recorded where that can be, clipped, AdamW."""
    often = 10**9
    config = TrainConfig(
        steps=often, rate=1e-4, schedule="constant", warmup=0, precision=precision, device=device,
        compile=backend is not None, record="auto", log_every=often, save_every=often, evaluate_every=0,
    )  # fmt: skip
    run = start(folder, model, config, device=torch.device(device))
    quicken(model)
    if backend is not None:
        compile_in_place(model, backend)
    folder.mkdir(parents=True, exist_ok=True)
    log = Log(folder, config, print, console=Console(file=io.StringIO()))
    steps = Steps(run, task, config, log)
    learn, done = steps.learn, 0

    def counting(batch: Any, carry: Any) -> Loss:
        nonlocal done
        done = tokens_of(batch)
        return learn(batch, carry)

    def step() -> int:
        steps()
        return done

    steps.learn = counting
    return step


class Given(Steady):
    """A task whose batches were drawn beforehand, and come again and again."""

    fingerprint = "given"

    def __init__(self, batches: Batches, cost: Callable[[nn.Module, Any], Loss]) -> None:
        self.batches, self.cost_of = batches, cost
        self.read = {batch.ids: read(batch) for batch in batches}  # counted before they are on a device

    def batch(self, split: str, step: int, rank: int = 0, world: int = 1) -> Any:
        return self.batches[step % len(self.batches)]

    def epoch(self, step: int, world: int = 1) -> float:
        return step / len(self.batches)

    def cost(self, model: nn.Module, batch: Any, before: Any) -> Loss:
        return self.cost_of(model, batch)

    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        return {}


def read(batch: Any) -> int:
    """Real tokens of a batch, to be counted before it is on a device."""
    return int(batch.real.sum()) if hasattr(batch, "real") else int(batch.tokens)


def rate(step: Step, least: float = 2.0, warm: int = 1) -> float:
    """Tokens a second, after so many steps to warm up."""
    for _ in range(warm):
        step()
    tokens, before = 0, clock()
    while clock() - before < least:
        tokens += step()
    return tokens / (clock() - before)


def race_tokens(
    name: str,
    engines: Mapping[str, Step],
    steps: int,
    *,
    rounds: int,
    warm: int,
    least: int = 0,
    patience: float = PATIENCE,
    unit: str = "real target tokens/s",
) -> Comparison:
    """A turn is so many steps, and more of them for whoever has not learnt from `least` tokens by then: few small
    batches are a matter of luck. Batches differ in size, so every engine's tokens are summed over all rounds."""
    done: dict[str, list[int]] = {engine: [] for engine in engines}

    def run(engine: str) -> float:
        tokens = sum(engines[engine]() for _ in range(steps))
        while tokens < least:
            tokens += engines[engine]()
        done[engine].append(tokens)
        return 1.0

    turns = {engine: partial(run, engine) for engine in engines}
    found = race(name, unit, turns, rounds=rounds, warm=warm, patience=patience)
    for engine in engines:
        tokens = done[engine][-len(found.seconds[engine]) :]
        mean = sum(tokens) / len(tokens)
        found.work[engine] = mean
        found.seconds[engine] = [s * mean / t for s, t in zip(found.seconds[engine], tokens, strict=True)]
    return found


class Peaks:
    """Most memory that each engine held on the GPU beyond what was there before it was made, in its first steps; what
    it tried while it was made is not counted. "Peer, some batches" and "Peer, others" may be one model."""

    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}
        self.before: dict[str, int] = {}

    def warmed(self, name: str, make: Callable[[], Step], steps: int) -> Step:
        if not torch.cuda.is_available():
            return make()
        torch.cuda.synchronize()
        before, begun = self.before.setdefault(name.partition(",")[0], torch.cuda.memory_allocated()), clock()
        step = make()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(steps):
            step()
        print(f"{name}: warm after {clock() - begun:.0f} s", file=sys.stderr, flush=True)
        self.bytes[name] = torch.cuda.max_memory_allocated() - before
        return step
