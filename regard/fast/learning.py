"""What a model learns by on a CPU: products of matrices that change all the time, the loss of logits, and attention
where rows lie end to end, so that nothing is padding.

    y = Wx + b, dx = Wᵀdy, dW = dy xᵀ   each side is read as it lies
    z ─▶ loss, dz                       three times through a row of logits, and not ten times through a table of them
    q, k, v ─▶ context                  row by row, whatever its length; the way back makes the weights once more

All of it is in fp32. How many threads serve changes only the speed: each sum is made in the same order, but for small
results of long sums, which are left to PyTorch.
"""

from __future__ import annotations

from contextlib import suppress
from ctypes import Structure, byref, c_bool, c_float, c_int, c_long, c_void_p
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.core.head import spread as plain_spread
from regard.core.linear import recorded
from regard.core.linear import times as plain_times
from regard.fast.build import Unbuilt, library, trouble

SHARE = 2**15  # numbers to read or multiply that are worth a thread
SMALL = 32  # a result that is neither taller nor wider is made of long sums, which PyTorch shares out better


class _Heads(Structure):
    _fields_ = (("count", c_int), ("dim", c_int), ("scale", c_float), ("causal", c_bool))


class _Rows(Structure):
    _fields_ = (("at", c_void_p), ("stride", c_long))


class _Side(Structure):
    _fields_ = (("at", c_void_p), ("stride", c_long), ("turned", c_bool))


class _Looking(Structure):
    _fields_ = (
        ("heads", _Heads), ("q", _Rows), ("k", _Rows), ("v", _Rows),
        ("asking", c_void_p), ("asked", c_void_p), ("sentences", c_int),
    )  # fmt: skip


def times(
    a: Tensor, b: Tensor, to: Tensor | None = None, *, bias: Tensor | None = None, add: bool = False,
    kernels: str | None = None,
) -> Tensor:  # fmt: skip
    """a·b + bias of (m, k) and (k, n); into `to`, or added to what is there. `kernels` names those of another processor
    than the best that is there."""
    small = kernels is None and max(len(a), *b.shape[1:]) < SMALL
    if recorded() or small or not _fit(a, b, to, bias):
        return plain_times(a, b, to, bias=bias, add=add)  # which says what is wrong, if something is
    a, b = _in_lines(a), _in_lines(b)
    (m, k), n = a.shape, b.shape[1]
    found = a.new_empty(m, n) if to is None else to
    bias = None if bias is None else bias.contiguous()
    _do("multiply", kernels, byref(_side(a.T)), m, byref(_side(b)), n, k, None if bias is None else bias.data_ptr(),
        found.data_ptr(), found.stride(0), add, _threads(m * n * k // 64))  # fmt: skip
    return found


def spread(
    z: Tensor, y: Tensor, w: Tensor | None, vocab: int, smoothing: float, *, kernels: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """As the head's own: the loss, the loss without smoothing, and the gradient by z, in z's place."""
    words, exact = y.contiguous(), _plain(z) and y.dtype == torch.int64
    known = len(z) > 0 and int(words.min()) >= 0 and int(words.max()) < vocab  # of others PyTorch says what is wrong
    if recorded() or not exact or not known or z.shape[1] != vocab or not z.is_contiguous():
        return plain_spread(z, y, w, vocab, smoothing)
    nll, total = (z.new_empty(len(z)) for _ in range(2))
    _do("lose", kernels, z.data_ptr(), len(z), vocab, words.data_ptr(), smoothing, nll.data_ptr(), total.data_ptr(),
        _threads(z.numel()))  # fmt: skip
    if w is not None:
        nll, total, z = nll * w[:, 0], total * w[:, 0], z.mul_(w)
    return total.sum(), nll.sum(), z


class Along(torch.autograd.Function):
    """Queries (N, H, D) of rows that lie end to end look at the keys and values (M, H, D) of theirs."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, asking: Tensor, asked: Tensor, causal: bool, scale: float,
        kernels: str | None,
    ) -> Tensor:  # fmt: skip
        if causal and not torch.equal(asking, asked):
            raise ValueError("causal came with rows of keys that are not the queries' own; leave it out for another's")
        q, k, v = (_side_by_side(t) for t in (q, k, v))
        context, mass = q.new_empty(q.shape), q.new_empty(q.shape[:2])
        ctx.save_for_backward(q, k, v, asking, asked, mass)
        ctx.how = causal, scale, kernels
        looking, threads = _looking(q, k, v, asking, asked, causal, scale), _threads(q.numel())
        _do("look", kernels, byref(looking), context.data_ptr(), mass.data_ptr(), threads)
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, asking, asked, mass = ctx.saved_tensors
        causal, scale, kernels = ctx.how
        dy, dq, dk, dv = dy.contiguous(), *(t.new_empty(t.shape) for t in (q, k, v))
        looking, threads = _looking(q, k, v, asking, asked, causal, scale), _threads(q.numel())
        _do("unlook", kernels, byref(looking), *(t.data_ptr() for t in (mass, dy, dq, dk, dv)), threads)
        return dq, dk, dv, *[None] * 5


def along(q: Tensor, k: Tensor, v: Tensor, asking: Tensor, asked: Tensor, *, causal: bool, scale: float) -> Tensor:
    """(N, H, D): `asking` and `asked` say where rows of queries and of keys begin, and the last ends."""
    context: Tensor = Along.apply(q, k, v, asking, asked, causal, scale, None)
    return context


def suits(like: Tensor) -> bool:
    """Whether what has such weights can be taught by it; nobody hears of it where there is no accelerator."""
    if like.device.type != "cpu" or like.dtype != torch.float32:
        return False
    with suppress(Unbuilt):
        return library() is not None
    return False


def _looking(
    q: Tensor, k: Tensor, v: Tensor, asking: Tensor, asked: Tensor, causal: bool, scale: float
) -> _Looking:  # fmt: skip
    heads = _Heads(q.shape[1], q.shape[2], scale, causal)
    rows = (_Rows(t.data_ptr(), t.stride(0)) for t in (q, k, v))
    return _Looking(heads, *rows, asking.data_ptr(), asked.data_ptr(), len(asking) - 1)


def _fit(a: Tensor, b: Tensor, to: Tensor | None, bias: Tensor | None) -> bool:
    """Whether the native side can be handed what is there, as numbers and nothing else."""
    if not all(t is None or _plain(t) for t in (a, b, to, bias)) or a.shape[1] != b.shape[0]:
        return False
    in_lines = to is None or to.is_contiguous() or (to.stride(1) == 1 and to.stride(0) >= to.shape[1])
    whole = to is None or (to.shape == (len(a), b.shape[1]) and in_lines)
    return whole and (bias is None or bias.shape == (b.shape[1],))


def _plain(t: Tensor) -> bool:
    return t.dtype == torch.float32 and t.device.type == "cpu"


def _side(x: Tensor) -> _Side:
    """Vectors (N, width), one behind the other or side by side."""
    turned = x.stride(1) != 1
    return _Side(x.data_ptr(), x.stride(1) if turned else x.stride(0), turned)


def _in_lines(x: Tensor) -> Tensor:
    """Of which the rows or the columns lie without a gap."""
    return x if 1 in x.stride() else x.contiguous()


def _side_by_side(x: Tensor) -> Tensor:
    """All heads of a row without a gap, as the native side reads them."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def _threads(work: int) -> int:
    return max(1, min(torch.get_num_threads(), work // SHARE))


def _do(what: str, kernels: str | None, *given: Any) -> None:
    named = None if kernels is None else kernels.encode()
    if not getattr(library(), f"regard_{what}")(named, *given):
        raise trouble(what, named)
