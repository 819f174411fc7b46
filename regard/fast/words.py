"""Words that are chosen on a GPU: the likeliest of each row with its books, or the k likeliest.

    logits ─some words each─▶ their k best, and what they add to the sum ─all parts of a row─▶ log-probabilities, words

A vocabulary is gone through by many programs at once, and once only; no table of log-probabilities is made.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.core.state import Books
from regard.fast.early import early, triton

WORDS = 1024  # for one program

if triton is not None:
    import triton.language as tl

    from regard.fast.early import await_the_others, begin_next

    @triton.jit
    def _some(
        z_at, bent_at, tops_at, masses_at, values_at, words_at, z_row, bent_row, V,
        K: tl.constexpr, BENT: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
    ):  # fmt: skip
        """The K best of some words of a row, and what all of these add to its sum."""
        begin_next(EARLY)
        await_the_others(EARLY)
        row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
        word = part * BLOCK + tl.arange(0, BLOCK)
        z = tl.load(z_at + row * z_row + word, mask=word < V, other=float("-inf")).to(tl.float32)
        top = tl.max(z, 0)
        at = row * tl.num_programs(1) + part
        tl.store(tops_at + at, top)
        tl.store(masses_at + at, tl.sum(tl.exp(z - tl.where(top > float("-inf"), top, 0.0)), 0))
        if BENT:
            z = tl.load(bent_at + row * bent_row + word, mask=word < V, other=float("-inf")).to(tl.float32)
        for i in tl.static_range(K):
            best = tl.max(z, 0)
            which = tl.min(tl.where((z == best) & (word < V), word, 2147483647), 0)
            tl.store(values_at + at * K + i, best)
            tl.store(words_at + at * K + i, which)
            z = tl.where(word == which, float("-inf"), z)

    @triton.jit
    def _say(
        tops_at, masses_at, words_at, tokens_at, totals_at, told_at, going_at, limit_at, clock_at,
        parts, rows, V, eos, PARTS: tl.constexpr, EARLY: tl.constexpr,
    ):  # fmt: skip
        begin_next(EARLY)
        await_the_others(EARLY)
        row, part = tl.program_id(0).to(tl.int64), tl.arange(0, PARTS)
        here = part < parts
        tops = tl.load(tops_at + row * parts + part, mask=here, other=float("-inf"))
        masses = tl.load(masses_at + row * parts + part, mask=here, other=0.0)
        words = tl.load(words_at + row * parts + part, mask=here, other=2147483647)
        top = tl.max(tops, 0)
        word = tl.minimum(tl.min(tl.where(tops == top, words, 2147483647), 0), V - 1).to(tl.int64)
        chance = -tl.log(tl.sum(masses * tl.exp(tops - top), 0))
        total = tl.load(totals_at + row) + chance.to(tl.float64)
        said, slot = tl.load(clock_at + 1) + 1, tl.load(clock_at + 2)
        tl.store(tokens_at + row, word)
        tl.store(totals_at + row, total)
        tl.store(told_at + (slot * rows + row) * 2, total)
        tl.store(told_at + (slot * rows + row) * 2 + 1, word.to(tl.float64))
        able = (total > float("-inf")) & (word != eos) & (said < tl.load(limit_at + row))
        tl.store(going_at + row, tl.load(going_at + row) & able.to(tl.uint8))

    @triton.jit
    def _best_of_all(
        tops_at, masses_at, values_at, words_at, chances_at, found_at, parts, V,
        K: tl.constexpr, PARTS: tl.constexpr, ALL: tl.constexpr, EARLY: tl.constexpr,
    ):  # fmt: skip
        begin_next(EARLY)
        await_the_others(EARLY)
        row, part, one = tl.program_id(0).to(tl.int64), tl.arange(0, PARTS), tl.arange(0, ALL)
        tops = tl.load(tops_at + row * parts + part, mask=part < parts, other=float("-inf"))
        masses = tl.load(masses_at + row * parts + part, mask=part < parts, other=0.0)
        top = tl.max(tops, 0)
        lse = top + tl.log(tl.sum(masses * tl.exp(tops - top), 0))
        here = one < parts * K
        z = tl.load(values_at + row * parts * K + one, mask=here, other=float("-inf"))
        words = tl.load(words_at + row * parts * K + one, mask=here, other=2147483647)
        for i in tl.static_range(K):
            best = tl.max(z, 0)
            which = tl.min(tl.where(z == best, words, 2147483647), 0)
            tl.store(chances_at + row * K + i, best - lse)
            tl.store(found_at + row * K + i, tl.minimum(which, V - 1).to(tl.int64))
            taken = (words == which) & (z == best)
            z = tl.where(taken, float("-inf"), z)
            words = tl.where(taken, 2147483647, words)


class Parts(NamedTuple):
    """What was found in each part of a vocabulary, (rows, parts)."""

    tops: Tensor
    masses: Tensor  # summed exp(z - top)
    values: Tensor  # (rows, parts, k)
    words: Tensor


def say(logits: Tensor, books: Books, eos: int) -> None:
    """Each row of (n, V) says its likeliest word, as `Greedy` chooses and as a desk keeps its books."""
    tokens, totals, told, going, limit, clock = books
    (rows, vocab), found = logits.shape, _parts(logits, None, 1)
    parts = found.tops.shape[1]
    _say[(rows,)](
        found.tops, found.masses, found.words, tokens, totals, told, going.view(torch.uint8), limit, clock,
        parts, rows, vocab, eos, PARTS=triton.next_power_of_2(parts), **early(logits),
    )  # fmt: skip


def likeliest(logits: Tensor, bent: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities (n, k) and numbers of the k best words of each row of (n, V), of those that are left in `bent`,
    best first; of two that are alike, the one that comes first in the vocabulary."""
    (rows, vocab), found = logits.shape, _parts(logits, bent, k)
    parts = found.tops.shape[1]
    chances = torch.empty(rows, k, device=logits.device)
    words = torch.empty(rows, k, dtype=torch.long, device=logits.device)
    _best_of_all[(rows,)](
        *found, chances, words, parts, vocab,
        K=k, PARTS=triton.next_power_of_2(parts), ALL=triton.next_power_of_2(parts * k), **early(logits),
    )  # fmt: skip
    return chances, words


def _parts(logits: Tensor, bent: Tensor | None, k: int) -> Parts:
    (rows, vocab), device = logits.shape, logits.device
    parts = triton.cdiv(vocab, WORDS)
    tops, masses = (torch.empty(rows, parts, device=device) for _ in range(2))
    values = torch.empty(rows, parts, k, device=device)
    words = torch.empty(rows, parts, k, dtype=torch.int32, device=device)
    _some[(rows, parts)](
        logits, bent, tops, masses, values, words, logits.stride(0), 0 if bent is None else bent.stride(0), vocab,
        K=k, BENT=bent is not None, BLOCK=WORDS, **early(logits),
    )  # fmt: skip
    return Parts(tops, masses, values, words)
