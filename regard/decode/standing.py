"""A state whose tensors stay where they are, so that every step is the same step: what a captured graph wants.

    growing   keys of row 0   k₀ k₁ k₂            a step makes longer tensors, or new ones
    standing  keys of row 0   k₀ k₁ k₂ ·  ·  ·    a step writes into the next place, and `seen` hides what lies behind

The hypotheses of a sentence share a buffer as they share its memory. Following another means to see what it saw: keys
and values are never copied, and of a beam search only the small table `seen` is put in a new order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from regard.core.state import KV, Fixed, Kernels, Memory, State, each

HIDDEN = float("-inf")

T = TypeVar("T")


class Standing:
    """Room for so many sentences of so many hypotheses each, of as many as `capacity` tokens, made like a state that
    has read something. A source has room for `source` tokens."""

    def __init__(
        self,
        like: State,
        *,
        sentences: int,
        width: int,
        capacity: int,
        source: int,
        kernels: Kernels | None = None,
    ) -> None:
        self.sentences, self.width, self.capacity, self.source = sentences, width, capacity, source
        self.kernels = kernels
        some = _found((like.past, like.memory), Tensor)[0]
        self.seen = some.new_zeros(sentences, 1, width, capacity * width, dtype=_kind(like.past))
        self.heard = some.new_zeros(sentences, 1, 1, source, dtype=_kind(like.memory))
        self.clock = torch.zeros(3 + width, dtype=torch.long, device=some.device)  # all that advances
        self.paces = torch.ones_like(self.clock)
        self.paces[3:] = width
        self.at, self.places = self.clock[0], self.clock[3:]  # where the next tokens stand, where their keys go
        alone = torch.full((width, width), HIDDEN, dtype=self.seen.dtype, device=some.device).fill_diagonal_(0.0)
        self.alone = alone.expand(sentences, 1, width, width)  # of the keys just written, each hypothesis sees its own
        self.past = each(like.past, self._room, (KV, Tensor))
        self.loose = tensors(self.past)
        self.memory = each(like.memory, self._shared, (Memory, KV, Tensor))

    @property
    def said(self) -> Tensor:
        """(1,) words of every hypothesis."""
        return self.clock[1:2]

    @property
    def slot(self) -> Tensor:
        """(1,) steps since the host looked."""
        return self.clock[2:3]

    def state(self) -> State:
        """To be stepped with one token a row. The newest key may be looked at by whoever is about to write it."""
        self.seen.index_copy_(-1, self.places, self.alone)
        return State(self.memory, self.past, self.capacity - 1, {}, self.at)

    def follow(self, past: Sequence[Tensor], parents: Tensor | None) -> None:
        """A step has been made, and these are the tensors of its past. Each hypothesis goes on from its parent, a row
        (B·n,); None: from itself."""
        for mine, new in zip(self.loose, past, strict=True):
            mine.copy_(new if parents is None else new.index_select(0, parents))
        if parents is not None:
            seen = self.seen.view(len(parents), -1)
            seen.copy_(seen.index_select(0, parents))
        self.clock.add_(self.paces)

    def enter(self, state: State, rows: Tensor, said: int) -> None:
        """These rows of a state that has read a prompt, or nothing yet: the hypotheses of a sentence have that in
        common. Each has `said` so many words. Nothing stays of who was here before: what is hidden counts zero times,
        and zero times NaN is NaN."""
        self.clock.copy_(torch.tensor([state.length, said, 0, *range(self.width)]))
        self.places += state.length * self.width
        self.seen.fill_(HIDDEN)
        if rooms := [t for kv in _found((self.past, self.memory), KV) for t in (kv.k, kv.v)]:
            torch._foreach_zero_(rooms)
        self._of_the_first(self.seen)[..., : state.length] = 0.0
        self._have(_found(state.past, KV), rows)
        for to, t in zip(tensors(self.past), tensors(state.past), strict=True):
            to.copy_(t.index_select(0, rows.repeat_interleave(self.width)))
        for there, memory in zip(_found(self.memory, Memory), _found(state.memory, Memory), strict=True):
            self._hear(there, memory, rows)
        for to, t in zip(tensors(self.memory), tensors(state.memory), strict=True):
            to.copy_(t.index_select(0, rows))

    def _have(self, past: Sequence[KV], rows: Tensor) -> None:
        """These rows of keys and values, all in one call: one after another they take longer than a word."""
        if past:
            here = [t for kv in past for t in (kv.keys, kv.values)]
            room = [self._of_the_first(t.transpose(-2, -1)) for kv in _found(self.past, KV) for t in (kv.k, kv.v)]
            places = [to[..., : t.shape[-2]] for to, t in zip(room, here, strict=True)]
            torch._foreach_copy_(places, [_rows(t, rows).transpose(-2, -1) for t in here])

    def take(self, other: Standing, sentences: Tensor) -> None:
        """These sentences of another, as they stand there."""
        rows = (sentences[:, None] * self.width + torch.arange(self.width, device=sentences.device)).flatten()
        self.clock.copy_(other.clock)
        for to, t in zip(tensors(self.past), tensors(other.past), strict=True):
            to.copy_(t.index_select(0, rows))
        for to, t in zip(self.by_sentence(), other.by_sentence(), strict=True):
            to.copy_(t.index_select(0, sentences))

    def by_sentence(self) -> list[Tensor]:
        """Buffers with a row for each sentence."""
        kept = [t for kv in _found((self.past, self.memory), KV) for t in (kv.k, kv.v)]
        reals = [memory.real for memory in _found(self.memory, Memory) if memory.real is not None]
        return [self.seen, self.heard, *kept, *reals, *tensors(self.memory)]

    def _room(self, like: KV | Tensor) -> Fixed | Tensor:
        if isinstance(like, Tensor):
            return like.new_zeros(self.sentences * self.width, *like.shape[1:])
        return self._fixed(like, self.capacity * self.width, self.seen, self.places)

    def _shared(self, like: Memory | KV | Tensor) -> Memory | Fixed | Tensor:
        if isinstance(like, Memory):
            real = self.heard.new_zeros(self.sentences, self.source, dtype=torch.bool)
            return Memory(each(like.keys, self._shared, KV), real)
        if isinstance(like, KV):
            return self._fixed(like, self.source, self.heard)
        return like.new_zeros(self.sentences, *like.shape[1:])

    def _fixed(self, like: KV, room: int, seen: Tensor, places: Tensor | None = None) -> Fixed:
        k, v = (t.new_zeros(self.sentences, t.shape[1], room, t.shape[-1]) for t in (like.k, like.v))
        suited = self.kernels is not None and k.shape == v.shape and self.kernels.suit(k, self.width)
        return Fixed(k, v, room, seen, places, self.kernels if suited else None)

    def _of_the_first(self, t: Tensor) -> Tensor:
        """(…, capacity · n) -> (…, capacity): where the first hypothesis of a sentence writes."""
        return t.unflatten(-1, (self.capacity, self.width))[..., 0]

    def _hear(self, mine: Memory, memory: Memory, rows: Tensor) -> None:
        assert mine.real is not None
        length = _found(memory.keys, KV)[0].length
        mine.real.zero_()
        mine.real[:, :length] = True if memory.real is None else memory.real.index_select(0, rows)
        self.heard[:, 0, 0] = torch.where(mine.real, 0.0, HIDDEN)
        there = [t[:, :, :length] for kv in _found(mine.keys, KV) for t in (kv.k, kv.v)]
        here = [t for kv in _found(memory.keys, KV) for t in (kv.keys, kv.values)]
        torch._foreach_copy_(there, [_rows(t, rows) for t in here])


def length_of(memory: Any) -> int:
    """Tokens of the longest source that is looked at; 0 where none is."""
    return max((kv.length for kv in _found(memory, KV)), default=0)


def _rows(t: Tensor, rows: Tensor) -> Tensor:
    """Those rows of it; the only one there is need not be looked for."""
    return t.expand(len(rows), *t.shape[1:]) if len(t) == 1 else t.index_select(0, rows)


def _kind(tree: Any) -> torch.dtype:
    """Of the keys, since what is added to their scores must be alike."""
    return next((kv.k.dtype for kv in _found(tree, KV)), torch.float32)


def tensors(tree: Any) -> list[Tensor]:
    """Those that are no keys or values, nor say which of these are real."""
    found: list[Any] = []
    each(tree, found.append, (Memory, KV, Tensor))
    return [t for t in found if isinstance(t, Tensor)]


def _found(tree: Any, kind: type[T]) -> list[T]:
    found: list[T] = []
    each(tree, found.append, kind)
    return found
