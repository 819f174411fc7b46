"""Prompts that are read in one call on a GPU: as with the steps of a search, what takes time is calling kernels.

    a prompt of 21 tokens ─▶ in a place for 32 ─one graph─▶ logits after the 21st, keys and values of 21

It is filled up at its end, where nobody looks who counts, to one of few lengths. The first prompt of a size is read as
ever, since there may be no second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.core.autoregressive import Autoregressive
from regard.core.state import KV, State, each
from regard.decode.standing import tensors

MOST = 4096  # tokens of a prompt, with all its rows: reading more takes longer than calling
GRAIN = 16

Act = Callable[[], None]
Replay = Callable[[], None]
Record = Callable[[Act, Any], Replay]  # some work and the memory that graphs share -> what does it again


class Prompts:
    """Those of one model, by their size."""

    def __init__(self, model: Autoregressive, record: Record, most: int) -> None:
        self.model, self.record, self.most = model, record, most
        self.sizes: dict[tuple[int, int], Prompt | None] = {}  # None: seen once
        self.suited = True

    def forget(self) -> None:
        """What was recorded; which sizes there have been stays known."""
        self.sizes = dict.fromkeys(self.sizes)

    def read(self, tokens: Tensor, state: State, pool: Any) -> tuple[Tensor, State] | None:
        """As `model.step` does; None: this one is for it."""
        rows, length = tokens.shape
        room = min(roomy(length, GRAIN), self.model.longest or MOST)
        new = state.length == 0 and state.memory is None and state.lengths is None and not tensors(state.past)
        if not (self.suited and new and length > 1 and rows * room <= MOST):
            return None
        size = rows, room
        if size not in self.sizes:
            while len(self.sizes) >= self.most:
                del self.sizes[next(iter(self.sizes))]
            self.sizes[size] = None
            return None
        prompt = self.sizes.pop(size)
        if prompt is None:
            prompt = Prompt(self.model, state, torch.zeros(size, dtype=torch.long, device=tokens.device))
            prompt.replay = self.record(prompt.work, pool)
        self.sizes[size] = prompt  # last: used just now
        answer = prompt.read(tokens)
        self.suited = not tensors(prompt.past)  # whatever is no key has read what lies behind, too
        return answer if self.suited else None


class Prompt:
    """Room for one, in buffers that stay where they are."""

    def __init__(self, model: Autoregressive, state: State, tokens: Tensor) -> None:
        self.model, self.state, self.tokens = model, state, tokens
        self.last = torch.zeros(1, dtype=torch.long, device=tokens.device)
        self.logits, self.past = torch.empty(0), state.past
        self.replay: Replay = self.work

    def work(self) -> None:
        hidden, state = self.model.states(self.tokens, self.state)
        self.logits, self.past = self.model.head.logits(hidden.index_select(1, self.last)[:, 0]), state.past

    def read(self, tokens: Tensor) -> tuple[Tensor, State]:
        length = tokens.shape[1]
        self.tokens[:, :length] = tokens
        self.last.fill_(length - 1)
        self.replay()
        past = each(self.past, lambda kv: KV(kv.k, kv.v, length), KV)
        return self.logits, State(None, past, length)


def roomy(need: int, grain: int) -> int:
    """A size with room for so many, of which there are few: at most a quarter more, and a multiple of the grain."""
    step = max(grain, 1 << max(0, need.bit_length() - 3))
    return -(-need // step) * step
