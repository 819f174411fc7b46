"""Batches without padding: the rows of a batch laid end to end, so that every product is one of real tokens.

    (B, T, …) ─pack→ (1, N, …) ─→ norms, products, attention row by row ─→ (1, N, …) ─unpack→ (B, T, …)

What happens at each position alone does not care how its neighbours lie. Attention does: it runs over groups of rows of
one length, which are a view of the packed batch, or of about one length, where another call costs more than padding.
Where a training step is recorded on a GPU, nobody may ask how long rows are: one kernel is told where each begins. So
is the accelerator's on a CPU, whose rows may look at those of another batch, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from itertools import pairwise
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

LookAlong = Callable[..., Tensor]  # a kernel for a GPU, asked as `look_along` is

SPARE = 0  # pairs of query and key that a group may waste on padding: on a CPU none, rows as they lie are fastest
SPARE_GPU = 2**20  # about what a GPU computes in the time that it takes to call it
HALVES = (torch.bfloat16, torch.float16)
WIDEST = 192  # head that the kernel for rows of any length takes on all GPUs that have it, gradients included


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

    @property
    def asking(self) -> Spans:
        """Where the rows of queries lie, if they are not their own: row i looks at row i."""
        return self

    @property
    def longest(self) -> int:
        return self.real.shape[1]

    @property
    def places(self) -> Tensor:
        """(1, N) where in its row each packed token stands."""
        return (self.at % self.longest)[None]

    def takes(self, *heads: Tensor, dropout: float) -> bool:
        """Whether `look` is for such queries, keys and values; others are looked at side by side."""
        return True

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


class Begun(Spans):
    """For a kernel that is told where each row begins, and that may be asked by rows of another batch."""

    starts: Tensor  # (R + 1,) where each row begins, and the last of them ends
    others: Begun | None = None  # that ask

    @property
    def asking(self) -> Begun:
        return self if self.others is None else self.others

    def asked_by(self, others: Begun) -> Begun:
        """Such a kernel wants as many rows on both sides: empty ones are put behind the fewer."""
        found, found.others = copy(self), copy(others)
        most = max(len(self.starts), len(others.starts))
        found.starts, found.others.starts = (_with_empty(starts, most) for starts in (self.starts, others.starts))
        return found

    def begins(self, causal: bool) -> tuple[Tensor, Tensor]:
        """Where rows of queries begin, and rows of keys."""
        if causal and self.others is not None:
            raise ValueError("causal came with rows of keys that are not the queries' own; leave it out for another's")
        return self.asking.starts, self.starts


class SteadySpans(Begun):
    """In `room` places, as many as are real or more: shapes do not depend on the data, and nothing is asked of the
    device. What is left over are rows of their own, of which nobody hears.
    """

    def __init__(self, real: Tensor, room: int, along: LookAlong | None = None) -> None:
        self.real, self.along = real, along
        self.at = first_places(real.flatten(), room)
        ends, over = real.sum(1).cumsum(0), torch.arange(1, -(-room // self.longest) + 1, device=real.device)
        ends = torch.cat([ends, (ends[-1] + self.longest * over).clamp(max=room)])
        self.starts = F.pad(ends, (1, 0)).to(torch.int32)  # the end of a row is the start of the next

    @property
    def rows(self) -> Tensor:  # type: ignore[override]
        places = torch.arange(len(self.at), device=self.at.device, dtype=torch.int32)
        return torch.searchsorted(self.starts[1:], places, right=True)

    @property
    def held(self) -> Tensor:
        """(1, N) which places are those of real tokens."""
        return (self.at < self.real.numel())[None]

    def takes(self, *heads: Tensor, dropout: float) -> bool:
        return fits(*heads)

    def pack(self, x: Tensor) -> Tensor:
        """Behind the last that is real comes the last of the batch, again and again."""
        flat = x.flatten(0, 1)
        return flat.index_select(0, self.at.clamp(max=len(flat) - 1))[None]

    def unpack(self, x: Tensor) -> Tensor:
        places, shape = self.real.numel(), self.real.shape
        held = x.new_zeros(places + 1, *x.shape[2:]).index_copy_(0, self.at, x[0])  # what is left over in the last
        return held[:places].unflatten(0, shape)

    def look(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, dropout: float, scale: float) -> Tensor:
        q, k, v = (t.squeeze(0).transpose(0, 1) for t in (q, k, v))  # t[0] would cost its gradient one copy more
        look, longest = self.along or look_along, (self.asking.longest, self.longest)
        context = look(q, k, v, *self.begins(causal), longest, causal=causal, dropout=dropout, scale=scale)
        return context.transpose(0, 1)[None]


class Along(Protocol):
    """A kernel for a CPU, for rows end to end: queries (N, H, D) look at keys and values (M, H, D)."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, asking: Tensor, asked: Tensor, *, causal: bool, scale: float
    ) -> Tensor:
        """`asking` and `asked`, (B + 1,): where rows of queries and of keys begin, and the last of them ends."""


