"""Dropout (Srivastava et al. 2014): a number is left out with probability p, and the others grow by as much."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

STEPS = 2**16  # a draw is 16 bits, so p is rounded to so many steps
MOST = 2**31  # places that can be told apart by a hash


def dropout(x: Tensor, p: float) -> Tensor:
    """For use in training.

    PyTorch draws on a CPU one number after another, 64 bits for each; a coin needs fewer. Four coins a
    draw take a quarter of the time, of what was 8 % of training a small Transformer.
    """
    if p == 0:
        return x
    if torch.compiler.is_compiling() and x.numel() < MOST:
        return hashed_dropout(x, p)
    if x.device.type != "cpu":
        return F.dropout(x, p)
    return _leave_out(x, _faces(p)).mul_(_growth(x, p))


def hashed_dropout(x: Tensor, p: float) -> Tensor:
    """What compiles to a few operations on whole numbers: a coin is a hash of its place and of two numbers drawn. The
    generator that a compiler puts in for PyTorch's takes some eighty, and its coins are kept for the gradient; these
    are tossed again.
    """
    first, second = torch.randint(-(2**31), 2**31 - 1, (2,), dtype=torch.int32, device=x.device).unbind()
    coin = torch.arange(x.numel(), dtype=torch.int32, device=x.device).view(x.shape) ^ first
    coin = (coin ^ (coin >> 17 & 0x7FFF)) * -0x12A52B45  # odd factors: no two places become one
    coin = (coin ^ (coin >> 11 & 0x1FFFFF) ^ second) * -0x53B3E4AF
    coin = (coin ^ (coin >> 15 & 0x1FFFF)) * 0x31848BAB
    return torch.where(coin >= min(round(p * 2**32) - 2**31, 2**31 - 1), x / (1 - p), 0)


def relu_dropout(x: Tensor, p: float) -> Tensor:
    """dropout(relu(x)). Where it is zero there is no gradient, whichever of the two it was: no coins are kept."""
    y: Tensor = _ReluDropout.apply(x, p)
    return y


class _ReluDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        y = dropout(x.relu(), p)
        ctx.save_for_backward(y)
        ctx.growth = _growth(x, p)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(dy, y, 0).mul_(ctx.growth), None


def _faces(p: float) -> int:
    """Of the STEPS faces of a coin, those that leave a number out."""
    return min(round(p * STEPS), STEPS - 1)


def _growth(x: Tensor, p: float) -> float:
    """Of what stays."""
    in_steps = x.device.type == "cpu" and not torch.compiler.is_compiling()
    return STEPS / (STEPS - _faces(p)) if in_steps else 1 / (1 - p)


def _leave_out(x: Tensor, out: int) -> Tensor:
    """x, or zero where a coin shows one of its first `out` faces."""
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    coins = draws[: x.numel()].view(x.shape).to(torch.promote_types(x.dtype, torch.float32))  # exact, unlike in 16 bits
    # one pass, where a comparison would make booleans that must become numbers again
    return torch.ops.aten.threshold_backward(x, coins, out - STEPS // 2 - 0.5).to(x.dtype)
