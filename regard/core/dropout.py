"""Dropout (Srivastava et al. 2014): a number is left out with probability p, and the others grow by as much."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

STEPS = 2**16  # a draw is 16 bits, so p is rounded to so many steps


def dropout(x: Tensor, p: float) -> Tensor:
    """For use in training.

    PyTorch draws on a CPU one number after another, 64 bits for each; a coin needs fewer. Four coins a
    draw take a quarter of the time, of what was 8 % of training a small Transformer.
    """
    if p == 0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p)
    out = min(round(p * STEPS), STEPS - 1)
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    stays = draws[: x.numel()].view(x.shape) >= out - STEPS // 2
    return x * stays.to(x.dtype).mul_(STEPS / (STEPS - out))
