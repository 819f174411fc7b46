"""Noticing that a model has changed: whoever has made something of it keeps what it was like, and compares."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

QUICKER = {"step", "start", "times", "spread", "along"}  # methods that `regard.fast` puts others in the place of


def parts_of(model: nn.Module) -> list[nn.Module]:
    """All modules, some twice: `modules()` takes several times as long to say so."""
    found = [model]
    for part in found:  # which grows meanwhile
        found += [one for one in part._modules.values() if one is not None]
    return found


def meddled(part: nn.Module) -> bool:
    """It learns, or somebody wants to know of each time that it is called, or has replaced what it does."""
    said = part.__dict__
    minded = hasattr(type(part), "minded") and part.minded
    return bool(said["training"] or minded or "forward" in said or hooked(part))


def hooked(part: nn.Module) -> bool:
    return bool(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks)


def replaced(part: nn.Module) -> bool:
    """One of its methods is somebody's own, for this module alone."""
    return any(callable(getattr(type(part), name, None)) for name in part.__dict__.keys() - QUICKER)


class Likeness:
    """A model as it is now: its parts, their settings, and their tensors with what changes when these are trained."""

    def __init__(self, parts: Iterable[nn.Module]) -> None:
        self.values: list[Any] = []  # each of which is another where something was replaced
        tensors: list[Tensor | None] = []
        for part in parts:
            self.values.append(part)
            self.values += part.__dict__.values()
            tensors += part._parameters.values()
            tensors += part._buffers.values()
        self.values += tensors
        self.marks = [mark(t) for t in tensors if t is not None]

    def same(self, other: Likeness) -> bool:
        alike = self.marks == other.marks and len(self.values) == len(other.values)
        return alike and all(map(is_, self.values, other.values))


def mark(w: Tensor) -> tuple[int, int | None]:
    """What changes when a weight is moved or trained on; not what is done to its `.data`."""
    return w.data_ptr(), None if w.is_inference() else w._version


@cache
def notice_optimizers() -> None:
    """A fused optimizer changes weights and does not say so: from now on it is said for it."""
    register_optimizer_step_post_hook(_changed)


def _changed(optimizer: torch.optim.Optimizer, *_: object) -> None:
    for group in optimizer.param_groups:
        if group.get("fused"):
            torch.autograd.graph.increment_version([w for w in group["params"] if not w.is_inference()])
