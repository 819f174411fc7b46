"""Standing beside an attention, closer than `watch`: keep what it compares, or say where it must look.

with dissect(model) as parts:
    model(source, real, target)
parts["decoder.0.cross"].read()   # its queries, keys, values and scores

with steer(model, "decoder.0.cross", {2: 5}):   # the third word that is written looks at the sixth that was read
    ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.core.attention import Attention
from regard.core.mask import Mask
from regard.core.score import Place
from regard.core.state import KV
from regard.core.watch import attentions
from regard.errors import ConfigError


@dataclass(frozen=True)
class Parts:
    """What one attention compared while one sequence was read: softmax(scores where seen) are its weights."""

    q: Tensor  # (H, Q, D)
    k: Tensor  # (H, K, D)
    v: Tensor  # (H, K, Dv)
    scale: float | None  # the score is scale · q·k; None: no dot product, and `scores` says it
    scores: Tensor | None  # (H, Q, K)
    seen: Tensor | None  # (H|1, Q, K) True where one may look; None: everywhere


class Parting:
    """Collects the calls of one attention: queries of each, keys and values of the last, which has them all."""

    def __init__(self, attention: Attention) -> None:
        self.attention = attention
        self.calls: list[tuple[Tensor, KV, Mask]] = []

    def __call__(self, q: Tensor, kv: KV, mask: Mask) -> Mask:
        self.calls.append((q.detach(), kv, mask))
        return mask

    @torch.no_grad()
    def read(self) -> Parts:
        """Of the first row of the batch, on the CPU."""
        kv = self.calls[-1][1]
        k, v = kv.keys[:1], kv.values[:1]
        queries = torch.cat([q[:1] for q, _, _ in self.calls], -2)
        seen = _join([mask.dense(q.shape[-2], then.length, q.device) for q, then, mask in self.calls], self.calls)
        dots = self.attention.score.prepare(queries, k, Place())
        if dots is None or dots.bias is not None:
            scores = torch.cat([self._score(q, then, mask, k.shape[-2]) for q, then, mask in self.calls], -2)
            return Parts(_first(queries), _first(k), _first(v), None, _first(scores), seen)
        return Parts(_first(dots.q), _first(dots.k), _first(v), dots.scale, None, seen)

    def _score(self, q: Tensor, kv: KV, mask: Mask, longest: int) -> Tensor:
        table = self.attention.score(q[:1], kv.keys[:1], Place(mask.start(q.shape[-2], kv.length)))
        return torch.nn.functional.pad(table, (0, longest - kv.length))


@contextmanager
def dissect(model: torch.nn.Module, names: str | Iterable[str] = "*") -> Iterator[dict[str, Parting]]:
    """Keeps the queries, keys and values of some attentions, by name."""
    found = {name: Parting(attention) for name, attention in attentions(model, names).items()}
    for parting in found.values():
        parting.attention.beside = (*parting.attention.beside, parting)
    try:
        yield found
    finally:
        for parting in found.values():
            parting.attention.beside = tuple(one for one in parting.attention.beside if one is not parting)


class Steering:
    """Leaves each query that is named one key to look at. A new memory is a new beginning."""

    def __init__(self, plan: Mapping[int, int]) -> None:
        self.plan, self.at = dict(plan), 0
        self.memory: Tensor | None = None

    def __call__(self, q: Tensor, kv: KV, mask: Mask) -> Mask:
        if kv.k is not self.memory:
            self.memory, self.at = kv.k, 0
        queries, keys = q.shape[-2], kv.length
        pairs = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=q.device)
        for query, key in self.plan.items():
            if self.at <= query < self.at + queries and key < keys:
                pairs[..., query - self.at, :] = False
                pairs[..., query - self.at, key] = True
        self.at += queries
        return mask & Mask(pairs=pairs)


@contextmanager
def steer(model: torch.nn.Module, name: str, plan: Mapping[int, int]) -> Iterator[None]:
    """All heads of an attention that looks across look where `plan` says: position written -> position read."""
    if name.split(".")[-1] != "cross":
        raise ConfigError(f"{name} does not look from target to source, so it cannot be steered; name one that does")
    (attention,) = attentions(model, [name]).values()
    steering = Steering(plan)
    attention.beside = (*attention.beside, steering)
    try:
        yield
    finally:
        attention.beside = tuple(one for one in attention.beside if one is not steering)


def _join(masks: list[Tensor | None], calls: list[tuple[Tensor, KV, Mask]]) -> Tensor | None:
    """(H|1, Q, K) of all calls; what a call could not reach yet cannot be seen."""
    longest = calls[-1][1].length
    if all(mask is None for mask in masks) and all(kv.length == longest for _, kv, _ in calls):
        return None
    lines = []
    for mask, (q, kv, _) in zip(masks, calls, strict=True):
        seen = torch.ones(1, 1, q.shape[-2], kv.length, dtype=torch.bool) if mask is None else mask[:1].cpu()
        seen = seen.expand(1, -1, q.shape[-2], kv.length)
        lines.append(torch.nn.functional.pad(seen, (0, longest - kv.length), value=False))
    heads = max(line.shape[1] for line in lines)
    return torch.cat([line.expand(1, heads, -1, -1) for line in lines], -2)[0]


def _first(t: Tensor) -> Tensor:
    return t[0].detach().float().cpu()
