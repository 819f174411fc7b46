"""The one product that everything is made of, and the one place to make it faster."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LARGE = 2**18  # numbers in a matrix: for smaller ones turning costs more than it saves
FEW = 16  # rows, for two threads and more; for many, turning the answer back costs what was saved
VERY_FEW = 8  # rows, for one thread
PANEL = 4  # rows: a single one is as quick as four, where they are multiplied by a tall matrix


class Linear(nn.Linear):
    """y = Wx + b."""

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight, self.bias)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Wx + b for the vectors in the last dimension of x.

    While one decodes on a CPU there are few vectors and large matrices. Then W·xᵀ is up to three times as fast as x·Wᵀ,
    for which the matrix library packs W anew at each call.
    """
    rows = x.numel() // x.shape[-1]
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or x.device.type != "cpu" or not _turned(rows, weight):
        return F.linear(x, weight, bias)
    flat = x.reshape(rows, -1)
    if rows == 1:
        flat = flat.repeat(PANEL, 1)
    y = torch.mm(weight, flat.t()).t()[:rows].reshape(*x.shape[:-1], -1)
    return y if bias is None else y + bias


def _turned(rows: int, weight: Tensor) -> bool:
    """Where turning the product pays; measured, not derived."""
    if weight.numel() < LARGE:
        return False
    tall = weight.shape[0] >= weight.shape[1]
    if rows == 1:
        return tall
    return rows <= FEW if torch.get_num_threads() > 1 else tall and rows <= VERY_FEW
