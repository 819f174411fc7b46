"""Kernels for a step of few vectors on a GPU, where the time is that of beginning and not of computing.

    product   y = activation(W · norm(x) + b) + residual        one kernel where PyTorch has up to four
    normed    norm(x + residual)                                 one where it has two
    write     the next keys and values into their places         one where it has two
    attend    one query of each hypothesis at all keys so far    reads what has been written, not the whole buffer

They are written in Triton, which comes with PyTorch where there are GPUs; without it everything is done as ever. What
is rounded to 16 bits between two steps by PyTorch is rounded so here, and sums are made in 32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.linear import LARGE, Multiply
from regard.fast.early import INTERPRETED, early, triton

KINDS = (torch.float32, torch.bfloat16, torch.float16)
MOST_QUERIES = 16  # of a sentence, at once
MOST_VECTORS = 4  # that a product takes; of more, the library's products are the quicker ones
TILE = 16  # the least number of rows of a matrix product in a kernel
LOWEST = -1e30  # in place of -inf, from which nothing can be subtracted
LARGE_PRODUCT = 2**23  # numbers in W
MOST_BYTES = 2**13  # of a row of W, at a time
KEYS = 2**15  # bytes of them at a time, at most


def suit(buffer: Tensor, queries: int) -> bool:
    """Whether there are kernels for such tensors, and so many queries of a sentence."""
    here = triton is not None and (buffer.is_cuda or INTERPRETED)
    return here and buffer.dtype in KINDS and queries <= MOST_QUERIES


if triton is not None:
    import triton.language as tl

    from regard.fast.early import await_the_others, begin_next

    @triton.jit
    def _gelu(x):
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))

    @triton.jit
    def _gelu_tanh(x):
        return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))

    @triton.jit
    def _relu(x):
        return tl.where(x < 0.0, 0.0, x)  # NaN stays NaN

    @triton.jit
    def _silu(x):
        return x * tl.sigmoid(x)

    @triton.jit
    def _same(x):
        return x

    @triton.jit
    def _four(w):
        """Words of four bytes each -> their numbers, side by side."""
        first, second, third, fourth = (w << 24) >> 24, (w << 16) >> 24, (w << 8) >> 24, w >> 24
        pairs = tl.join(tl.join(first, third), tl.join(second, fourth))
        return tl.reshape(pairs, w.shape[0], 4 * w.shape[1]).to(tl.float32)

    @triton.jit
    def _floats(w):
        return w.to(tl.float32)

    @triton.jit
    def _product(
        x_at, w_at, scale_at, b_at, gamma_at, beta_at, residual_at, y_at, epsilon, N,
        M: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
        NUMBERS: tl.constexpr, EACH: tl.constexpr, BIAS: tl.constexpr,
        NORM: tl.constexpr, SHIFT: tl.constexpr, RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr, EARLY: tl.constexpr,
    ):  # fmt: skip
        """W has EACH numbers to a word; what was read of it early is made into NUMBERS when the vector is there."""
        begin_next(EARLY)
        n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        k, word = tl.arange(0, CHUNK), tl.arange(0, CHUNK // EACH)
        words: tl.constexpr = (K + EACH - 1) // EACH
        kind = y_at.dtype.element_ty
        inside, w_at = (n < N)[:, None], w_at + n[:, None] * words
        w = tl.load(w_at + word[None, :], mask=inside & (word < words)[None, :], other=0)
        scale = tl.load(scale_at + n, mask=n < N, other=0.0) if EACH > 1 else 1.0
        bias = tl.load(b_at + n, mask=n < N, other=0.0).to(tl.float32) if BIAS else 0.0
        gamma = tl.load(gamma_at + k, mask=k < K, other=0.0).to(tl.float32) if NORM else 1.0
        beta = tl.load(beta_at + k, mask=k < K, other=0.0).to(tl.float32) if SHIFT else 0.0
        await_the_others(EARLY)
        for m in tl.static_range(M):
            x = tl.load(x_at + m * K + k, mask=k < K, other=0.0).to(tl.float32)
            more = tl.load(residual_at + m * N + n, mask=n < N, other=0.0).to(tl.float32) if RESIDUAL else 0.0
            if NORM:
                x = tl.where(k < K, x - tl.sum(x) / K, 0.0)
                x = x * tl.rsqrt(tl.sum(x * x) / K + epsilon) * gamma + beta
                x = x.to(kind).to(tl.float32)
            products = NUMBERS(w) * x[None, :]
            for begin in tl.static_range(CHUNK, K, CHUNK):
                at, there = begin + k, begin // EACH + word
                some = tl.load(w_at + there[None, :], mask=inside & (there < words)[None, :], other=0)
                products += NUMBERS(some) * tl.load(x_at + m * K + at, mask=at < K, other=0.0).to(tl.float32)
            y = ACTIVATION((tl.sum(products, 1) * scale + bias).to(kind).to(tl.float32)).to(kind)
            if RESIDUAL:
                y = (y.to(tl.float32) + more).to(kind)
            tl.store(y_at + m * N + n, y, mask=n < N)

    @triton.jit
    def _norm(
        x_at, gamma_at, beta_at, residual_at, y_at, epsilon,
        K: tl.constexpr, CHUNK: tl.constexpr, SHIFT: tl.constexpr, RESIDUAL: tl.constexpr, EARLY: tl.constexpr,
    ):  # fmt: skip
        begin_next(EARLY)
        at, k = tl.program_id(0).to(tl.int64) * K, tl.arange(0, CHUNK)
        gamma = tl.load(gamma_at + k, mask=k < K, other=0.0).to(tl.float32)
        beta = tl.load(beta_at + k, mask=k < K, other=0.0).to(tl.float32) if SHIFT else 0.0
        await_the_others(EARLY)
        x = tl.load(x_at + at + k, mask=k < K, other=0.0).to(tl.float32)
        if RESIDUAL:
            x += tl.load(residual_at + at + k, mask=k < K, other=0.0).to(tl.float32)
            x = x.to(y_at.dtype.element_ty).to(tl.float32)
        x = tl.where(k < K, x - tl.sum(x) / K, 0.0)
        x = x * tl.rsqrt(tl.sum(x * x) / K + epsilon) * gamma + beta
        tl.store(y_at + at + k, x.to(y_at.dtype.element_ty), mask=k < K)

    @triton.jit
    def _attend(
        q_at, k_at, v_at, seen_at, new_k_at, new_v_at, places_at, y_at, scale, capacity,
        q_row, q_head, q_one, new_row, new_head, new_one, seen_row, seen_one, y_row, y_head, y_one,
        N: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
        FRESH: tl.constexpr, GROWS: tl.constexpr, LOWEST: tl.constexpr, EARLY: tl.constexpr,
    ):  # fmt: skip
        begin_next(EARLY)
        await_the_others(EARLY)
        row, head = tl.program_id(0), tl.program_id(1)
        one, d, some = tl.arange(0, ROWS), tl.arange(0, WIDTH), tl.arange(0, BLOCK)
        real = (one < N)[:, None] & (d < D)[None, :]
        buffer = (row.to(tl.int64) * tl.num_programs(1) + head) * capacity * D
        q = tl.load(q_at + row * q_row + head * q_head + one[:, None] * q_one + d[None, :], mask=real, other=0.0)
        if FRESH:  # each sees its own; nobody reads them from where they are written to
            fresh = row * new_row + head * new_head + one[:, None] * new_one + d[None, :]
            new_k = tl.load(new_k_at + fresh, mask=real, other=0.0)
            new_v = tl.load(new_v_at + fresh, mask=real, other=0.0)
            place = tl.load(places_at + one, mask=one < N, other=0)
            tl.store(k_at + buffer + place[:, None] * D + d[None, :], new_k, mask=real)
            tl.store(v_at + buffer + place[:, None] * D + d[None, :], new_v, mask=real)
            top = tl.sum(q.to(tl.float32) * new_k.to(tl.float32), 1) * scale
            mass = tl.full([ROWS], 1.0, tl.float32)
            y = new_v.to(tl.float32)
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
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale + seen.to(tl.float32)
            higher = tl.maximum(top, tl.max(scores, 1))
            p = tl.exp(scores - higher[:, None])
            less = tl.exp(top - higher)
            mass = mass * less + tl.sum(p, 1)
            y = y * less[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
            top = higher
        y = (y / tl.where(mass > 0, mass, 1.0)[:, None]).to(y_at.dtype.element_ty)  # zero where nothing is seen
        tl.store(y_at + row * y_row + head * y_head + one[:, None] * y_one + d[None, :], y, mask=real)

    @triton.jit
    def _attend_alone(
        q_at, k_at, v_at, seen_at, new_k_at, new_v_at, places_at, y_at, scale, capacity,
        q_row, q_head, q_one, new_row, new_head, new_one, seen_row, seen_one, y_row, y_head, y_one,
        N: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
        FRESH: tl.constexpr, GROWS: tl.constexpr, LOWEST: tl.constexpr, EARLY: tl.constexpr,
    ):  # fmt: skip
        """The same for one query: every place of a block keeps its own books, and they are added up at the end, so that
        no block waits for the one before. Keys that no kernel of this step writes are read before the query is
        there."""
        begin_next(EARLY)
        row, head = tl.program_id(0), tl.program_id(1)
        d, some = tl.arange(0, WIDTH), tl.arange(0, BLOCK)
        buffer = (row.to(tl.int64) * tl.num_programs(1) + head) * capacity * D
        known: tl.constexpr = FRESH or not GROWS
        if not known:
            await_the_others(EARLY)
        end = capacity
        if GROWS:
            end = (tl.load(places_at) + (0 if FRESH else 1)).to(tl.int32)
        here = (some < end)[:, None] & (d < D)[None, :]
        k = tl.load(k_at + buffer + some[:, None] * D + d[None, :], mask=here, other=0.0)
        v = tl.load(v_at + buffer + some[:, None] * D + d[None, :], mask=here, other=0.0)
        seen = tl.load(seen_at + row * seen_row + some, mask=some < end, other=float("-inf"))
        if known:
            await_the_others(EARLY)
        q = tl.load(q_at + row * q_row + head * q_head + d, mask=d < D, other=0.0).to(tl.float32) * scale
        scores = tl.sum(k.to(tl.float32) * q[None, :], 1) + seen.to(tl.float32)
        tops = tl.maximum(scores, LOWEST)
        masses = tl.exp(scores - tops)  # one, and zero where nothing is to be seen
        ys = masses[:, None] * v.to(tl.float32)
        for begin in range(BLOCK, end, BLOCK):
            at = begin + some
            here = (at < end)[:, None] & (d < D)[None, :]
            k = tl.load(k_at + buffer + at[:, None] * D + d[None, :], mask=here, other=0.0)
            v = tl.load(v_at + buffer + at[:, None] * D + d[None, :], mask=here, other=0.0)
            seen = tl.load(seen_at + row * seen_row + at, mask=at < end, other=float("-inf"))
            scores = tl.sum(k.to(tl.float32) * q[None, :], 1) + seen.to(tl.float32)
            higher = tl.maximum(tops, scores)
            p, less = tl.exp(scores - higher), tl.exp(tops - higher)
            masses = masses * less + p
            ys = ys * less[:, None] + p[:, None] * v.to(tl.float32)
            tops = higher
        top = tl.max(tops, 0)
        if FRESH:
            fresh = row * new_row + head * new_head + d
            new_k = tl.load(new_k_at + fresh, mask=d < D, other=0.0)
            new_v = tl.load(new_v_at + fresh, mask=d < D, other=0.0)
            place = buffer + tl.load(places_at) * D + d
            tl.store(k_at + place, new_k, mask=d < D)
            tl.store(v_at + place, new_v, mask=d < D)
            score = tl.sum(new_k.to(tl.float32) * q, 0)
            top = tl.maximum(top, score)
        less = tl.exp(tops - top)
        mass, y = tl.sum(masses * less, 0), tl.sum(ys * less[:, None], 0)
        if FRESH:
            p = tl.exp(score - top)
            mass, y = mass + p, y + p * new_v.to(tl.float32)
        y = (y / tl.where(mass > 0, mass, 1.0)).to(y_at.dtype.element_ty)  # zero where nothing is seen
        tl.store(y_at + row * y_row + head * y_head + d, y, mask=d < D)

    @triton.jit
    def _write(
        k_at, v_at, new_k_at, new_v_at, places_at, capacity, new_row, new_head, new_one,
        N: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, EARLY: tl.constexpr,
    ):  # fmt: skip
        begin_next(EARLY)
        await_the_others(EARLY)
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
    scale: Tensor | None = None,
    norm: nn.LayerNorm | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """activation(W · norm(x) + b) + residual: (M, K) -> (M, N). Each row of x costs, each row of W is read once. With a
    `scale` (N,), rows of W are so many times whole numbers, four of them to a word."""
    (rows, columns), wide, in_bytes = x.shape, len(weight), scale is not None
    y = x.new_empty(rows, wide)
    block, warps, chunk = _tile(wide, columns, in_bytes)
    chunk = max(4, triton.next_power_of_2(columns)) if norm is not None else chunk
    gamma, beta = (None, None) if norm is None else (norm.weight, norm.bias)
    _product[(triton.cdiv(wide, block),)](
        x, weight, scale, bias, gamma, beta, residual, y, 0.0 if norm is None else norm.eps, wide,
        M=rows, K=columns, BLOCK=block, CHUNK=chunk,
        NUMBERS=_four if in_bytes else _floats, EACH=4 if in_bytes else 1, BIAS=bias is not None,
        NORM=norm is not None, SHIFT=beta is not None,
        RESIDUAL=residual is not None, ACTIVATION=ACTIVATIONS[activation], num_warps=warps, **early(x),
    )  # fmt: skip
    return y


def _tile(wide: int, columns: int, in_bytes: bool) -> tuple[int, int, int]:
    """Rows of W for a program, its warps, and columns at a time, as measured for the layers of GPT-2 and GPT-2 XL, one
    after another, on an H200."""
    whole, large = max(4, triton.next_power_of_2(columns)), wide * columns > LARGE_PRODUCT
    if in_bytes and columns > 1024:
        return (2, 4, min(whole, MOST_BYTES)) if columns >= wide else (8, 4, min(whole, MOST_BYTES))
    if columns > 4096:
        return 1, 2, 2048
    if columns > 2048:
        return 1, 8, 4096
    if large:
        return 8, 4, whole
    return (4, 4, whole) if columns > 1024 else (4, 2, whole)


def normed(x: Tensor, norm: nn.LayerNorm, residual: Tensor | None = None) -> Tensor:
    """norm(x + residual), of few vectors: (..., K) -> (..., K)."""
    x = x.contiguous()
    y, columns = torch.empty_like(x), x.shape[-1]
    _norm[(x.numel() // columns,)](
        x, norm.weight, norm.bias, residual, y, norm.eps, K=columns, CHUNK=triton.next_power_of_2(columns),
        SHIFT=norm.bias is not None, RESIDUAL=residual is not None, **early(x),
    )  # fmt: skip
    return y


class Bytes:
    """Wx + b with W in bytes: row i is sᵢ times whole numbers from -127 to 127. Of few vectors the matrix is all that
    is read, and it is half as large; for many it is put back into x's precision at each call."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        largest = weight.detach().float().abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny)
        self.scale, self.bias, self.columns = largest / 127, bias, weight.shape[1]
        whole = (weight.detach().float() / self.scale[:, None]).round().to(torch.int8)
        self.words = F.pad(whole, (0, -self.columns % 4)).view(torch.int32)

    @property
    def weight(self) -> Tensor:
        """The whole numbers."""
        return self.words.view(torch.int8)[:, : self.columns]

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        if len(rows) <= MOST_VECTORS and suit(x, 1):
            y = product(rows.contiguous(), self.words, self.bias, scale=self.scale)
        else:
            y = F.linear(rows, (self.weight * self.scale[:, None]).to(x.dtype), self.bias)
        return y.view(*x.shape[:-1], len(self.words))


