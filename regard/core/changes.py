"""Noticing that weights have changed: whoever has made something of them keeps their marks, and compares."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook


def marks(weights: Iterable[Tensor]) -> list[int]:
    """What changes when a weight is moved, replaced or trained on; not what is done to its `.data`."""
    return [mark for w in weights for mark in (w.data_ptr(), 0 if w.is_inference() else w._version)]


@cache
def notice_optimizers() -> None:
    """A fused optimizer changes weights and does not say so: from now on it is said for it."""
    register_optimizer_step_post_hook(_changed)


def _changed(optimizer: torch.optim.Optimizer, *_: object) -> None:
    for group in optimizer.param_groups:
        if group.get("fused"):
            torch.autograd.graph.increment_version([w for w in group["params"] if not w.is_inference()])