class Rows(Begun):
    """In the order that they came in, for a kernel on a CPU."""

    def __init__(self, real: Tensor, along: Along) -> None:
        self.real, self.along = real, along
        self.at = real.flatten().nonzero().squeeze(1)
        self.starts = F.pad(real.sum(1).cumsum(0), (1, 0)).to(torch.int32)

    @property
    def rows(self) -> Tensor:  # type: ignore[override]
        return self.at // self.longest

    def takes(self, *heads: Tensor, dropout: float) -> bool:
        alike = len({t.shape[-1] for t in heads}) == 1
        return alike and dropout == 0 and all(t.dtype == torch.float32 and t.device.type == "cpu" for t in heads)

    def look(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, dropout: float, scale: float) -> Tensor:
        q, k, v = (t.squeeze(0).transpose(0, 1) for t in (q, k, v))
        context = self.along(q, k, v, *self.begins(causal), causal=causal, scale=scale)
        return context.transpose(0, 1)[None]


def first_places(chosen: Tensor, count: int) -> Tensor:
    """Where the first so many of (N,) are True, and N when there are no more: (count,), without asking how many."""
    places = torch.arange(len(chosen), device=chosen.device)
    found = torch.full((count + 1,), len(chosen), device=chosen.device)
    return found.scatter_(0, (chosen.cumsum(0) - 1).where(chosen, count), places)[:count]


def has_kernel(device: torch.device) -> bool:
    """Whether heads that are made from here on can be read by the kernel that is told where rows begin: on a GPU since
    Ampere, in 16 bits."""
    if device.type != "cuda" or not torch.backends.cuda.is_flash_attention_available():
        return False
    kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else torch.get_default_dtype()
    return kind in HALVES and torch.cuda.get_device_capability(device) >= (8, 0)


def fits(*heads: Tensor) -> bool:
    """Whether it takes such queries, keys and values."""
    width = max(t.shape[-1] for t in heads)
    return width % 8 == 0 and width <= WIDEST and all(t.is_cuda and t.dtype in HALVES for t in heads)


def look_along(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    asking: Tensor,
    asked: Tensor,
    longest: tuple[int, int],
    *,
    causal: bool,
    dropout: float,
    scale: float,
) -> Tensor:
    """Attention of each row of queries (N, H, D) to its row of keys and values (M, H, D), where rows lie end to end,
    and how long they are at most. PyTorch's nested tensors call this kernel likewise; by its own name it has dropout,
    needs no nested tensors, and can be compiled and recorded."""
    flash = torch.ops.aten._flash_attention_forward
    context: Tensor = flash(q, k, v, asking, asked, *longest, dropout, causal, False, scale=scale)[0]
    return context


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


def _with_empty(starts: Tensor, most: int) -> Tensor:
    """Empty rows put behind the last, so that there are `most` numbers."""
    return torch.cat([starts, starts[-1:].expand(most - len(starts))])


def _place(x: Tensor, at: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Vectors (n, …) at their places of a (b, t, …) that is zero elsewhere."""
    rows, columns = shape
    return x.new_zeros(rows * columns, *x.shape[1:]).index_copy_(0, at, x).unflatten(0, (rows, columns))
