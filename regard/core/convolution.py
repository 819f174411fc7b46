"""A causal, dilated convolution: what is said now comes from now and from some steps back, and from nothing later.

    y_t = b + Σⱼ Wⱼ x_{t-j·d}      j = 0 … k-1      zeros stand before the beginning
    W = g · V / ‖V‖                 weight norm (Salimans & Kingma 2016): length and direction are learnt apart

    x   ○ ○ ● ○ ● ○ ●      kernel k = 3, dilation d = 2 (van den Oord et al. 2016): it hears 2, 4, … steps back,
                ╲ ╲ │      as far as (k-1)·d
    y   ○ ○ ○ ○ ○ ○ ●

Inside, a batch lies channels first and rows last, (C, T, B). A step back in time is then a step back in memory, the
same for all rows, and every Wⱼ meets its part of x in one product, where x lies: nothing need be padded, copied or cut
off afterwards, and a Wⱼ that reaches back before the beginning costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.core.linear import WORTH, Multiplying, Times, times

FEW = 2**13  # numbers: with fewer, a call costs more than the work that it does
NEAR = 2**16  # numbers that are laid out for a gradient: with more, they are too far away when they are multiplied


class Causal(Multiplying):
    """A causal convolution with weight norm that begins as PyTorch's convolutions do."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int = 1) -> None:
        super().__init__()
        self.dilation, self.reach = dilation, (kernel - 1) * dilation
        bound = (inputs * kernel) ** -0.5
        self.v = nn.Parameter(torch.empty(outputs, kernel, inputs).uniform_(-bound, bound))
        self.g = nn.Parameter(self.v.detach().norm(dim=(1, 2)))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))

    @property
    def weight(self) -> Tensor:
        """(outputs, kernel, inputs), in the order of time, as PyTorch's convolutions have it: the last is W₀."""
        return torch._weight_norm(self.v, self.g.view(-1, 1, 1), 0)

    def forward(self, x: Tensor, past: Tensor | None = None, real: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(C, T, B) -> (outputs, T, B), and what of the past the next steps must know, (B, C, ≤ reach).

        `real` (B, T) is False at padding, behind the real steps of a row: then it is the past after the last of these.
        """
        lead = 0 if past is None else past.shape[-1]
        if past is not None and lead:
            x = torch.cat([past.permute(1, 2, 0).to(x.dtype), x], 1)
        return causal(x, self.weight, self.bias, self.dilation, lead, self.times), self._heard(x, lead, real)

    def every_second(self, x: Tensor) -> Tensor:
        """What it says at every second step, counted from the last, if the dilation were 1: the steps from which it
        hears an even number back are one sequence, those from which it hears an odd number another."""
        (even, odd), (now, before) = halves(x), halves(self.weight)
        y = causal(even, now, self.bias, by=self.times)
        if odd.shape[1] == 0 or before.shape[1] == 0:
            return y
        z = causal(odd, before, by=self.times)
        return y + F.pad(z, (0, 0, y.shape[1] - z.shape[1], 0))

    def _heard(self, x: Tensor, lead: int, real: Tensor | None) -> Tensor:
        whole = x.shape[1]
        kept = min(self.reach, whole)
        if real is None:
            last = x[:, whole - kept :]
            if whole > 2 * kept and not torch.is_grad_enabled():
                last = last.clone()  # a view would keep all of x alive
        else:
            end = lead + real.sum(1)  # of each row, (B,)
            at = torch.arange(kept, device=x.device)[:, None] + end - kept  # (kept, B)
            last = x.gather(1, at.clamp(min=0).expand(len(x), -1, -1)) * (at >= 0)
        return last.permute(2, 0, 1)


def causal(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, dilation: int = 1, lead: int = 0, by: Times = times
) -> Tensor:  # fmt: skip
    """x (C, T, B), weight (outputs, kernel, C) -> (outputs, T - lead, B): the first `lead` steps are only heard. Large
    products are made `by` somebody's own."""
    device, rows = x.device.type, x.shape[2]
    if torch.is_autocast_enabled(device):
        kind = torch.get_autocast_dtype(device)
        x, weight, bias = x.to(kind), weight.to(kind), None if bias is None else bias.to(kind)
    if (heard := max(1, -(-x.shape[1] // dilation))) < weight.shape[1]:  # the taps before hear nothing
        weight = weight[:, -heard:]
    how = weight, bias, dilation * rows, lead * rows
    y: Tensor
    if weight.shape[1] == 1 or (device == "cpu" and x.numel() > FEW):
        y = Taps.apply(x.flatten(1), *how, by if x.numel() * len(weight) >= WORTH else times)
    else:
        y = Columns.apply(x.flatten(1), *how)
    return y.unflatten(1, (-1, rows))


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Every second step of (C, T, B), counted from the last, and those between."""
    last = x.shape[1] - 1
    return x[:, last % 2 :: 2], x[:, (last + 1) % 2 :: 2]


class Heard(tuple[Tensor, ...]):
    """The last inputs of several convolutions, (B, C, ≤ reach) each: fewer than its reach where a row has read fewer.

    Zeros stand before the beginning, so that rows which have read unequally much can go on together.
    """

    @staticmethod
    def beside(parts: Sequence[Heard]) -> Heard:
        longest = [max(t.shape[-1] for t in some) for some in zip(*parts, strict=True)]
        padded = [[F.pad(t, (n - t.shape[-1], 0)) for t, n in zip(part, longest, strict=True)] for part in parts]
        return Heard(torch.cat(some) for some in zip(*padded, strict=True))


class Taps(torch.autograd.Function):
    """One product for each Wⱼ, and no copy: the fastest on a CPU, unless there is little to do."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int, lead: int, by: Times = times
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x, weight)
        ctx.dilation, ctx.lead, ctx.by = dilation, lead, by
        answered = len(weight), x.shape[1] - lead
        y = x.new_zeros(answered) if bias is None else bias[:, None].expand(answered).clone()
        for w, (then, at) in zip(reversed(weight.unbind(1)), _spans(x, dilation, lead), strict=False):
            by(w, x[:, then], y[:, at], add=True)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if dy.numel() * weight.shape[1] <= NEAR:
            return *_back(ctx, dy), None
        dw, dx = torch.zeros_like(weight), torch.zeros_like(x) if ctx.needs_input_grad[0] else None
        pairs = zip(reversed(weight.unbind(1)), reversed(dw.unbind(1)), strict=True)
        for (w, d), (then, at) in zip(pairs, _spans(x, ctx.dilation, ctx.lead), strict=False):
            moved = dy[:, at]
            ctx.by(moved, x[:, then].T, d)
            if dx is not None:
                ctx.by(w.T, moved, dx[:, then], add=True)
        return dx, dw, dy.sum(1) if ctx.needs_input_grad[2] else None, None, None, None


def _spans(x: Tensor, dilation: int, lead: int) -> Iterator[tuple[slice, slice]]:
    """Going back from now: which of x is heard there, and at which of y; no farther than there is something to hear."""
    whole = x.shape[1]
    for back in range(0, whole, dilation):
        yield slice(max(lead - back, 0), whole - back), slice(max(back - lead, 0), None)


class Columns(torch.autograd.Function):
    """All that a step hears laid out as one column, and one product for all Wⱼ: few calls, for a GPU or little work."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int, lead: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.dilation, ctx.lead = dilation, lead
        kernel = weight.shape[1]
        heard = _beside(F.pad(x, ((kernel - 1) * dilation - lead, 0)), kernel, dilation).transpose(0, 1).flatten(0, 1)
        return weight.flatten(1) @ heard if bias is None else torch.addmm(bias[:, None], weight.flatten(1), heard)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return _back(ctx, dy)


def _back(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    """Each step of x is moved by all that heard it: laid out as one column, one product gives dx and another dW."""
    x, weight = ctx.saved_tensors
    kernel = weight.shape[1]
    heard_by = _beside(F.pad(dy, (ctx.lead, (kernel - 1) * ctx.dilation)), kernel, ctx.dilation).flip(1).flatten(0, 1)
    dx = weight.flatten(0, 1).T @ heard_by if ctx.needs_input_grad[0] else None
    dw = (heard_by @ x.T).view_as(weight)
    return dx, dw, dy.sum(1) if ctx.needs_input_grad[2] else None, None, None


def _beside(x: Tensor, kernel: int, dilation: int) -> Tensor:
    """(C, n + (kernel-1) · dilation) -> (C, kernel, n), a view: steps, and as many as are heard together with them."""
    (channels, whole), (down, along) = x.shape, x.stride()
    n = whole - (kernel - 1) * dilation
    return x.as_strided((channels, kernel, n), (down, dilation * along, along))
