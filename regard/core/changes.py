"""Noticing that weights have changed: whoever has made something of them keeps their marks, and compares."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook


def mark(w: Tensor) -> tuple[int, int | None]:
    """What changes when a weight is moved or trained on; not what is done to its `.data`."""
    return w.data_ptr(), None if w.is_inference() else w._version


def marks(weights: Iterable[Tensor]) -> list[tuple[int, int | None]]:
    """The same of many: it changes as well when one of them is replaced."""
    return [mark(w) for w in weights]


@cache
def notice_optimizers() -> None:
    """A fused optimizer changes weights and does not say so: from now on it is said for it."""
    register_optimizer_step_post_hook(_changed)


def _changed(optimizer: torch.optim.Optimizer, *_: object) -> None:
    for group in optimizer.param_groups:
        if group.get("fused"):
            torch.autograd.graph.increment_version([w for w in group["params"] if not w.is_inference()])
