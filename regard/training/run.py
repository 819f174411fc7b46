"""A training in progress: what a checkpoint holds of it, and how it is taken up again."""

from __future__ import annotations

import hashlib
import os
import random
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from regard.config import TrainConfig
from regard.device import find_device
from regard.errors import CheckpointError
from regard.tasks import Task
from regard.training import optim
from regard.training.checkpoint import Snapshot
from regard.training.state import layout, optimizer_tensors, pack, put_optimizers, put_rng, rng_tensors, unpack
from regard.weights import Corrupt, Tensors, put_weights, weights

HARMLESS = {"log_every", "keep", "stop_after", "tensorboard", "record"}  # settings that change last bits at most


@dataclass(kw_only=True)
class Progress:
    """All of a run that is neither tensor nor setting: the better part of state.json."""

    step: int = 0
    """Updates done."""
    shift: int = 0
    """Steps' worth of data that rewinds have left out: step s reads the data of step s + shift."""
    tokens: int = 0
    seconds: float = 0.0
    flops_per_token: float = 0.0
    evaluated: int = 0
    """Step of the last evaluation."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What it gave."""
    best: float | None = None
    best_step: int | None = None
    worse: int = 0
    """Evaluations since the best."""
    recent: list[float] = field(default_factory=list)
    """What the last of them gave, for the schedule "plateau"."""
    cuts: int = 0
    """How often it has cut the rate."""
    skipped: int = 0
    """Steps left out for their numbers, in a row."""
    rewinds: int = 0
    """Returns to the same checkpoint, in a row."""
    interval: dict[str, float] = field(default_factory=dict)
    """Sums since the last line of the log."""


@dataclass(kw_only=True)
class Run(Progress):
    """A model, its optimizers by name, and the folder where they are kept."""

    folder: Path
    model: nn.Module
    optimizers: dict[str, Optimizer]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dim: int | None = None
    """The width of the model, for Noam's schedule."""
    vocabulary: dict[str, str] = field(default_factory=dict)
    """The files that say what the model's numbers mean, with their signatures."""
    rank: int = 0
    world: int = 1
    carry: Any = None
    saved: tuple[int, int] | None = None
    """Step and last evaluation of the newest checkpoint on disk."""
    looked: int | None = -1
    """Step of the last look at a held-out text; None where it went wrong, and is left alone."""
    troubles: list[str] = field(default_factory=list)
    """What went wrong without stopping the training."""

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"


def settle(config: TrainConfig) -> torch.device:
    """Threads, seeds and determinism. Comes before the model is built, so that its first weights are the seed's."""
    if config.threads:
        torch.set_num_threads(config.threads)
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    random.seed(config.seed)
    np.random.seed(config.seed)
    torch.manual_seed(config.seed)
    return find_device(config.device)


def start(folder: Path, model: nn.Module, config: TrainConfig, *, device: torch.device, dim: int | None = None) -> Run:
    """A run at step 0, on its device, with its optimizer."""
    optim.check(config, dim)
    model.to(device).train()
    optimizers: dict[str, Optimizer] = {config.optimizer: optim.optimizer(model, config)}
    return Run(folder=folder, model=model, optimizers=optimizers, device=device, dim=dim)


def snapshot(run: Run, task: Task, config: TrainConfig) -> Snapshot:
    carried: Tensors = {}
    state = {part.name: getattr(run, part.name) for part in fields(Progress)}
    state |= {"carry": pack(run.carry, carried), "layout": layout(run.model), "data": task.fingerprint}
    state |= {"config": fingerprint(config), "world": run.world, "vocabulary": run.vocabulary}
    tensors = {
        "model": weights(run.model),
        "optimizer": optimizer_tensors(run.model, run.optimizers),
        "rng": rng_tensors(),
        "carry": carried,
    }
    return Snapshot(state, tensors)


def fingerprint(config: TrainConfig) -> str:
    return hashlib.sha256(config.model_dump_json(exclude=HARMLESS).encode()).hexdigest()


def take_up(run: Run, saved: Snapshot, task: Task) -> None:
    """The run goes on where the snapshot was taken. One of another model or of other data is refused."""
    state = {"recent": [], "cuts": 0, **saved.state}  # older checkpoints knew of no plateau
    if not {"layout", "data"} <= state.keys():
        raise Corrupt(f"{run.checkpoints}: the checkpoint of step {state['step']} does not say what it is of")
    if state.get("vocabulary", run.vocabulary) != run.vocabulary:  # which older checkpoints do not tell
        what = f"{run.folder}: its vocabulary is not the one that it was trained with"
        raise CheckpointError(f"{what}; put that back, or train into a new folder")
    if state["layout"] != layout(run.model):
        raise CheckpointError(f"{run.folder}: its checkpoints are of another model; resume it with its own recipe.toml")
    if state["data"] != task.fingerprint:
        raise CheckpointError(f"{run.folder}: it was trained on other data; put that back, or train into a new folder")
    if other := {name.split("/")[0] for name in saved.tensors["optimizer"]} - run.optimizers.keys():
        what = f"{run.folder}: it was trained with {', '.join(sorted(other))}"
        raise CheckpointError(f"{what}; resume it with its own recipe.toml, or train into a new folder")
    try:
        put_weights(run.model, saved.tensors["model"])
        put_optimizers(run.model, run.optimizers, saved.tensors["optimizer"])
        put_rng(saved.tensors["rng"])
        run.carry = unpack(state["carry"], saved.tensors["carry"], run.device)
        for part in fields(Progress):
            setattr(run, part.name, state[part.name])
    except (CheckpointError, LookupError, ValueError, TypeError, ArithmeticError, RuntimeError) as error:
        raise Corrupt(f"{run.checkpoints}: the checkpoint of step {state['step']} does not fit: {error}") from None
    run.saved = (run.step, run.evaluated)


def micro_batches(run: Run, config: TrainConfig) -> range:
    """Numbers of the batches that make up the next step."""
    first = (run.step + run.shift) * config.accumulate
    return range(first, first + config.accumulate)


def due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def over(run: Run, config: TrainConfig) -> bool:
    return run.step >= config.steps or 0 < config.patience <= run.worse
