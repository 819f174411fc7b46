"""The numbers of a step, and how they come from the device to the host."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

Sums = dict[str, Any]  # tensors on the device, and plain numbers


class Coming:
    """The sums of a step on their way. Whoever reads them at once waits for the device; whoever reads them later finds
    them there."""

    def __init__(self, sums: Sums) -> None:
        self.sums = sums
        self.names = [name for name, value in sums.items() if isinstance(value, Tensor)]
        stacked = torch.stack([sums[name].double() for name in self.names])
        self.values = stacked.to("cpu", non_blocking=True)
        self.arrived = torch.cuda.Event() if stacked.is_cuda else None
        if self.arrived is not None:
            self.arrived.record()

    def read(self) -> dict[str, float]:
        if self.arrived is not None:
            self.arrived.synchronize()
        return {**self.sums, **dict(zip(self.names, self.values.tolist(), strict=True))}


def finite(numbers: dict[str, float]) -> bool:
    return math.isfinite(numbers["loss"]) and math.isfinite(numbers["norm"])


def unfit(sums: Sums) -> Tensor:
    """The same asked on the device: 1 where one of the two is no number, else 0."""
    return 1 - torch.stack([sums["loss"].double(), sums["norm"].double()]).isfinite().all().float()
