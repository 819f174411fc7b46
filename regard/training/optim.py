"""Optimizers, and how the learning rate goes.

A schedule is a pure function of the step, so there is nothing to save; "plateau" alone is one of the step and of how
often evaluations have cut the rate, which the run remembers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.optim import SGD, Adagrad, AdamW, Optimizer, RMSprop

from regard.config import TrainConfig
from regard.errors import ConfigError

# What each takes of the settings besides rate and decay, and whether it has a fused kernel.
OPTIMIZERS: dict[str, tuple[type[Optimizer], tuple[str, ...], bool]] = {
    "adamw": (AdamW, ("betas", "epsilon"), True),
    "sgd": (SGD, (), True),
    "rmsprop": (RMSprop, ("epsilon",), False),
    "adagrad": (Adagrad, ("epsilon",), False),
}
TORCH = {"betas": "betas", "epsilon": "eps"}  # PyTorch's names for them


def optimizer(model: nn.Module, config: TrainConfig) -> Optimizer:
    """Decay pulls on matrices only: a bias or a gain has no business near zero."""
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in learning if p.ndim >= 2], "weight_decay": config.decay},
        {"params": [p for p in learning if p.ndim < 2], "weight_decay": 0.0},
    ]
    kind, settings, fused = OPTIMIZERS[config.optimizer]
    how: dict[str, Any] = {TORCH[name]: getattr(config, name) for name in settings}
    if fused:
        how["fused"] = all(parameter.device.type in ("cpu", "cuda") for parameter in learning)
    return kind(groups, lr=config.rate, **how)  # type: ignore[call-arg]


def leaves_out(optimizers: Mapping[str, Optimizer]) -> bool:
    """Whether all of them can be told on the device to make no step: the fused kernels can."""
    return all(optimizer.defaults.get("fused") for optimizer in optimizers.values())


def check(config: TrainConfig, dim: int | None = None) -> None:
    """Refuses a schedule that cannot be, and settings that nobody would read."""
    rate(1, config, dim)
    if config.schedule == "plateau" and not config.evaluate_every:
        what = 'train.schedule = "plateau" looks at evaluations, but train.evaluate_every = 0 makes none on the way'
        raise ConfigError(f"{what}; write for example evaluate_every = 1000")
    if config.schedule == "drops" and not config.drops:
        raise ConfigError('train.schedule = "drops" needs steps to drop at; write for example drops = [1000, 2000]')
    if config.drops and config.schedule != "drops":
        raise ConfigError(f'train.drops: the schedule "{config.schedule}" has none; write schedule = "drops"')
    usual, (_, settings, _) = TrainConfig(), OPTIMIZERS[config.optimizer]
    for name in TORCH.keys() - set(settings):
        if getattr(config, name) != getattr(usual, name):
            raise ConfigError(f'train.{name}: the optimizer "{config.optimizer}" has none; leave it out')


def rate(step: int, config: TrainConfig, dim: int | None = None, cuts: int = 0) -> float:
    """The learning rate of the update with this number, the first being 1. `dim` is the model's width, for noam;
    `cuts`, how often a plateau was reached.
    """
    if config.schedule == "noam" and dim is None:
        raise ConfigError('train.schedule: noam needs a model with a width (dim); write schedule = "inverse_sqrt"')
    peak = config.rate / math.sqrt(dim) if config.schedule == "noam" and dim else config.rate
    return peak * SCHEDULES[config.schedule](step, config) / config.factor**cuts


def noam(step: int, config: TrainConfig) -> float:
    """min(s^-½, s·w^-³ᐟ²), of Vaswani et al. 2017, eq. 3; the paper's d^-½ belongs to the rate."""
    warmup = max(config.warmup, 1)
    return min(1 / math.sqrt(step), step / (warmup * math.sqrt(warmup)))


def inverse_sqrt(step: int, config: TrainConfig) -> float:
    """Noam's shape with a peak of 1."""
    return noam(step, config) * math.sqrt(max(config.warmup, 1))


def cosine(step: int, config: TrainConfig) -> float:
    return warm(step, config) * falling(0.5 * (1 + math.cos(math.pi * progress(step, config))), config)


def linear(step: int, config: TrainConfig) -> float:
    return warm(step, config) * falling(1 - progress(step, config), config)


def constant(step: int, config: TrainConfig) -> float:
    return warm(step, config)


def drops(step: int, config: TrainConfig) -> float:
    """Divided after each of the given steps."""
    return warm(step, config) / config.factor ** sum(step > drop for drop in config.drops)


SCHEDULES: dict[str, Callable[[int, TrainConfig], float]] = {
    "noam": noam,
    "inverse_sqrt": inverse_sqrt,
    "cosine": cosine,
    "linear": linear,
    "constant": constant,
    "drops": drops,
    "plateau": constant,  # between two cuts
}


def warm(step: int, config: TrainConfig) -> float:
    """0 → 1 over the warm-up, then 1."""
    return min(1.0, step / max(config.warmup, 1))


def progress(step: int, config: TrainConfig) -> float:
    """0 at the end of the warm-up, 1 at the last step."""
    return min(1.0, max(0, step - config.warmup) / max(config.steps - config.warmup, 1))


def falling(share: float, config: TrainConfig) -> float:
    """1 → floor as the share goes 1 → 0."""
    return config.floor + (1 - config.floor) * share
