"""State goes in and comes out: what a model remembers between two steps, as nested dicts, lists and dataclasses.

A state is used once: stepping may write into its buffers. `repeat`, `reorder` and `join` copy.

Rows that did not begin together may still share a batch. What each has read lies at the left, where it would lie alone,
and `State.lengths` says how much of a row is its own:

    keys of row 0   k₀ k₁ k₂ k₃ k₄      lengths = (5, 2): the next key of row 0 goes to place 5, that of row 1 to
    keys of row 1   k₀ k₁  ·  ·  ·      place 2, and neither sees what lies behind its own
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.mask import Mask

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

    def masked(self, mask: Mask) -> Mask:
        """The mask under which they are looked at."""
        return mask

    def extend(self, new: KV, at: Tensor | None = None) -> KV:
        """Old and new in a row: a fresh tensor while gradients are recorded, in place otherwise.

        `at` (B,): where the new begin, of rows that are not equally long.
        """
        if at is not None:
            return self._extend_each(new, at)
        if torch.is_grad_enabled():
            return KV.of(torch.cat([self.keys, new.keys], -2), torch.cat([self.values, new.values], -2))
        k, v = self._with_room(self.length + new.length)
        k.narrow(-2, self.length, new.length).copy_(new.keys)
        v.narrow(-2, self.length, new.length).copy_(new.values)
        return KV(k, v, self.length + new.length)

    def _extend_each(self, new: KV, at: Tensor) -> KV:
        k, v = self._with_room(self.length + new.length)
        if torch.is_grad_enabled():
            k, v = k.clone(), v.clone()
        places = (at[:, None] + torch.arange(new.length, device=at.device))[:, None, :, None]
        k.scatter_(-2, places.expand_as(new.keys), new.keys)
        v.scatter_(-2, places.expand_as(new.values), new.values)
        return KV(k, v, self.length + new.length)

    def _with_room(self, end: int) -> tuple[Tensor, Tensor]:
        if end <= self.k.shape[-2]:
            return self.k, self.v
        return _padded(self.k, max(2 * end, ROOM)), _padded(self.v, max(2 * end, ROOM))

    def detached(self) -> KV:
        """The same numbers, through which nobody learns."""
        return replace(self, k=self.k.detach(), v=self.v.detach())

    def first(self, length: int) -> KV:
        """The first keys alone; buffers much larger than that are given back."""
        if self.k.shape[-2] <= 2 * length + ROOM:
            return KV(self.k, self.v, length)
        return KV.of(*(t.narrow(-2, 0, length).contiguous() for t in (self.k, self.v)))

    @staticmethod
    def beside(parts: Sequence[KV]) -> KV:
        """Rows of several, as one batch; what is shorter has room at its end."""
        room = max(part.k.shape[-2] for part in parts)
        k, v = (torch.cat([_padded(t, room) for t in some]) for some in zip(*((p.k, p.v) for p in parts), strict=True))
        return KV(k, v, max(part.length for part in parts))


class Books(NamedTuple):
    """What is kept of n rows that say one word after another, in tensors that stay where they are."""

    tokens: Tensor  # (n, 1) said last
    totals: Tensor  # (n, 1) summed log-probabilities, in float64
    told: Tensor  # (steps, n, 2, 1) total and word of each step, in float64
    going: Tensor  # (n,)
    limit: Tensor  # (n,) words at most
    clock: Tensor  # of the step before: where the next token stands, words said, steps told


class Kernels(Protocol):
    """How buffers that stay where they are may be written to and looked at, and layers be gone through."""

    def suit(self, buffer: Tensor, queries: int) -> bool:
        """Whether there are some for such buffers, and so many hypotheses of a sentence."""

    def write(self, k: Tensor, v: Tensor, new_k: Tensor, new_v: Tensor, places: Tensor) -> None:
        """(B, H, n, D) into buffers of (B, H, capacity, D), at places (n,)."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, places: Tensor | None, scale: float) -> Tensor:
        """softmax(scale · qK + seen) V. Behind the `places` of the last keys there is nothing to see."""

    def say(self, logits: Tensor, books: Books, eos: int) -> None:
        """Every row says its likeliest word, and the books of it are kept."""

    def likeliest(self, logits: Tensor, bent: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities and numbers of the k best words of each row, of those that are left in `bent`."""

    def narrowed(self, model: nn.Module, rows: int) -> AbstractContextManager[None]:
        """For as long as it lasts, layers go through so many vectors in fewer kernels, where they can."""


@dataclass(frozen=True)
class Fixed(KV):
    """Keys and values whose buffers neither grow nor move, so that every step has the same shapes. All of a buffer is
    looked at, and `seen` is added to the scores: 0 where a query may look, -inf elsewhere.

    The n hypotheses of a sentence write into one buffer, key t of hypothesis j to place n · t + j. One that follows
    another copies nothing but what the other has seen.
    """

    seen: Tensor  # (B, 1, n, capacity)
    places: Tensor | None = None  # (n,) where the next keys go; None: there will be no others
    kernels: Kernels | None = None  # None: there are none for such tensors

    def extend(self, new: KV, at: Tensor | None = None) -> Fixed:
        """One key more for each hypothesis, in place."""
        assert self.places is not None
        keys, values = (self._beside_each_other(t) for t in (new.keys, new.values))
        if self.kernels is None:
            self.k.index_copy_(-2, self.places, keys)
            self.v.index_copy_(-2, self.places, values)
        else:
            self.kernels.write(self.k, self.v, keys, values, self.places)
        return self

    def masked(self, mask: Mask) -> Mask:
        return Mask(pairs=mask.pairs, offset=mask.offset, drawn=self.seen)

    def _beside_each_other(self, t: Tensor) -> Tensor:  # (B·n, H, 1, D) -> (B, H, n, D)
        return t.unflatten(0, (self.rows, -1)).transpose(1, 2).flatten(2, 3)


def _padded(t: Tensor, room: int) -> Tensor:
    short = room - t.shape[-2]
    return F.pad(t, (0, 0, 0, short)) if short else t


@dataclass(frozen=True)
class Memory:
    """A source that is looked at: its keys and values, for one attention or for several, and which of them are real."""

    keys: Any  # KV, in a list where there are several
    real: Tensor | None = None  # (B, S) False at padding; None: all are real

    @staticmethod
    def beside(parts: Sequence[Memory]) -> Memory:
        """Of several batches of sentences one; the shorter are padded."""
        keys = _beside([part.keys for part in parts])
        sizes = [_first(part.keys, KV) for part in parts]
        longest = max(kv.length for kv in sizes)
        if all(part.real is None and kv.length == longest for part, kv in zip(parts, sizes, strict=True)):
            return Memory(keys)
        reals = [
            kv.k.new_ones(kv.rows, kv.length, dtype=torch.bool) if part.real is None else part.real
            for part, kv in zip(parts, sizes, strict=True)
        ]
        return Memory(keys, torch.cat([F.pad(real, (0, longest - real.shape[1])) for real in reals]))

    def trimmed(self) -> Memory:
        """Without the places that no sentence has."""
        if self.real is None:
            return self
        longest = int(self.real.any(0).nonzero().max()) + 1
        real = self.real[:, :longest]
        return Memory(each(self.keys, lambda kv: kv.first(longest), KV), None if real.all() else real)


@dataclass(frozen=True)
class State:
    """What a decoder carries from step to step.

    `memory` belongs to the sentence, and all of its hypotheses share it; `past` and `notes` belong to a hypothesis.
    """

    memory: Any = None  # the source, read once
    past: Any = None  # what this hypothesis has said and seen so far
    length: int = 0  # tokens read, by the row that has read most
    notes: dict[str, Tensor] = field(default_factory=dict)  # what a model says besides its logits
    lengths: Tensor | None = None  # (B,) tokens read by each row, where they differ; or one number, of fixed buffers

    @property
    def at(self) -> int | Tensor:
        """Where the next token stands: a number for all rows, or (B,) one for each."""
        return self.length if self.lengths is None else self.lengths

    def after(self, tokens: int, past: Any, notes: dict[str, Tensor] | None = None) -> State:
        """The state so many tokens later. The one number of fixed buffers is advanced by whoever keeps them."""
        lengths = self.lengths if self.lengths is None or not self.lengths.ndim else self.lengths + tokens
        return State(self.memory, past, self.length + tokens, self.notes if notes is None else notes, lengths)


def each(tree: Any, change: Callable[[Any], Any], kind: type | tuple[type, ...] = Tensor) -> Any:
    """The same tree with `change` applied to every tensor, or to everything of another kind."""
    if isinstance(tree, kind):
        return change(tree)
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{f.name: each(getattr(tree, f.name), change, kind) for f in fields(tree)})
    if isinstance(tree, dict):
        return {name: each(branch, change, kind) for name, branch in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(each(branch, change, kind) for branch in tree)
    return tree


def reorder(state: State, rows: Tensor, sentences: Tensor | None = None) -> State:
    """Hypotheses `rows` of a state, in that order; `sentences` besides, where some sentences leave the batch."""
    own = each((state.past, state.notes, state.lengths), lambda t: t.index_select(0, rows))
    memory = state.memory if sentences is None else each(state.memory, lambda t: t.index_select(0, sentences))
    return State(memory, own[0], state.length, *own[1:])


def repeat(state: State, times: int) -> State:
    """Each hypothesis `times` over, neighbours in the batch; the memory of a sentence is not copied."""
    own = each((state.past, state.notes, state.lengths), lambda t: t.repeat_interleave(times, 0))
    return State(state.memory, own[0], state.length, *own[1:])


def join(states: Sequence[State]) -> State:
    """The rows of several states as one batch, however much each has read. All have as many hypotheses a sentence.

    Keys and values are padded at their end, and so is the memory; tensors are laid side by side. What a model keeps
    besides says by a method `beside` how it is joined. Of what it noted, that of the last token stays.
    """
    if len(states) == 1:
        return states[0]
    _check(states)
    longest = max(state.length for state in states)
    alike = all(state.lengths is None and state.length == longest for state in states)
    return State(
        _beside([state.memory for state in states]),
        _beside([state.past for state in states]),
        longest,
        _beside([each(state.notes, lambda t: t[:, -1:] if t.ndim > 1 else t) for state in states]),
        None if alike else torch.cat([_lengths(state) for state in states]),
    )


def trim(state: State) -> State:
    """Without the places that no row has any more, once the longest has left."""
    memory = each(state.memory, Memory.trimmed, Memory)
    if state.lengths is None:
        return replace(state, memory=memory)
    shortest, longest = torch.stack(state.lengths.aminmax()).tolist()
    past = each(state.past, lambda kv: kv.first(longest), KV)
    return State(memory, past, longest, state.notes, None if shortest == longest else state.lengths)


def _check(states: Sequence[State]) -> None:
    widths = set()
    for state in states:
        own, shared = _first(state.past, Tensor), _first(state.memory, Tensor)
        if own is None:
            raise ValueError("a state came that has read nothing, but rows join in mid-decode; step it first")
        widths.add(1 if shared is None else len(own) // len(shared))
    if len(widths) > 1:
        few, many = min(widths), max(widths)
        raise ValueError(
            f"states with {few} and with {many} hypotheses a sentence came, but those of a batch have equally many; "
            "join like with like"
        )


def _beside(trees: Sequence[Any]) -> Any:
    """Trees of one shape as one tree, their rows side by side."""
    first = trees[0]
    if hasattr(first, "beside"):
        return first.beside(trees)
    if isinstance(first, Tensor):
        return torch.cat(list(trees))
    if is_dataclass(first) and not isinstance(first, type):
        return replace(first, **{f.name: _beside([getattr(tree, f.name) for tree in trees]) for f in fields(first)})
    if isinstance(first, dict):
        return {name: _beside([tree[name] for tree in trees]) for name in first}
    if isinstance(first, (list, tuple)):
        return type(first)(_beside(branches) for branches in zip(*trees, strict=True))
    if any(tree != first for tree in trees):
        raise ValueError(f"{first!r} cannot be joined with another; give its class a method beside, which says how")
    return first


def _first(tree: Any, kind: type) -> Any:
    """The first thing of a kind that is in the tree, or None."""
    if isinstance(tree, kind):
        return tree
    if is_dataclass(tree) and not isinstance(tree, type):
        tree = [getattr(tree, f.name) for f in fields(tree)]
    branches = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return next((found for branch in branches if (found := _first(branch, kind)) is not None), None)


def _lengths(state: State) -> Tensor:
    if state.lengths is not None:
        return state.lengths
    some: Tensor = _first(state.past, Tensor)
    return torch.full((len(some),), state.length, device=some.device)
