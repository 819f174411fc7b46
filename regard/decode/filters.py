"""Filters bend the logits of the next token before one is chosen:
(rows, V) and the story so far (rows, t) -> (rows, V).

The last word of every story stands last; one that is shorter than its neighbours' has -1 before it. Asked for twice, a
filter is the same: rows that want the same share it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from regard.errors import ConfigError

Filter = Callable[[Tensor, Tensor], Tensor]
NEVER = float("-inf")
same = lru_cache(256)
SCALING: WeakSet[Filter] = WeakSet()


@same
def at_least(length: int, eos: int) -> Filter:
    """No end before `length` tokens have been said."""
    no_end = never(eos)

    def apply(logits: Tensor, story: Tensor) -> Tensor:
        if story.shape[1] < length:
            return no_end(logits, story)
        bent = logits.clone()
        bent[:, eos].masked_fill_((story >= 0).sum(1) < length, NEVER)
        return bent

    return apply


@same
def never(*tokens: int) -> Filter:
    """Tokens that are no words: padding, the beginning."""
    _wanted(min(tokens, default=0) >= 0, f"never{tokens}", "words are numbered from 0 on")
    on: dict[torch.device, Tensor] = {}  # their numbers, brought to a device once

    def apply(logits: Tensor, story: Tensor) -> Tensor:
        if logits.device not in on:
            _wanted(max(tokens, default=0) < logits.shape[1], f"never{tokens}", f"there are {logits.shape[1]} words")
            on[logits.device] = torch.tensor(tokens, dtype=torch.long, device=logits.device)
        return logits.index_fill(1, on[logits.device], NEVER)

    return apply


@same
def no_repeat(n: int) -> Filter:
    """No n-gram twice: whatever followed the last n-1 tokens before may not follow them again."""
    _wanted(n >= 1, f"no_repeat({n})", "n-grams have a token at least; write 1 or more")

    def apply(logits: Tensor, story: Tensor) -> Tensor:
        length = story.shape[1]
        if length < n:
            return logits
        grams = story.unfold(1, n, 1)  # (rows, length - n + 1, n)
        again = (grams[..., : n - 1] == story[:, None, length - n + 1 :]).all(-1) & (grams[..., 0] >= 0)
        banned = torch.zeros_like(logits, dtype=torch.int32)
        banned = banned.scatter_add_(1, grams[..., -1].clamp(min=0), again.int()) > 0
        return logits.masked_fill(banned, NEVER)

    return apply


@same
def temperature(degree: float) -> Filter:
    _wanted(degree > 0, f"temperature({degree})", "a number above 0 is wanted; for the likeliest word ask greedy")

    def apply(logits: Tensor, story: Tensor) -> Tensor:
        return logits / degree

    SCALING.add(apply)
    return apply


def scaling(apply: Filter) -> bool:
    """Whether it makes something else of logits than of log-probabilities: all others only leave words out, by what
    has been said or by how much likelier another is."""
    return apply in SCALING


@same
def top_k(k: int) -> Filter:
    """Only the k likeliest."""
    _wanted(k >= 1, f"top_k({k})", "a word has to be left; write 1 or more")

    def apply(logits: Tensor, story: Tensor) -> Tensor:
        least = logits.topk(min(k, logits.shape[1])).values[:, -1:]
        return logits.masked_fill(logits < least, NEVER)

    return apply


@same
def top_p(p: float) -> Filter:
    """The likeliest that together reach probability p, the one that crosses it included."""
    _wanted(0 < p <= 1, f"top_p({p})", "a probability above 0 and up to 1 is wanted; 1 leaves all words in")

    def apply(logits: Tensor, story: Tensor) -> Tensor:
        ranked, order = _chances(logits).sort(descending=True, stable=True)
        beyond = ranked.cumsum(-1) - ranked >= p
        return logits.masked_fill(beyond.scatter(1, order, beyond), NEVER)

    return apply


@same
def min_p(share: float) -> Filter:
    """Those at least `share` as likely as the likeliest."""
    _wanted(0 <= share <= 1, f"min_p({share})", "a share from 0 to 1 is wanted; 0 leaves all words in")

    def apply(logits: Tensor, story: Tensor) -> Tensor:
        chance = _chances(logits)
        return logits.masked_fill(chance < share * chance.amax(-1, keepdim=True), NEVER)

    return apply


def _chances(logits: Tensor) -> Tensor:
    """Sums of 16 bits would tell unlikely words from likely ones too coarsely."""
    return logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def chain(filters: tuple[Filter, ...], logits: Tensor, story: Tensor) -> Tensor:
    for apply in filters:
        logits = apply(logits, story)
    return logits


def _wanted(true: bool, came: str, instead: str) -> None:
    if not true:
        raise ConfigError(f"{came} came, but {instead}")


def limits(how: Any, *, eos: int, specials: tuple[int, ...]) -> tuple[Filter, ...]:
    """What every search obeys."""
    found = [never(*specials)] if specials else []
    if how.shortest:
        found.append(at_least(how.shortest, eos))
    if how.block_ngram:
        found.append(no_repeat(how.block_ngram))
    return tuple(found)


def shapes(how: Any) -> tuple[Filter, ...]:
    """What sampling adds, in the usual order."""
    found = [] if how.temperature == 1 else [temperature(how.temperature)]
    if how.top_k:
        found.append(top_k(how.top_k))
    if how.top_p < 1:
        found.append(top_p(how.top_p))
    if how.min_p:
        found.append(min_p(how.min_p))
    return tuple(found)
