"""The temporal convolutional network (Bai, Kolter & Koltun 2018): a sequence model without a state and without a look.

    level i of n     y = drop(relu(conv(x)))      both convolutions causal, kernel k, dilation d = 2^i, weight norm
                     y = drop(relu(conv(y)))
                     x ← relu(y + x)              where y is not as wide as x, x goes through a matrix first
    receptive field  1 + 2(k-1)(1 + 2 + … + 2^(n-1)) = 1 + 2(k-1)(2^n - 1) steps: it doubles with each level

    said at step t   p(next token) = softmax(E x_t + b); a label, a number or several: W x_t + b

In training all steps of a sequence are read at once. When it writes, they come one by one, and each convolution
remembers the last (k-1)d of its inputs. Numbers go into the first convolution as they are; tokens have vectors, and
where the head is tied to these, the last level is as wide as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.config import ModelConfig
from regard.core.autoregressive import Sourceless
from regard.core.convolution import Causal, Heard, causal, halves
from regard.core.documents import apart
from regard.core.dropout import dropout, relu_dropout
from regard.core.head import Head
from regard.core.linear import Linear
from regard.core.state import State

STD = 0.01  # of all matrices at first that are no convolutions


class Config(ModelConfig):
    vocab: int | None = Field(None, ge=4, le=10_000_000)
    """Tokens, as many as the tokenizer has."""
    inputs: int | None = Field(None, ge=1, le=65_536)
    """Numbers of a step, where it reads numbers instead of tokens."""
    dim: int = Field(450, ge=1, le=65_536)
    """Channels of a level."""
    levels: int = Field(4, ge=1, le=24)
    """Each hears twice as far as the one below it."""
    kernel: int = Field(3, ge=1, le=1024)
    """Steps that a convolution hears: now, and so many others."""
    embedding: int = Field(450, ge=1, le=65_536)
    """Width of the word vectors, and of the last level where the head is tied to them."""
    dropout: float = Field(0.2, ge=0, lt=1)
    """After each convolution."""
    dropout_of: Literal["element", "channel"] = "element"
    """What is left out together: nothing, as in the authors' code, or a channel at all steps, as in their paper."""
    embedding_dropout: float = Field(0.1, ge=0, lt=1)
    """On the word vectors."""
    std: float = Field(0.01, gt=0, le=1)
    """Deviation of the word vectors at first."""
    tied: bool = True
    """The embedding is the head as well."""
    labels: int | None = Field(None, ge=1, le=1_000_000)
    """Labels, or numbers, to tell of a whole text from its summary, or of each step."""

    @property
    def receptive_field(self) -> int:
        """Steps that what is said depends on, the present one included."""
        return 1 + 2 * (self.kernel - 1) * (2**self.levels - 1)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self.check_inputs()
        return self