def in_bytes(weight: Tensor, bias: Tensor | None) -> Multiply | None:
    """The layout of `core.linear.pack` for weights in int8 on a GPU."""
    return Bytes(weight, bias) if weight.numel() >= LARGE else None


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
        N=few, ROWS=triton.next_power_of_2(few), D=width, WIDTH=triton.next_power_of_2(width), **early(k),
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
    (rows, heads, few, width), capacity, y = q.shape, k.shape[2], _room(q)
    wide, alone = max(TILE, triton.next_power_of_2(width)), few == 1
    most = KEYS // (wide * q.element_size())
    block = min(most, triton.next_power_of_2(capacity)) if alone else most // 2
    (_attend_alone if alone else _attend)[(rows, heads)](
        q, k, v, seen, *(fresh or (None, None)), places, y, scale, capacity,
        *_strides(q), *(_strides(*fresh) if fresh else (0, 0, 0)),
        seen.stride(0), seen.stride(2) if seen.shape[2] > 1 else 0, *_strides(y),
        N=few, ROWS=max(TILE, triton.next_power_of_2(few)), D=width, WIDTH=wide, BLOCK=max(TILE, block), LOWEST=LOWEST,
        FRESH=fresh is not None, GROWS=places is not None, num_warps=8 if alone else 4, **early(q),
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
