"""State goes in and comes out: what a model remembers between two steps, as nested dicts, lists and dataclasses.

A state is used once: stepping may write into its buffers. `repeat` and `reorder` copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ROOM = 16  # smallest buffer of a growing cache


@dataclass(frozen=True)
class KV:
    """Projected keys and values; the buffers may have room for more than has been written."""

    k: Tensor  # (B, H, capacity, D)
    v: Tensor
    length: int

    @classmethod
    def of(cls, k: Tensor, v: Tensor) -> KV:
        return cls(k, v, k.shape[-2])

    @property
    def keys(self) -> Tensor:
        return self.k if self.length == self.k.shape[-2] else self.k.narrow(-2, 0, self.length)

    @property
    def values(self) -> Tensor:
        return self.v if self.length == self.v.shape[-2] else self.v.narrow(-2, 0, self.length)

    @property
    def rows(self) -> int:
        return self.k.shape[0]

    def extend(self, new: KV) -> KV:
        """Old and new in a row: a fresh tensor while gradients are recorded, in place otherwise."""
        if torch.is_grad_enabled():
            return KV.of(torch.cat([self.keys, new.keys], -2), torch.cat([self.values, new.values], -2))
        end = self.length + new.length
        k, v = self.k, self.v
        if end > k.shape[-2]:
            room = max(2 * end, ROOM) - k.shape[-2]
            k, v = F.pad(k, (0, 0, 0, room)), F.pad(v, (0, 0, 0, room))
        k.narrow(-2, self.length, new.length).copy_(new.keys)
        v.narrow(-2, self.length, new.length).copy_(new.values)
        return KV(k, v, end)


@dataclass(frozen=True)
class State:
    """What a decoder carries from step to step.

    `memory` belongs to the sentence, and all of its hypotheses share it; `past` and `notes` belong to a hypothesis.
    """

    memory: Any = None  # the source, read once
    past: Any = None  # what this hypothesis has said and seen so far
    length: int = 0  # tokens read
    notes: dict[str, Tensor] = field(default_factory=dict)  # what a model says besides its logits


def each(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same tree with `change` applied to every tensor."""
    if isinstance(tree, Tensor):
        return change(tree)
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{f.name: each(getattr(tree, f.name), change) for f in fields(tree)})
    if isinstance(tree, dict):
        return {name: each(branch, change) for name, branch in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(each(branch, change) for branch in tree)
    return tree


def reorder(state: State, rows: Tensor, sentences: Tensor | None = None) -> State:
    """Hypotheses `rows` of a state, in that order; `sentences` besides, where some sentences leave the batch."""
    own = each((state.past, state.notes), lambda t: t.index_select(0, rows))
    memory = state.memory if sentences is None else each(state.memory, lambda t: t.index_select(0, sentences))
    return replace(state, memory=memory, past=own[0], notes=own[1])


def repeat(state: State, times: int) -> State:
    """Each hypothesis `times` over, neighbours in the batch; the memory of a sentence is not copied."""
    own = each((state.past, state.notes), lambda t: t.repeat_interleave(times, 0))
    return replace(state, past=own[0], notes=own[1])
