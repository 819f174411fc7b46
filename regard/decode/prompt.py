"""Sources and prompts that are read in one call on a GPU: as with the steps of a search, what takes time is calling
kernels.

    a prompt of 21 tokens ─▶ in a place for 32 ─one graph─▶ logits after the 21st, keys and values of 21
    a source of 21 tokens ─▶ in a place for 32 ─one graph─▶ keys and values of 21

It is filled up at its end, where nobody looks who counts, to one of few lengths, and the batch by rows that nobody asks
about. The first text of a size is read as ever, since there may be no second.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from regard.core.autoregressive import Autoregressive
from regard.core.state import KV, Memory, State, each
from regard.decode.standing import tensors

MOST = 4096  # tokens of a text, with all its rows: reading more takes longer than calling
GRAIN = 16

Act = Callable[[], None]
Replay = Callable[[], None]
Record = Callable[[Act, Any], Replay]  # some work and the memory that graphs share -> what does it again


class Prompt:
    """Room for one, in buffers that stay where they are."""

    def __init__(self, model: Autoregressive, tokens: Tensor) -> None:
        self.model, self.tokens = model, tokens
        self.last = torch.zeros(1, dtype=torch.long, device=tokens.device)
        self.logits, self.past = torch.empty(0), None
        self.replay: Replay = self.work

    def work(self) -> None:
        hidden, state = self.model.states(self.tokens, type(self.model).start(self.model, rows=len(self.tokens)))
        self.logits, self.past = self.model.head.logits(hidden.index_select(1, self.last)[:, 0]), state.past

    @property
    def suited(self) -> bool:
        """Whatever is no key has read what lies behind, too."""
        return not tensors(self.past)

    def read(self, tokens: Tensor) -> tuple[Tensor, State]:
        """As `model.step` does."""
        rows, length = tokens.shape
        _put(tokens, self.tokens)
        self.last.fill_(length - 1)
        self.replay()
        past = each(self.past, lambda kv: KV(kv.k[:rows], kv.v[:rows], length), KV)
        return self.logits[:rows], State(None, past, length)


class Source:
    """Room for one, in buffers that stay where they are."""

    def __init__(self, model: Autoregressive, tokens: Tensor) -> None:
        self.model, self.tokens = model, tokens
        self.real = torch.ones_like(tokens, dtype=torch.bool)
        self.state = State()
        self.replay: Replay = self.work

    def work(self) -> None:
        self.state = type(self.model).start(self.model, self.tokens, self.real)

    @property
    def suited(self) -> bool:
        """What is looked at can be told apart from what lies behind; a summary of all of it cannot."""
        state = self.state
        return isinstance(state.memory, Memory) and not tensors((state.memory, state.past)) and not state.notes

    def read(self, tokens: Tensor, real: Tensor | None) -> State:
        """As `model.start` does. Whoever reads the next source of this size finds his own numbers there."""
        rows, length = tokens.shape
        _put(tokens, self.tokens)
        self.real[:rows, :length] = True if real is None else real
        self.real[:rows, length:] = False
        self.replay()

        def own(kv: KV) -> KV:
            k, v = (t[:rows, :, :length].clone(memory_format=torch.contiguous_format) for t in (kv.k, kv.v))
            return KV.of(k, v)

        return replace(self.state, memory=Memory(each(self.state.memory.keys, own, KV), real))


def _put(tokens: Tensor, room: Tensor) -> None:
    """Nothing stays of what was read there before, not even where nobody looks."""
    rows, length = tokens.shape
    room[:rows, :length] = tokens
    room[:rows, length:] = 0


P = TypeVar("P", Prompt, Source)


class Places(Generic[P]):
    """Those of one model, by their size."""

    def __init__(self, kind: type[P], record: Record, most: int) -> None:
        self.kind: type[P] = kind
        self.record, self.most = record, most
        self.sizes: dict[tuple[int, int], P | None] = {}  # None: seen once
        self.suited = True

    @property
    def made(self) -> list[P]:
        return [place for place in self.sizes.values() if place is not None]

    def forget(self) -> None:
        """What was recorded; which sizes there have been stays known."""
        self.sizes = dict.fromkeys(self.sizes)

    def find(self, model: Autoregressive, tokens: Tensor, pool: Any) -> P | None:
        """Where such tokens (B, T) can be read; None: they are read as ever."""
        rows, length = tokens.shape
        size = doubled(rows), min(roomy(length, GRAIN), model.longest or MOST)
        if not self.suited or length > size[1] or math.prod(size) > MOST:
            return None
        if size not in self.sizes:
            self._note(size)
            return None
        place = self.sizes.pop(size)
        if place is None:
            try:
                place = self.kind(model, torch.zeros(size, dtype=torch.long, device=tokens.device))
                place.replay = self.record(place.work, pool)
                place.replay()
                self.suited = place.suited
            except torch.OutOfMemoryError:  # another time there may be room
                self._note(size)
                return None
            except RuntimeError:  # which is not worth a word
                self.suited = False
            if not self.suited:
                self.sizes.clear()
                return None
        self.sizes[size] = place  # last: used just now
        return place

    def _note(self, size: tuple[int, int]) -> None:
        """A size that was seen once makes room for a newer one; what was recorded stays, lest all be recorded again and
        again."""
        if len(self.sizes) >= self.most:
            once = next((size for size, place in self.sizes.items() if place is None), None)
            if once is None:
                return
            del self.sizes[once]
        self.sizes[size] = None


def doubled(rows: int) -> int:
    """The power of two that is enough for so many."""
    return 1 << (rows - 1).bit_length()


def roomy(need: int, grain: int) -> int:
    """A size with room for so many, of which there are few: at most a quarter more, and a multiple of the grain."""
    step = max(grain, 1 << max(0, need.bit_length() - 3))
    return -(-need // step) * step
