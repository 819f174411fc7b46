"""Batches without padding: the rows of a batch laid end to end, so that every product is one of real tokens.

    (B, T, …) ─pack→ (1, N, …) ─→ norms, products, attention row by row ─→ (1, N, …) ─unpack→ (B, T, …)

What happens at each position alone does not care how its neighbours lie. Attention does: it runs over groups of rows of
one length, which are a view of the packed batch, or of about one length, where another call costs more than padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

SPARE = 0  # pairs of query and key that a group may waste on padding: on a CPU none, rows as they lie are fastest
SPARE_GPU = 2**20  # about what a GPU computes in the time that it takes to call it


class Spans:
    """Where the rows of a batch lie once they are packed, the longest first. `real` (B, T) may have any pattern."""

    def __init__(self, real: Tensor) -> None:
        self.real = real
        lengths, order = real.sum(1).sort(descending=True, stable=True)
        row, column = real[order].nonzero(as_tuple=True)
        self.at = order[row] * real.shape[1] + column  # (N,) where in the batch, flattened, each packed token stands
        self.rows = row  # (N,) which of the packed rows it is in
        spare = SPARE if real.device.type == "cpu" else SPARE_GPU
        held = [length for length in lengths.tolist() if length] or [0]
        self.groups = [_Group(some, real.device) for some in _alike(held, spare)]

    def pack(self, x: Tensor) -> Tensor:
        """(B, T, …) -> (1, N, …)."""
        return x.flatten(0, 1).index_select(0, self.at)[None]

    def unpack(self, x: Tensor) -> Tensor:
        """(1, N, …) -> (B, T, …), zero at padding."""
        return _place(x[0], self.at, self.real.shape)

    def look(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, dropout: float, scale: float) -> Tensor:
        """Each row's attention to itself in the fused kernel, (1, H, N, D)."""
        sizes = [group.size for group in self.groups]
        parts = zip(self.groups, *(t[0].transpose(0, 1).split(sizes) for t in (q, k, v)), strict=True)
        contexts = [group.look(q, k, v, causal, dropout, scale) for group, q, k, v in parts]
        return torch.cat(contexts).transpose(0, 1)[None]


class _Group:
    """Neighbouring rows of about one length."""

    def __init__(self, lengths: list[int], device: torch.device) -> None:
        self.shape, self.size = (len(lengths), lengths[0]), sum(lengths)
        self.real: Tensor | None = None  # (b, t), where there is padding
        if lengths[-1] < lengths[0]:
            self.real = torch.arange(lengths[0], device=device) < torch.tensor(lengths, device=device)[:, None]
            self.at = self.real.flatten().nonzero().squeeze(1)

    def look(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, dropout: float, scale: float) -> Tensor:
        """(n, H, D) -> (n, H, D)."""
        q, k, v = (self._spread(t).transpose(1, 2) for t in (q, k, v))
        triangle = causal and self.real is None  # which the kernel draws by itself
        context = F.scaled_dot_product_attention(q, k, v, self._seen(causal), dropout, triangle, scale=scale)
        return self._join(context.transpose(1, 2))

    def _spread(self, x: Tensor) -> Tensor:  # (n, …) -> (b, t, …)
        return x.unflatten(0, self.shape) if self.real is None else _place(x, self.at, self.shape)

    def _join(self, x: Tensor) -> Tensor:  # (b, t, …) -> (n, …)
        return x.flatten(0, 1) if self.real is None else x.flatten(0, 1).index_select(0, self.at)

    def _seen(self, causal: bool) -> Tensor | None:
        if self.real is None:
            return None
        keys, t = self.real[:, None, None], self.shape[1]
        return keys & keys.new_ones(t, t).tril() if causal else keys


def _alike(lengths: list[int], spare: int) -> Iterator[list[int]]:
    """Cuts falling lengths where padding up to the group's longest would cost more than `spare`."""
    cuts, waste = [0], 0
    for i, length in enumerate(lengths):
        waste += lengths[cuts[-1]] ** 2 - length**2
        if waste > spare:
            cuts.append(i)
            waste = 0
    yield from (lengths[start:end] for start, end in pairwise([*cuts, len(lengths)]))


def _place(x: Tensor, at: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Vectors (n, …) at their places of a (b, t, …) that is zero elsewhere."""
    rows, columns = shape
    return x.new_zeros(rows * columns, *x.shape[1:]).index_copy_(0, at, x).unflatten(0, (rows, columns))
