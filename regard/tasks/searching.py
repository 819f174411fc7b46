"""From a way to decode, as the recipe's [decode] has it, to the search that does it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

from torch import Tensor

from regard.core.state import State
from regard.decode import Coverage, Hypothesis, Step, beam, greedy, sample
from regard.decode.filters import limits, shapes
from regard.decode.line import Penalty
from regard.decode.record import Record
from regard.decode.search import PENALTIES

Quick = Callable[..., list[list[Hypothesis]] | None]  # a whole search in one call; None: it steps aside


def search(
    step: Step,
    start: Callable[[], State],
    prompt: Tensor,
    how: Any,
    *,
    eos: int,
    specials: Sequence[int],
    limit: int | Tensor,
    texts: Sequence[Sequence[int]],
    prefixes: list[list[int]] | None = None,
    coverage: Coverage | None = None,
    record: Record | None = None,
    quick: Quick | None = None,
) -> list[list[Hypothesis]]:
    """The best answers to each row of a prompt, the best first. A state is used once, so `start` may be asked again.

    `quick` is asked first where nothing is wanted that only the plain search can do.
    `texts` are what the rows answer: the random numbers of a draw belong to them, not to a place in the batch.
    `record` is told of every candidate; then a greedy search is a beam of one, which weighs some more.
    """
    if quick is not None and not (how.sample or how.block_ngram or coverage or record):
        at_once = quick(
            prompt, eos=eos, limit=limit, keep=max(how.beam, how.nbest), expand=how.expand, penalty=_penalty(how),
            shortest=how.shortest, banned=specials, prefixes=prefixes,
        )  # fmt: skip
        if at_once is not None:
            return [best[: how.nbest] for best in at_once]
    filters = limits(how, eos=eos, specials=tuple(specials))
    if how.sample:
        found = []
        for draw in range(how.nbest):
            seeds = [seed_of(how.seed, draw, ids) for ids in texts]
            found.append(
                sample(
                    step, start(), prompt,
                    eos=eos, limit=limit, seeds=seeds, filters=(*filters, *shapes(how)), prefixes=prefixes,
                )
            )  # fmt: skip
        return [sorted(drawn, key=lambda h: -h.score) for drawn in zip(*found, strict=True)]
    alone = how.beam == 1 and how.nbest == 1 and how.expand in (None, 1) and coverage is None
    if alone and record is None:
        one = greedy(step, start(), prompt, eos=eos, limit=limit, filters=filters, prefixes=prefixes)
        return [[h] for h in one]
    keep, expand, penalty = max(how.beam, how.nbest), how.expand, PENALTIES[how.penalty](how.alpha)
    if alone:
        expand, penalty = None, PENALTIES["none"](0.0)
    if record is not None:
        expand, record.penalty = expand or max(keep, record.wide), penalty
    beams = beam(
        step, start(), prompt, eos=eos, limit=limit, keep=keep, expand=expand, penalty=penalty,
        coverage=coverage, filters=filters, prefixes=prefixes, tell=record,
    )  # fmt: skip
    return [best[: how.nbest] for best in beams]


def _penalty(how: Any) -> Penalty | None:
    """A greedy search ranks nothing."""
    greedily = max(how.beam, how.nbest) == 1 and how.expand in (None, 1)
    return None if greedily else PENALTIES[how.penalty](how.alpha)


def room(how: Any, length: int) -> int:
    """Most tokens of an answer to so many."""
    return int(how.longest or math.ceil(how.ratio * length) + how.extra)


def seed_of(seed: int, draw: int, ids: Sequence[int]) -> int:
    return int.from_bytes(blake2b(repr((seed, draw, tuple(ids))).encode(), digest_size=7).digest())
