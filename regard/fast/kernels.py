"""Kernels for a step of few vectors on a GPU, where the time is that of beginning and not of computing.

    product   y = activation(W · norm(x) + b) + residual        one kernel where PyTorch has up to four
    write     the next keys and values into their places         one where it has two
    attend    one query of each hypothesis at all keys so far    reads what has been written, not the whole buffer

They are written in Triton, which comes with PyTorch where there are GPUs; without it everything is done as ever. What
is rounded to 16 bits between two steps by PyTorch is rounded so here, and sums are made in 32.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

try:
    import triton
    import triton.language as tl
except ImportError:  # there are none for this platform
    triton = None

KINDS = (torch.float32, torch.bfloat16, torch.float16)
MOST_QUERIES = 16  # of a sentence, at once
TILE = 16  # the least number of rows of a matrix product in a kernel
LOWEST = -1e30  # in place of -inf, from which nothing can be subtracted
CHUNK = 2048  # columns of W at a time
KEYS = 128  # at a time


def suit(buffer: Tensor, queries: int) -> bool:
    """Whether there are kernels for such tensors, and so many queries of a sentence."""
    here = triton is not None and (buffer.is_cuda or INTERPRETED)
    return here and buffer.dtype in KINDS and queries <= MOST_QUERIES


if triton is None:
    INTERPRETED = False
else:
    INTERPRETED = triton.knobs.runtime.interpret  # on a CPU, slowly: to see that they are right

    @triton.jit
    def _gelu(x):
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))

    @triton.jit
    def _gelu_tanh(x):
        return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))

    @triton.jit
    def _relu(x):
        return tl.maximum(x, 0.0)

    @triton.jit
    def _silu(x):
        return x * tl.sigmoid(x)

    @triton.jit
    def _same(x):
        return x

    @triton.jit
    def _product(
        x_at, w_at, b_at, gamma_at, beta_at, residual_at, y_at, epsilon,
        N, M: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
        BIAS: tl.constexpr, NORM: tl.constexpr, SHIFT: tl.constexpr, RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr,
    ):  # fmt: skip
        n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        k = tl.arange(0, CHUNK)
        kind = y_at.dtype.element_ty
        inside = (n < N)[:, None]
        w = tl.load(w_at + n[:, None] * K + k[None, :], mask=inside & (k < K)[None, :], other=0.0)
        bias = tl.load(b_at + n, mask=n < N, other=0.0).to(tl.float32) if BIAS else 0.0
        for m in tl.static_range(M):
            x = tl.load(x_at + m * K + k, mask=k < K, other=0.0).to(tl.float32)
            if NORM:
                x = tl.where(k < K, x - tl.sum(x) / K, 0.0)
                x = x * tl.rsqrt(tl.sum(x * x) / K + epsilon)
                x = x * tl.load(gamma_at + k, mask=k < K, other=0.0).to(tl.float32)
                if SHIFT:
                    x += tl.load(beta_at + k, mask=k < K, other=0.0).to(tl.float32)
                x = x.to(kind).to(tl.float32)
            products = w.to(tl.float32) * x[None, :]
            for begin in tl.static_range(CHUNK, K, CHUNK):
                at = begin + k
                some = tl.load(w_at + n[:, None] * K + at[None, :], mask=inside & (at < K)[None, :], other=0.0)
                products += some.to(tl.float32) * tl.load(x_at + m * K + at, mask=at < K, other=0.0).to(tl.float32)
            y = ACTIVATION((tl.sum(products, 1) + bias).to(kind).to(tl.float32)).to(kind)
            if RESIDUAL:
                y = (y.to(tl.float32) + tl.load(residual_at + m * N + n, mask=n < N, other=0.0).to(tl.float32)).to(kind)
            tl.store(y_at + m * N + n, y, mask=n < N)

    @triton.jit
    def _attend(
        q_at, k_at, v_at, seen_at, new_k_at, new_v_at, places_at, y_at, scale, capacity,
        q_row, q_head, q_one, new_row, new_head, new_one, seen_row, seen_one, y_row, y_head, y_one,
        N: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
        FRESH: tl.constexpr, GROWS: tl.constexpr, LOWEST: tl.constexpr,
    ):  # fmt: skip
        row, head = tl.program_id(0), tl.program_id(1)
        one, d, some = tl.arange(0, ROWS), tl.arange(0, WIDTH), tl.arange(0, BLOCK)
        real = (one < N)[:, None] & (d < D)[None, :]
        buffer = (row.to(tl.int64) * tl.num_programs(1) + head) * capacity * D
        q = tl.load(q_at + row * q_row + head * q_head + one[:, None] * q_one + d[None, :], mask=real, other=0.0)
        if FRESH:  # each sees its own; nobody reads them from where they are written to
            fresh = row * new_row + head * new_head + one[:, None] * new_one + d[None, :]
            k = tl.load(new_k_at + fresh, mask=real, other=0.0)
            v = tl.load(new_v_at + fresh, mask=real, other=0.0)
            place = tl.load(places_at + one, mask=one < N, other=0)
            tl.store(k_at + buffer + place[:, None] * D + d[None, :], k, mask=real)
            tl.store(v_at + buffer + place[:, None] * D + d[None, :], v, mask=real)
            top = tl.sum(q.to(tl.float32) * k.to(tl.float32), 1) * scale
            mass = tl.full([ROWS], 1.0, tl.float32)
            y = v.to(tl.float32)
            end = tl.load(places_at).to(tl.int32)
        else:
            top = tl.full([ROWS], LOWEST, tl.float32)
            mass = tl.zeros([ROWS], tl.float32)
            y = tl.zeros([ROWS, WIDTH], tl.float32)
            end = capacity
            if GROWS:
                end = (tl.load(places_at) + N).to(tl.int32)
        for begin in range(0, end, BLOCK):
            at = begin + some
            here = (at < end)[:, None] & (d < D)[None, :]
            k = tl.load(k_at + buffer + at[:, None] * D + d[None, :], mask=here, other=0.0)
            v = tl.load(v_at + buffer + at[:, None] * D + d[None, :], mask=here, other=0.0)
            visible = (one < N)[:, None] & (at < end)[None, :]
            seen = seen_at + row * seen_row + one[:, None] * seen_one + at[None, :]
            seen = tl.load(seen, mask=visible, other=float("-inf"))
            if ROWS == 1:
                scores = tl.sum(q.to(tl.float32) * k.to(tl.float32), 1)[None, :]
            else:
                scores = tl.dot(q, tl.trans(k), input_precision="ieee")
            scores = scores * scale + seen.to(tl.float32)
            higher = tl.maximum(top, tl.max(scores, 1))
            p = tl.exp(scores - higher[:, None])
            less = tl.exp(top - higher)
            mass = mass * less + tl.sum(p, 1)
            if ROWS == 1:
                y = y * less[:, None] + tl.sum(tl.trans(p) * v.to(tl.float32), 0)[None, :]
            else:
                y = y * less[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
            top = higher
        y = (y / tl.where(mass > 0, mass, 1.0)[:, None]).to(y_at.dtype.element_ty)  # zero where nothing is seen
        tl.store(y_at + row * y_row + head * y_head + one[:, None] * y_one + d[None, :], y, mask=real)

    @triton.jit
    def _write(
        k_at, v_at, new_k_at, new_v_at, places_at, capacity, new_row, new_head, new_one,
        N: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        row, head = tl.program_id(0), tl.program_id(1)
        one, d = tl.arange(0, ROWS), tl.arange(0, WIDTH)
        real = (one < N)[:, None] & (d < D)[None, :]
        fresh = row * new_row + head * new_head + one[:, None] * new_one + d[None, :]
        place = tl.load(places_at + one, mask=one < N, other=0)
        to = (row.to(tl.int64) * tl.num_programs(1) + head) * capacity * D + place[:, None] * D + d[None, :]
        tl.store(k_at + to, tl.load(new_k_at + fresh, mask=real), mask=real)
        tl.store(v_at + to, tl.load(new_v_at + fresh, mask=real), mask=real)

    ACTIVATIONS = {"relu": _relu, "gelu": _gelu, "gelu_tanh": _gelu_tanh, "silu": _silu, None: _same}


def product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    norm: nn.LayerNorm | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """activation(W · norm(x) + b) + residual: (M, K) -> (M, N). Each row of x costs, each row of W is read once."""
    (rows, columns), wide = x.shape, len(weight)
    y = x.new_empty(rows, wide)
    block = 8 if wide > 2048 else 4
    chunk = triton.next_power_of_2(columns)
    gamma, beta = (None, None) if norm is None else (norm.weight, norm.bias)
    _product[(triton.cdiv(wide, block),)](
        x, weight, bias, gamma, beta, residual, y, 0.0 if norm is None else norm.eps,
        wide, M=rows, K=columns, BLOCK=block, CHUNK=chunk if norm is not None else min(chunk, CHUNK),
        BIAS=bias is not None, NORM=norm is not None, SHIFT=beta is not None, RESIDUAL=residual is not None,
        ACTIVATION=ACTIVATIONS[activation],
    )  # fmt: skip
    return y


def attend_and_write(
    q: Tensor, new_k: Tensor, new_v: Tensor, k: Tensor, v: Tensor, seen: Tensor, places: Tensor | None, scale: float
) -> Tensor:
    """`write` and then `attend`, in one."""
    return _attended(q, k, v, seen, places, scale, (new_k, new_v))


@torch.library.custom_op("regard::attend", mutates_args=())
def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, places: Tensor | None, scale: float) -> Tensor:
    """softmax(scale · qK + seen) V: (B, H, n, D), buffers of (B, H, capacity, D) and (B, 1, 1 or n, capacity) -> as q.
    `places` (n,) are those of the last keys; None: all of the buffers is real."""
    return _attended(q, k, v, seen, places, scale)


@attend.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, places: Tensor | None, scale: float) -> Tensor:
    return _room(q)


@torch.library.custom_op("regard::write", mutates_args=("k", "v"))
def write(k: Tensor, v: Tensor, new_k: Tensor, new_v: Tensor, places: Tensor) -> None:
    """(B, H, n, D) into buffers of (B, H, capacity, D), at places (n,)."""
    (rows, heads, capacity, width), few = k.shape, new_k.shape[2]
    _write[(rows, heads)](
        k, v, new_k, new_v, places, capacity, *_strides(new_k, new_v),
        N=few, ROWS=triton.next_power_of_2(few), D=width, WIDTH=triton.next_power_of_2(width),
    )  # fmt: skip


def _attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Tensor,
    places: Tensor | None,
    scale: float,
    fresh: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    (rows, heads, few, width), y = q.shape, _room(q)
    _attend[(rows, heads)](
        q, k, v, seen, *(fresh or (None, None)), places, y, scale, k.shape[2],
        *_strides(q), *(_strides(*fresh) if fresh else (0, 0, 0)),
        seen.stride(0), seen.stride(2) if seen.shape[2] > 1 else 0, *_strides(y),
        N=few, ROWS=1 if few == 1 else max(TILE, triton.next_power_of_2(few)), D=width,
        WIDTH=max(TILE, triton.next_power_of_2(width)), BLOCK=KEYS, LOWEST=LOWEST,
        FRESH=fresh is not None, GROWS=places is not None,
    )  # fmt: skip
    return y


def _room(q: Tensor) -> Tensor:
    """(B, H, n, D), so laid that the heads of a hypothesis lie side by side."""
    rows, heads, few, width = q.shape
    return q.new_empty(rows, few, heads, width).transpose(1, 2)


def _strides(*alike: Tensor) -> tuple[int, ...]:
    """Of rows, heads and hypotheses."""
    first, *others = (t.stride() for t in alike)
    assert first[3] == 1
    assert all(other == first for other in others)
    return first[:3]
