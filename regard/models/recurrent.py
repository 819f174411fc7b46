"""A recurrent language model (Mikolov et al. 2010): all that it has read is in one state.

    h_t = cell(E[token], h_{t-1})       p(next token) = softmax(W h_t)

Where the head is tied, W is E, and states of another width are brought to that of the word vectors first. It is called
as a GPT is, and stands beside it as what came before attention.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from regard.config import ModelConfig
from regard.core.autoregressive import Sourceless
from regard.core.dropout import dropout
from regard.core.head import Head
from regard.core.linear import Linear
from regard.core.recurrent import Past, Recurrent, initialise
from regard.core.state import State


class Config(ModelConfig):
    vocab: int | None = Field(None, ge=4, le=10_000_000)
    """Tokens, as many as the tokenizer has."""
    dim: int = Field(512, ge=1, le=65_536)
    """Units of a layer."""
    embedding: int = Field(512, ge=1, le=65_536)
    """Width of the word vectors."""
    layers: int = Field(2, ge=1, le=64)
    cell: Literal["rnn", "gru", "lstm"] = "lstm"
    dropout: float = Field(0.2, ge=0, lt=1)
    """On the word vectors, between layers, and before the output."""
    tied: bool = True
    """The embedding is the head as well."""
    labels: int | None = Field(None, ge=1, le=1_000_000)
    """Labels to tell a whole text's from its summary, where it is to be classified."""


class LanguageModel(Sourceless):
    exempt = dict.fromkeys(("fused", "watching", "shown is read", "rows", "silence"), "it has no attention")

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.vocab or 0, config.embedding)
        self.rnn = Recurrent(config.cell, config.embedding, config.dim, layers=config.layers, dropout=config.dropout)
        wide = config.embedding if config.tied else config.dim
        self.narrow = nn.Identity() if wide == config.dim else Linear(config.dim, wide, bias=False)
        self.head = Head(wide, config.vocab or 0, tied=self.words if config.tied else None, bias=True)
        if config.labels is not None:
            self.labels = nn.Sequential(nn.Dropout(config.dropout), Linear(wide, config.labels))
        self.apply(initialise)

    def start(self, source: Tensor | None = None, real: Tensor | None = None, *, rows: int | None = None) -> State:
        if source is not None:
            raise ValueError("a language model has no source apart; write it before the target, as one sequence")
        return State()

    def states(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        x = self._drop(self.words(tokens))
        if state.memory is None:
            y, past = self.rnn(x, state.past)
        else:
            y, past = self._apart(x, state)
        return self.narrow(self._drop(y)), state.after(tokens.shape[1], past)

    def summary(self, hidden: Tensor, last: Tensor) -> Tensor:
        """A text in one vector, (B, T, dim) -> (B, dim): the state after its last token."""
        return hidden[torch.arange(len(hidden), device=hidden.device), last]

    def _apart(self, x: Tensor, state: State) -> tuple[Tensor, Past]:
        """Each document as a row of its own; one that was begun before x goes on from its state."""
        begins = _begins(state.memory)[:, state.length : state.length + x.shape[1]]
        cuts = begins.clone()
        cuts[:, 0] = True
        rows = cuts.flatten().cumsum(0).view_as(cuts) - 1  # (B, T) the row that each token comes to stand in
        lengths = rows.flatten().bincount()
        pieces = pad_sequence(list(x.flatten(0, 1).split(lengths.tolist())), batch_first=True)
        real = torch.arange(pieces.shape[1], device=x.device) < lengths[:, None]
        past = self.rnn.empty(len(pieces), x)
        if state.past is not None:
            goes_on = ~begins[:, :1, None]
            past = tuple(
                fresh.index_copy(0, rows[:, 0], begun.to(fresh) * goes_on)
                for fresh, begun in zip(past, state.past, strict=True)
            )
        y, after = self.rnn(pieces, past, real)
        return y[real].view(*x.shape[:2], -1), tuple(t[rows[:, -1]] for t in after)

    def _drop(self, x: Tensor) -> Tensor:
        return dropout(x, self.config.dropout) if self.training else x


def _begins(documents: Tensor) -> Tensor:
    """True at the first token of each document, (B, T)."""
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return begins


SIZES = {
    "tiny": {"dim": 128, "embedding": 128, "layers": 1, "dropout": 0.1},
    "small": {"dim": 256, "embedding": 256, "dropout": 0.2},
    "base": {"dim": 512, "embedding": 512, "dropout": 0.3},
    "large": {
        "dim": 1500,
        "embedding": 1500,
        "dropout": 0.65,
        "tied": False,
    },  # the large LSTM of Zaremba et al. (2014)
}
