"""Batches of few shapes: a step that is recorded once for each shape wants to meet it again.

Lengths are rounded up, and so is the number of rows: what fills them up costs a little time, and nothing of it counts.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def more(count: int, forms: int = 16) -> int:
    """So many or a few more: there are `forms` such numbers, a power of two, from one power of two to the next."""
    grid = 1 << max(0, (count - 1).bit_length() - forms.bit_length())
    return -(-count // grid) * grid


def longer(length: int, longest: int | None = None, forms: int = 16) -> int:
    """Likewise, and never more than a system reads."""
    long = more(length, forms)
    return long if longest is None else max(length, min(long, longest))


def lengthen(table: Tensor, length: int, value: int = 0) -> Tensor:
    """(B, T, …) -> (B, length, …), filled up with the value."""
    return F.pad(table, (0, 0) * (table.dim() - 2) + (0, length - table.shape[1]), value=value)


def with_rows(table: Tensor, rows: int) -> Tensor:
    """(B, …) -> (rows, …): the first comes again, so that a system finds there what it finds everywhere."""
    return torch.cat([table, table[:1].expand(rows - len(table), *table.shape[1:])])
