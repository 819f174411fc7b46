"""What a decoder hears while it learns: the true words (teacher forcing), its own, or some of each.

Scheduled sampling (Bengio et al. 2015) begins with the true words and weans the model off them. Each word is decided by
itself, by a coin that shows "true" with a probability that falls along a line, exponentially, or along a sigmoid.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# What is left of the way from the first probability to the last, when so much of the time is over.
DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda over: 1 - over,
    "exponential": lambda over: 0.01**over,
    "sigmoid": lambda over: 1 / (1 + math.exp(12 * (over - 0.5))),
}


def chance_of_truth(batches: int, task: Any) -> float:
    """The probability of being told the true word, after so many batches; `task` holds the forcing settings."""
    if task.forcing_end is None:
        return float(task.forcing)
    over = min(1.0, batches / task.forcing_steps)
    left = DECAYS[task.forcing_decay](over) if over < 1 else 0.0
    return float(task.forcing_end + (task.forcing - task.forcing_end) * left)


def coins(target: Tensor, chance: float) -> Tensor | None:
    """(B, T) True where the true word is heard; None where it always is."""
    return None if chance >= 1 else torch.rand(target.shape, device=target.device) < chance
