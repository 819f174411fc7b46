"""Anything that writes one token after another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.documents import Documents
from regard.core.head import Head
from regard.core.linear import recorded
from regard.core.spans import Along, Begun, LookAlong, Rows, Spans
from regard.core.state import State


class Autoregressive(nn.Module):
    """Training is one big step: decoding and training share one path.

    A system defines `start` (read the source once) and `states` (read tokens, go on); the rest follows.
    """

    head: Head
    words: nn.Embedding  # of what it writes
    sourced: bool = True  # it reads a source before it writes
    longest: int | None = None  # tokens that it can read or write, where there is a limit
    carries: bool = False  # the past of its state stays of one size, and can be handed on from text to text without end
    exempt: Mapping[str, str] = MappingProxyType({})  # laws that do not hold for it by intention, and why
    recordable: bool = (
        True  # a training step is many kernels; False: a few long ones, which gain nothing from a recording
    )
    unpads: bool = False  # it can leave out the padding of both sides while it learns: `unpadded`
    along: Along | None = None  # attention for rows that lie end to end, where it learns and there is such a kernel
    nearby: LookAlong | None = None  # the same on a GPU, where there is a better one than the library's
    writer: Any = None  # searches in one call, where it was prepared for that

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
        self,
        source: Tensor | None,
        real: Tensor | Spans | None,
        target: Tensor,
        told: Tensor | None = None,
        asked: Tensor | Spans | None = None,
    ) -> tuple[Tensor, State]:
        """Training enters here by __call__, so that the hooks of DDP and FSDP run.

        `told` (B, T): where it is False, the model hears its own likeliest word instead of the target's.
        `asked` (B, T): where it is False, up to the end of a row, nobody asks what follows, and a system may leave that
        out. Spans, of `real` and of what is asked, say so too, to a system that `unpads`; what it hears of these comes
        as it lies, (1, N, dim).
        """
        able = self.unpads and source is not None and told is None
        if able and isinstance(real, Begun) and isinstance(asked, Begun):
            return self.unpadded(source, target, real, asked), State()  # type: ignore[arg-type]
        if isinstance(real, Spans) or isinstance(asked, Spans):
            raise ValueError(f"spans came, but {type(self).__name__} leaves no padding out here; give tensors")
        sides = self._sides(real, asked) if able else None
        if source is not None and sides is not None:
            return sides[1].unpack(self.unpadded(source, target, *sides)), State()
        return self._hear(target, told, self.start(source, real, rows=len(target)))

    def _sides(self, real: Tensor | None, asked: Tensor | None) -> tuple[Rows, Rows] | None:
        """What is read and what is asked, where there is a kernel for rows end to end."""
        along = None if recorded() else self.along
        if along is None or real is None or not _ends(asked):
            return None
        return Rows(real, along), Rows(asked, along)

    def unpadded(self, source: Tensor, target: Tensor, reading: Begun, writing: Begun) -> Tensor:
        """`forward` where tokens of both sides that are padding are left out, and no state comes of it: (1, N, dim) of
        what is asked."""
        raise TypeError(f"{type(self).__name__} must define unpadded")

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


def _ends(asked: Tensor | None) -> TypeGuard[Tensor]:
    """Whether rows are asked of up to some place: what came behind a hole would still have to see what is in it."""
    return asked is not None and not bool((asked[:, 1:] & ~asked[:, :-1]).any())


class Sourceless(Autoregressive):
    """A language model: a prompt is just the first tokens, and what a state keeps as memory are the documents.

    Or a model of numbers: it reads x (B, T, inputs) wherever tokens (B, T) are said, and has neither words nor a head.
    """

    sourced = False
    inputs: int | None = None  # channels, where it reads numbers

    def start(self, source: Tensor | None = None, real: Tensor | None = None, *, rows: int | None = None) -> State:
        if source is not None:
            raise ValueError("a language model has no source apart; write it before the target, as one sequence")
        return State()

    def forward(
        self,
        source: Tensor | None,
        real: Tensor | Spans | None,
        target: Tensor,
        told: Tensor | None = None,
        asked: Tensor | Spans | None = None,
        *,
        documents: Tensor | Documents | None = None,
        past: Any = None,
    ) -> tuple[Tensor, State]:
        """`documents` (B, T): tokens of equal ids are one document, to be read as if it stood alone. `past`, of a state
        that has read before: the target goes on from there, and its document 0 with the last that was read.
        """
        state = self.start(source, rows=len(target))
        if isinstance(documents, Tensor):
            documents = Documents(documents)
        if past is not None:
            state = replace(state, past=past, length=1)  # one token stands for all that were read
            documents = None if documents is None else Documents(F.pad(documents.ids, (1, 0)))
        return self._hear(target, told, replace(state, memory=documents))

    def check(self, read: Tensor) -> None:
        """Refuses what can be neither tokens (B, T) nor, where it reads them, numbers (B, T, inputs)."""
        numbers = read.is_floating_point()
        if self.inputs is None and (numbers or read.ndim != 2):
            wanted = "whole numbers of shape (batch, steps), the numbers of words"
        elif self.inputs is not None and (not numbers or read.ndim != 3 or read.shape[-1] != self.inputs):
            wanted = f"floating-point numbers of shape (batch, steps, {self.inputs}), one for each input"
        else:
            return
        raise ValueError(f"{read.dtype} of shape {tuple(read.shape)} came, but {wanted}, are wanted")

    def summary(self, hidden: Tensor, last: Tensor) -> Tensor:
        """A text in one vector, (B, T, dim) -> (B, dim): what stands at its last token, which knows all before it."""
        return hidden[torch.arange(len(hidden), device=hidden.device), last]

    def conclude(self, tokens: Tensor, last: Tensor | None = None) -> Tensor:
        """The summary alone, (B, T) -> (B, dim), where nothing is asked of the tokens before; all end with the last
        when `last` is left out. A model may leave undone what its summary does not need."""
        hidden, _ = self(None, None, tokens)
        return hidden[:, -1] if last is None else self.summary(hidden, last)
