"""What a law is asked of: a model in evaluation mode with a batch of random words, or numbers, of uneven length."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor, nn

from regard.core.autoregressive import Autoregressive, Sourceless
from regard.core.state import State

START, END = 1, 2  # a law holds whichever tokens begin and end
FIRST_WORD = 4  # where the vocabulary is large enough


@dataclass(frozen=True)
class Case:
    """A model in evaluation mode with a batch of rows of uneven length."""

    model: nn.Module

    def logits(self) -> Tensor:
        """What comes out at every position: (B, T, …)."""
        raise TypeError(f"{type(self).__name__} must define logits")

    def rows(self, some: Tensor) -> Case:
        """The case of these rows alone."""
        changed = {f.name: getattr(self, f.name) for f in fields(self) if isinstance(getattr(self, f.name), Tensor)}
        return replace(self, **{name: tensor[some] for name, tensor in changed.items()})

    def alone(self, row: int) -> Case:
        """One row, without its padding."""
        raise TypeError(f"{type(self).__name__} must define alone")

    def full(self) -> Case:
        """The case without padding in what looks at itself."""
        return self


@dataclass(frozen=True)
class Stepping(Case):
    """A system that goes step by step, each from those before it: after a source, or after nothing."""

    model: Autoregressive
    source: Tensor | None  # (B, S)
    real: Tensor | None  # (B, S)
    target: Tensor  # (B, T), or numbers (B, T, C)

    def logits(self) -> Tensor:
        hidden, _ = self.model(self.source, self.real, self.target)
        return self.said(hidden)

    def said(self, hidden: Tensor) -> Tensor:
        """What comes out where a hidden state stands."""
        return self.model.head.logits(hidden)

    def alone(self, row: int) -> Self:
        one = self.rows(torch.tensor([row]))
        assert isinstance(one, type(self))
        if one.source is None or one.real is None:
            return one
        length = int(one.real.sum())
        return replace(one, source=one.source[:, :length], real=one.real[:, :length])

    def begin(self) -> State:
        return self.model.start(self.source, self.real, rows=len(self.target))

    def entering(self) -> AbstractContextManager[list[Tensor]]:
        """Inside, what enters when it reads the target can be asked for its gradient."""
        return _embedded(self.model, self.target)


@dataclass(frozen=True)
class Writing(Stepping):
    """A system that writes."""

    @property
    def limit(self) -> int:
        """Tokens of an answer."""
        return _fitting(self.model, 12)

    @property
    def prompt(self) -> Tensor:
        return torch.full((len(self.target), 1), START)


@dataclass(frozen=True)
class Listening(Stepping):
    """A system that reads numbers, and tells something at each step."""

    def said(self, hidden: Tensor) -> Tensor:
        told: Tensor = self.model.labels(hidden)  # type: ignore[operator]
        return told

    @contextmanager
    def entering(self) -> Iterator[list[Tensor]]:
        try:
            yield [self.target.requires_grad_()]
        finally:
            self.target.requires_grad_(False)


@dataclass(frozen=True)
class Encoding(Case):
    """A system that reads: a vector for each token."""

    tokens: Tensor  # (B, T)
    real: Tensor  # (B, T)

    def logits(self) -> Tensor:
        hidden: Tensor = self.model(self.tokens, self.real)
        return hidden * self.real[..., None]

    def alone(self, row: int) -> Encoding:
        length = int(self.real[row].sum())
        return replace(self, tokens=self.tokens[row : row + 1, :length], real=self.real[row : row + 1, :length])

    def full(self) -> Encoding:
        return replace(self, real=torch.ones_like(self.real))


def make_case(
    model: nn.Module,
    vocab: int | None,
    *,
    source_vocab: int | None = None,
    rows: int = 4,
    length: int = 9,
    seed: int = 0,
) -> Case:
    """Random words, or numbers, and uneven lengths, in float64: a law that holds there to nine digits holds.

    None is longer than the model can hold.
    """
    dice = torch.Generator().manual_seed(seed)
    model = copy.deepcopy(model).cpu().double().eval()
    reads, writes = _fitting(model, length), _fitting(model, length - 1)
    if isinstance(model, Sourceless) and model.inputs is not None:
        numbers = torch.randn(rows, writes, model.inputs, generator=dice, dtype=torch.float64)
        return Listening(model, None, None, numbers)
    assert vocab is not None
    source = _words(source_vocab or vocab, (rows, reads), dice)
    lengths = torch.linspace(reads, min(2, reads), rows).long()
    real = torch.arange(reads) < lengths[:, None]
    if not isinstance(model, Autoregressive):
        return Encoding(model, source * real, real)
    target = _words(vocab, (rows, writes), dice)
    target[:, 0] = START
    return Writing(model, source * real, real, target) if model.sourced else Writing(model, None, None, target)


def _fitting(model: nn.Module, length: int) -> int:
    longest: int | None = getattr(model, "longest", None)
    return length if longest is None else min(length, longest)


def _words(vocab: int, shape: tuple[int, int], dice: torch.Generator) -> Tensor:
    return torch.randint(min(FIRST_WORD, vocab - 1), vocab, shape, generator=dice)


@contextmanager
def _embedded(model: Autoregressive, target: Tensor) -> Iterator[list[Tensor]]:
    """The vectors of the target's words, as a model of words makes them."""
    kept: list[Tensor] = []

    def keep(module: nn.Module, given: tuple[Tensor, ...], result: Tensor) -> Tensor:
        if given[0].shape == target.shape and torch.equal(given[0], target):
            kept.append(result.detach().requires_grad_())
            return kept[-1]
        return result

    handle = model.words.register_forward_hook(keep)
    try:
        yield kept
    finally:
        handle.remove()
