"""Anything that writes one token after another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor, nn

from regard.core.head import Head
from regard.core.state import State


class Autoregressive(nn.Module):
    """Training is one big step: decoding and training share one path.

    A system defines `start` (read the source once) and `states` (read tokens, go on); the rest follows.
    """

    head: Head
    words: nn.Embedding  # of what it writes
    sourced: bool = True  # it reads a source before it writes
    longest: int | None = None  # tokens that it can read or write, where there is a limit
    exempt: Mapping[str, str] = MappingProxyType({})  # laws that do not hold for it by intention, and why

    def start(self, source: Tensor | None = None, real: Tensor | None = None, *, rows: int | None = None) -> State:
        """The state before the first token: of a source (B, S), or of `rows` empty beginnings."""
        raise TypeError(f"{type(self).__name__} must define start")

    def states(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, T) -> (B, T, dim), and the state after the last of them."""
        raise TypeError(f"{type(self).__name__} must define states")

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Logits (B, V) of what follows the last token, and the state after it."""
        hidden, state = self.states(tokens, state)
        return self.head.logits(hidden[:, -1]), state

    def forward(
        self, source: Tensor | None, real: Tensor | None, target: Tensor, told: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Training enters here by __call__, so that the hooks of DDP and FSDP run.

        `told` (B, T): where it is False, the model hears its own likeliest word instead of the target's.
        """
        return self._hear(target, told, self.start(source, real, rows=len(target)))

    def _hear(self, target: Tensor, told: Tensor | None, state: State) -> tuple[Tensor, State]:
        return self.states(target, state) if told is None else self._hearing_itself(target, told, state)

    def _hearing_itself(self, target: Tensor, told: Tensor, state: State) -> tuple[Tensor, State]:
        pieces: list[Tensor] = []
        notes: list[dict[str, Tensor]] = []
        tokens = target[:, :1]  # there is nothing to hear before the first
        for t in range(target.shape[1]):
            if t:
                with torch.no_grad():
                    own = self.head.logits(pieces[-1][:, -1]).argmax(-1, keepdim=True)
                tokens = torch.where(told[:, t : t + 1], target[:, t : t + 1], own)
            hidden, state = self.states(tokens, state)
            pieces.append(hidden)
            notes.append(state.notes)
        joined = {name: torch.cat([note[name] for note in notes], 1) for name in state.notes}
        return torch.cat(pieces, 1), replace(state, notes=joined)


class Sourceless(Autoregressive):
    """A language model: a prompt is just the first tokens, and what a state keeps as memory are the documents."""

    sourced = False

    def forward(
        self,
        source: Tensor | None,
        real: Tensor | None,
        target: Tensor,
        told: Tensor | None = None,
        *,
        documents: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """`documents` (B, T): tokens of equal ids are one document, to be read as if it stood alone."""
        return self._hear(target, told, replace(self.start(source, real, rows=len(target)), memory=documents))
