"""The loss of a row of logits and its gradient, on a GPU in one kernel: what stands between the products of a head.

    z ─▶ lse = log Σ exp zᵢ ─▶ lse - (1-ε)·z_y - ε·mean(z)       a row is read once for its sum,
                         └──▶ exp(z - lse) - (1-ε)·e_y - ε/V     and once more, most of it still near by, for this

PyTorch's operators read and write a table of logits seven times, compiled ones three times, and this one as good as
twice: the gradient takes the place of the logits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.fast.early import INTERPRETED, triton
from regard.fast.kernels import KINDS, LOWEST

if triton is not None:
    import triton.language as tl

MOST = 8192  # columns at a time
EACH = 8  # of them to a thread, side by side
LOG2E = 1.4426950408889634


if triton is not None:

    @triton.jit
    def _spread(
        z_at, y_at, share_at, total_at, nll_at, stride, vocab, columns, smoothing,
        SHARED: tl.constexpr, SMOOTH: tl.constexpr,
        THREADS: tl.constexpr, EACH: tl.constexpr, LOWEST: tl.constexpr, LOG2E: tl.constexpr,
    ):  # fmt: skip
        """A thread keeps the books of its own columns; whole vectors are read, hence by `columns` and not by `vocab`:
        what lies between the two is -inf. A GPU has powers of 2, from which it makes those of e."""
        row, some = tl.program_id(0).to(tl.int64), tl.arange(0, THREADS)[:, None] * EACH + tl.arange(0, EACH)[None, :]
        z_at += row * stride
        y = tl.load(y_at + row)
        known = (y >= 0) & (y < vocab)  # what is no word has NaN for its loss
        gold = tl.load(z_at + y, mask=known, other=float("nan")).to(tl.float32)  # before anything is written over it
        share = tl.load(share_at + row).to(tl.float32) if SHARED else 1.0
        tops = tl.full([THREADS], LOWEST, tl.float32)
        masses, sums = tl.zeros([THREADS], tl.float32), tl.zeros([THREADS], tl.float32)
        for begin in range(0, columns, THREADS * EACH):
            at = begin + some
            z = tl.load(z_at + at, mask=at < columns, other=float("-inf"), eviction_policy="evict_last").to(tl.float32)
            if SMOOTH:
                sums += tl.sum(tl.where(at < vocab, z, 0.0), 1)
            z *= LOG2E
            higher = tl.maximum(tops, tl.max(z, 1))
            masses = masses * tl.exp2(tops - higher) + tl.sum(tl.exp2(z - higher[:, None]), 1)
            tops = higher
        top = tl.max(tops, 0)
        power = top + tl.log2(tl.sum(masses * tl.exp2(tops - top), 0))
        lse = power / LOG2E
        tl.store(nll_at + row, (lse - gold) * share)
        mean = tl.sum(sums, 0) / vocab
        tl.store(total_at + row, (lse - (1.0 - smoothing) * gold - smoothing * mean) * share)
        for begin in range(0, columns, THREADS * EACH):
            at = begin + some
            z = tl.load(z_at + at, mask=at < columns, other=float("-inf"), eviction_policy="evict_first").to(tl.float32)
            d = tl.exp2(z * LOG2E - power)
            if SMOOTH:
                d = tl.where(at < vocab, d - smoothing / vocab, 0.0)
            tl.store(z_at + at, (d * share).to(z_at.dtype.element_ty), mask=at < columns)
        tl.debug_barrier()  # the word itself comes last, after whoever has written there with all the others
        d = tl.exp(gold - lse) - smoothing / vocab - (1.0 - smoothing)
        tl.store(z_at + y, (d * share).to(z_at.dtype.element_ty), mask=known)


def spread(z: Tensor, y: Tensor, w: Tensor | None, vocab: int, smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
    """As the head's own: the loss, the loss without smoothing, and the gradient by z, in z's place."""
    rows, columns = z.shape
    total, nll = (z.new_empty(rows, dtype=torch.float32) for _ in range(2))
    threads = max(1, min(MOST, triton.next_power_of_2(columns)) // EACH)
    _spread[(rows,)](
        z, y, w, total, nll, z.stride(0), vocab, columns, smoothing, SHARED=w is not None, SMOOTH=smoothing > 0,
        THREADS=threads, EACH=EACH, LOWEST=LOWEST, LOG2E=LOG2E, num_warps=max(1, threads // 32),
    )  # fmt: skip
    return total.sum(), nll.sum(), z


def suits(like: Tensor) -> bool:
    return triton is not None and (like.is_cuda or INTERPRETED) and like.dtype in KINDS
