"""AdamW, and how the learning rate goes: a schedule is a pure function of the step, so there is nothing to save."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn
from torch.optim import AdamW

from regard.config import TrainConfig
from regard.errors import ConfigError


def adamw(model: nn.Module, config: TrainConfig) -> AdamW:
    """Decay pulls on matrices only: a bias or a gain has no business near zero."""
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in learning if p.ndim >= 2], "weight_decay": config.decay},
        {"params": [p for p in learning if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in learning)
    return AdamW(groups, lr=config.rate, betas=config.betas, eps=config.epsilon, fused=fused)


def rate(step: int, config: TrainConfig, dim: int | None = None) -> float:
    """The learning rate of the update with this number, the first being 1. `dim` is the model's width, for noam."""
    if config.schedule == "noam" and dim is None:
        raise ConfigError('train.schedule: noam needs a model with a width (dim); write schedule = "inverse_sqrt"')
    peak = config.rate / math.sqrt(dim) if config.schedule == "noam" and dim else config.rate
    return peak * SCHEDULES[config.schedule](step, config)


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


SCHEDULES: dict[str, Callable[[int, TrainConfig], float]] = {
    "noam": noam,
    "inverse_sqrt": inverse_sqrt,
    "cosine": cosine,
    "linear": linear,
    "constant": constant,
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
