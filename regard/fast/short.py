"""Attention of short rows that lie end to end, on a GPU: one program for a row and a head, which holds all of it.

    row 0 ├─ q₀ q₁ q₂ ─┤ looks at ├─ k₀ k₁ ─┤        p = softmax(scale · QKᵀ),  y = PV
    row 1 ├─ q₃ ─┤       looks at ├─ k₂ k₃ k₄ ─┤     dS = P ⊙ (dP − Σ P ⊙ dP),  dQ = scale · dS K,  dK = scale · dSᵀ Q

The library's kernel cuts rows into tiles of 128 by 128, of which sentences of 25 words use a twenty-fifth. Here a tile
is as large as the longest row wants. Nothing is kept for the gradient but what came in: the weights are made again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.core import spans
from regard.fast.early import INTERPRETED, triton

if triton is not None:
    import triton.language as tl

LONGEST = 64  # words of a row: of longer ones the library's tiles are well used
LEAST = 16  # that a tile has on each side
WIDTHS = (16, 32, 64, 128)  # of a head


if triton is not None:

    @triton.jit
    def _row(starts, row):
        """Where a row begins, and how long it is."""
        first = tl.load(starts + row).to(tl.int64)
        return first, (tl.load(starts + row + 1) - first).to(tl.int32)

    @triton.jit
    def _some(at, first, length, head, by_place, by_head, ROWS: tl.constexpr, WIDTH: tl.constexpr):
        """A row of one head, with zeros behind it."""
        places, width = tl.arange(0, ROWS)[:, None], tl.arange(0, WIDTH)[None, :]
        return tl.load(at + (first + places) * by_place + head * by_head + width, mask=places < length, other=0.0)

    @triton.jit
    def _keep(at, first, length, head, by_place, by_head, found, ROWS: tl.constexpr, WIDTH: tl.constexpr):
        places, width = tl.arange(0, ROWS)[:, None], tl.arange(0, WIDTH)[None, :]
        at += (first + places) * by_place + head * by_head + width
        tl.store(at, found.to(at.dtype.element_ty), mask=places < length)

    @triton.jit
    def _weights(q, k, asking, asked, scale, CAUSAL: tl.constexpr, Q: tl.constexpr, K: tl.constexpr):
        """(Q, K) in 32 bits. Who has nothing to see, and who is not there, has zeros."""
        queries, keys = tl.arange(0, Q)[:, None], tl.arange(0, K)[None, :]
        seen = (queries < asking) & (keys < asked)
        if CAUSAL:
            seen = seen & (keys <= queries)
        scores = tl.where(seen, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
        top = tl.max(scores, 1)
        shares = tl.exp(scores - tl.where(top == float("-inf"), 0.0, top)[:, None])
        total = tl.sum(shares, 1)
        return shares / tl.where(total == 0.0, 1.0, total)[:, None]

    @triton.jit
    def _look(
        q_at, k_at, v_at, y_at, asking_at, asked_at,
        q_by, q_head, k_by, k_head, v_by, v_head, y_by, y_head, heads, scale,
        CAUSAL: tl.constexpr, Q: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        head, row = tl.program_id(0) % heads, tl.program_id(0) // heads  # those of a row lie side by side
        first, asking = _row(asking_at, row)
        start, asked = _row(asked_at, row)
        if asking > 0:
            q = _some(q_at, first, asking, head, q_by, q_head, Q, WIDTH)
            k = _some(k_at, start, asked, head, k_by, k_head, K, WIDTH)
            v = _some(v_at, start, asked, head, v_by, v_head, K, WIDTH)
            p = _weights(q, k, asking, asked, scale, CAUSAL, Q, K)
            y = tl.dot(p.to(v.dtype), v, input_precision="ieee")
            _keep(y_at, first, asking, head, y_by, y_head, y, Q, WIDTH)

    @triton.jit
    def _learn(
        q_at, k_at, v_at, dy_at, dq_at, dk_at, dv_at, asking_at, asked_at,
        q_by, q_head, k_by, k_head, v_by, v_head, dy_by, dy_head, dq_by, dk_by, d_head, heads, scale,
        CAUSAL: tl.constexpr, Q: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        head, row = tl.program_id(0) % heads, tl.program_id(0) // heads  # those of a row lie side by side
        first, asking = _row(asking_at, row)
        start, asked = _row(asked_at, row)
        if asking + asked > 0:
            q = _some(q_at, first, asking, head, q_by, q_head, Q, WIDTH)
            k = _some(k_at, start, asked, head, k_by, k_head, K, WIDTH)
            v = _some(v_at, start, asked, head, v_by, v_head, K, WIDTH)
            dy = _some(dy_at, first, asking, head, dy_by, dy_head, Q, WIDTH)
            p = _weights(q, k, asking, asked, scale, CAUSAL, Q, K)
            dv = tl.dot(tl.trans(p.to(dy.dtype)), dy, input_precision="ieee")
            _keep(dv_at, start, asked, head, dk_by, d_head, dv, K, WIDTH)
            dp = tl.dot(dy, tl.trans(v), input_precision="ieee")
            ds = (p * (dp - tl.sum(p * dp, 1)[:, None]) * scale).to(q.dtype)
            dq = tl.dot(ds, k, input_precision="ieee")
            _keep(dq_at, first, asking, head, dq_by, d_head, dq, Q, WIDTH)
            dk = tl.dot(tl.trans(ds), q, input_precision="ieee")
            _keep(dk_at, start, asked, head, dk_by, d_head, dk, K, WIDTH)


@torch.library.custom_op("regard::look_short", mutates_args=())
def _looked(
    q: Tensor, k: Tensor, v: Tensor, asking: Tensor, asked: Tensor, most: int, longest: int, causal: bool, scale: float
) -> Tensor:
    y = q.new_empty(q.shape)
    _look[_grid(q, asking)](
        q, k, v, y, asking, asked, *_steps(q, k, v, y), q.shape[1], scale, causal,
        **_tiles(most, longest, q.shape[-1]),
    )  # fmt: skip
    return y


@torch.library.custom_op("regard::learn_short", mutates_args=())
def _learnt(
    dy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    asking: Tensor,
    asked: Tensor,
    most: int,
    longest: int,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (t.new_empty(t.shape) for t in (q, k, v))
    _learn[_grid(q, asking)](
        q, k, v, dy, dq, dk, dv, asking, asked, *_steps(q, k, v, dy), dq.stride(0), dk.stride(0), dq.stride(1),
        q.shape[1], scale, causal, **_tiles(most, longest, q.shape[-1]),
    )  # fmt: skip
    return dq, dk, dv


@_looked.register_fake
def _(q: Tensor, *_: object) -> Tensor:
    return q.new_empty(q.shape)


@_learnt.register_fake
def _(dy: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.most, ctx.longest, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    how = ctx.most, ctx.longest, ctx.causal, ctx.scale
    dq, dk, dv = _learnt(_by_numbers(dy), *ctx.saved_tensors, *how)
    return dq, dk, dv, *[None] * 6


_looked.register_autograd(_gradients, setup_context=_remember)


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
    """As `core.spans.look_along`, which has the rest."""
    if dropout or max(longest) > LONGEST or q.shape[-1] not in WIDTHS or v.shape[-1] != q.shape[-1]:
        return spans.look_along(q, k, v, asking, asked, longest, causal=causal, dropout=dropout, scale=scale)
    y: Tensor = _looked(*map(_by_numbers, (q, k, v)), asking, asked, *longest, causal, scale)
    return y


def suits(like: Tensor) -> bool:
    return triton is not None and (like.is_cuda or INTERPRETED)


def _grid(q: Tensor, starts: Tensor) -> tuple[int]:
    return (q.shape[1] * (len(starts) - 1),)


def _steps(*some: Tensor) -> list[int]:
    """From one place to the next, and from one head to the next."""
    return [step for t in some for step in t.stride()[:2]]


def _by_numbers(t: Tensor) -> Tensor:
    """The numbers of a head side by side."""
    return t if t.stride(-1) == 1 else t.contiguous()


def _tiles(most: int, longest: int, width: int) -> dict[str, int]:
    q, k = (max(LEAST, triton.next_power_of_2(n)) for n in (most, longest))
    return {"Q": q, "K": k, "WIDTH": width, "num_warps": 4 if q * k > 32 * 32 else 2 if q * k > LEAST * LEAST else 1}