class TCN(Sourceless):
    exempt = dict.fromkeys(("fused", "watching", "shown is read", "rows", "silence"), "it has no attention")

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, self.inputs = config, config.inputs
        narrow = config.inputs or config.embedding
        wide = config.embedding if config.tied and config.inputs is None else config.dim
        widths = [narrow, *[config.dim] * (config.levels - 1), wide]
        if config.inputs is None:
            self.words = nn.Embedding(config.vocab or 0, config.embedding)
        self.levels = nn.ModuleList(Level(widths[i], widths[i + 1], 2**i, config) for i in range(config.levels))
        if config.inputs is None:
            self.head = Head(wide, config.vocab or 0, tied=self.words if config.tied else None, bias=True)
        if config.labels is not None:
            self.labels = Linear(wide, config.labels)
        self.apply(_initialise)
        if config.inputs is None:
            nn.init.normal_(self.words.weight, std=config.std)

    @property
    def receptive_field(self) -> int:
        return self.config.receptive_field

    def states(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        x = self._enter(tokens)
        y, past = self._read(x, state.past) if state.memory is None else apart(x, state, self._read)
        return y, state.after(tokens.shape[1], past)

    def conclude(self, tokens: Tensor, last: Tensor | None = None) -> Tensor:
        """The last step hears every second output of the lowest level, every fourth of the next, and so on. The others
        are not made: with what is left, the 2n convolutions are the work of 3."""
        x, there = _at_the_end(self._enter(tokens).permute(2, 1, 0), last, self.receptive_field)
        for level in self.levels:
            x, there = level.thinned(x, there)  # type: ignore[operator]
        return x[:, -1].T

    def _enter(self, tokens: Tensor) -> Tensor:
        self.check(tokens)
        if tokens.numel() == 0:
            rows, steps = tokens.shape[:2]
            raise ValueError(f"{rows} rows of {steps} steps came, and nothing to read; give one of each or more")
        if self.inputs is not None:
            return tokens
        x = self.words(tokens)
        return dropout(x, self.config.embedding_dropout) if self.training else x

    def _read(self, x: Tensor, past: Sequence[Tensor] | None, real: Tensor | None = None) -> tuple[Tensor, Heard]:
        """(B, T, C) -> (B, T, wide), and what each convolution has heard last."""
        x, heard = x.permute(2, 1, 0), []  # (C, T, B), see core.convolution
        for i, level in enumerate(self.levels):
            x, some = level(x, (None, None) if past is None else past[2 * i : 2 * i + 2], real)
            heard += some
        return x.permute(2, 1, 0), Heard(heard)


class Level(nn.Module):
    """Two convolutions inside a residual, on (C, T, B)."""

    def __init__(self, narrow: int, wide: int, dilation: int, config: Config) -> None:
        super().__init__()
        self.first = Causal(narrow, wide, config.kernel, dilation)
        self.second = Causal(wide, wide, config.kernel, dilation)
        self.skip = nn.Identity() if narrow == wide else Skip(narrow, wide)
        self.dropout, self.whole_channels = config.dropout, config.dropout_of == "channel"

    def forward(
        self, x: Tensor, past: Sequence[Tensor | None], real: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, first = self.first(x, past[0], real)
        y = self._activate(y)
        z, second = self.second(y, past[1], real)
        return F.relu_(self._activate(z) + self.skip(x)), (first, second)

    def thinned(self, x: Tensor, there: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Every second step, counted from the last, of what comes out, where x are the steps that the level below gave:
        they are the dilation apart already, so that here it is 1. `there` (1, T, B) is False before a row begins.
        """
        y = _where(there, self._activate(causal(x, self.first.weight, self.first.bias, by=self.first.times)))
        z = self._activate(self.second.every_second(y))
        x, there = halves(x)[0], None if there is None else halves(there)[0]
        return _where(there, F.relu_(z + self.skip(x))), there

    def _activate(self, y: Tensor) -> Tensor:
        if not self.training or self.dropout == 0:
            return F.relu_(y)
        if self.whole_channels:
            return F.relu_(y) * dropout(y.new_ones(y.shape[0], 1, y.shape[2]), self.dropout)
        return relu_dropout(y, self.dropout)


class Skip(Linear):
    """A matrix on the channels, (C, T, B) -> (wide, T, B); the authors call it a convolution of kernel 1."""

    def forward(self, x: Tensor) -> Tensor:
        return causal(x, self.weight[:, None], self.bias, by=self.times)


def _at_the_end(x: Tensor, last: Tensor | None, heard: int) -> tuple[Tensor, Tensor | None]:
    """The steps (C, T, B) up to the last of each row that can be `heard`, moved so that all rows end together; and
    where a row then is, (1, T, B), or None where all are everywhere."""
    steps = min(x.shape[1], heard)
    if last is None:
        return x[:, x.shape[1] - steps :], None
    at = torch.arange(1 - steps, 1, device=x.device)[:, None] + last  # (T, B)
    there = (at >= 0)[None]
    return x.gather(1, at.clamp(min=0).expand(len(x), -1, -1)) * there, there


def _where(there: Tensor | None, y: Tensor) -> Tensor:
    """Zeros before the beginning, as a convolution finds them there."""
    return y if there is None else y * there


def _initialise(part: nn.Module) -> None:
    """What really takes effect in the authors' code: normal where there is no weight norm. It means to begin its
    convolutions like that too, but writes into W, which is made anew from g and V at the next call."""
    if isinstance(part, (nn.Linear, Head)):
        nn.init.normal_(part.weight, std=STD)


# Bai et al. (2018), Table 2; of tokens what their code has besides.
SIZES = {
    "adding": {"dim": 24, "levels": 8, "kernel": 8, "dropout": 0.0},
    "copy": {"dim": 10, "levels": 8, "kernel": 8, "dropout": 0.05},
    "mnist": {"dim": 25, "levels": 8, "kernel": 7, "dropout": 0.0},
    "jsb": {"dim": 150, "levels": 2, "kernel": 3, "dropout": 0.5},
    "nottingham": {"dim": 150, "levels": 4, "kernel": 6, "dropout": 0.2},
    "words": {"dim": 600, "levels": 4, "kernel": 3, "embedding": 600, "dropout": 0.5, "embedding_dropout": 0.25},
    "characters": {"dim": 450, "levels": 3, "kernel": 3, "embedding": 100, "dropout": 0.1, "std": 0.058},
    "text8": {"dim": 520, "levels": 5, "kernel": 2, "embedding": 100, "dropout": 0.1, "std": 0.058},
}
