"""Anything that writes one token after another."""

from __future__ import annotations

from torch import Tensor, nn

from regard.core.head import Head
from regard.core.state import State


class Autoregressive(nn.Module):
    """Training is one big step: decoding and training share one path.

    A system defines `start` (read the source once) and `states` (read tokens, go on); the rest follows.
    """

    head: Head
    longest: int | None = None  # tokens that it can read or write, where there is a limit

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

    def forward(self, source: Tensor | None, real: Tensor | None, target: Tensor) -> tuple[Tensor, State]:
        """Training enters here by __call__, so that the hooks of DDP and FSDP run."""
        return self.states(target, self.start(source, real, rows=len(target)))
