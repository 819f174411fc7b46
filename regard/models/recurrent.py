"""A recurrent language model (Mikolov et al. 2010): all that it has read is in one state.

    h_t = cell(E[token], h_{t-1})       p(next token) = softmax(W h_t)

Where the head is tied, W is E, and states of another width are brought to that of the word vectors first. It is called
as a GPT is, and stands beside it as what came before attention.

With `inputs` it reads numbers: h_t = cell(x_t, h_{t-1}), and tells a label, a number or several from a state.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.config import ModelConfig
from regard.core.autoregressive import Sourceless
from regard.core.documents import apart
from regard.core.dropout import dropout
from regard.core.head import Head
from regard.core.linear import Linear
from regard.core.recurrent import Recurrent, initialise
from regard.core.state import State


class Config(ModelConfig):
    vocab: int | None = Field(None, ge=4, le=10_000_000)
    """Tokens, as many as the tokenizer has."""
    inputs: int | None = Field(None, ge=1, le=65_536)
    """Numbers of a step, where it reads numbers instead of tokens."""
    dim: int = Field(512, ge=1, le=65_536)
    """Units of a layer."""
    embedding: int = Field(512, ge=1, le=65_536)
    """Width of the word vectors."""
    layers: int = Field(2, ge=1, le=64)
    cell: Literal["rnn", "gru", "lstm"] = "lstm"
    forget: float = Field(1.0, ge=-100, le=100)
    """Bias of an LSTM's forget gate at first: the larger, the longer it remembers before it has learnt to."""
    dropout: float = Field(0.2, ge=0, lt=1)
    """On the word vectors, between layers, and before the output."""
    tied: bool = True
    """The embedding is the head as well."""
    labels: int | None = Field(None, ge=1, le=1_000_000)
    """Labels, or numbers, to tell of a whole text from its summary, or of each step."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self.check_inputs()
        return self


class LanguageModel(Sourceless):
    carries, recordable = True, False
    exempt = dict.fromkeys(("fused", "watching", "shown is read", "rows", "silence"), "it has no attention")

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, self.inputs = config, config.inputs
        if config.inputs is None:
            self.words = nn.Embedding(config.vocab or 0, config.embedding)
        width = config.inputs or config.embedding
        self.rnn = Recurrent(
            config.cell, width, config.dim, layers=config.layers, dropout=config.dropout, forget=config.forget
        )
        wide = config.embedding if config.tied and config.inputs is None else config.dim
        self.narrow = nn.Identity() if wide == config.dim else Linear(config.dim, wide, bias=False)
        if config.inputs is None:
            self.head = Head(wide, config.vocab or 0, tied=self.words if config.tied else None, bias=True)
        if config.labels is not None:
            drop = nn.Identity() if config.inputs else nn.Dropout(config.dropout)  # states come dropped already
            self.labels = nn.Sequential(drop, Linear(wide, config.labels))
        self.apply(initialise)

    def states(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        self.check(tokens)
        x = tokens if self.inputs else self._drop(self.words(tokens))
        y, past = self.rnn(x, state.past) if state.memory is None else apart(x, state, self.rnn)
        return self.narrow(self._drop(y)), state.after(tokens.shape[1], past)

    def _drop(self, x: Tensor) -> Tensor:
        return dropout(x, self.config.dropout) if self.training else x


SIZES = {
    "tiny": {"dim": 128, "embedding": 128, "layers": 1, "dropout": 0.1},
    "small": {"dim": 256, "embedding": 256, "dropout": 0.2},
    "base": {"dim": 512, "embedding": 512, "dropout": 0.3},
    "large": {"dim": 1500, "embedding": 1500, "dropout": 0.65, "tied": False},  # of Zaremba et al. (2014)
    # the LSTMs that stand beside the TCN in Bai et al. (2018), Table 3
    "adding": {"dim": 130, "layers": 1, "dropout": 0.0},
    "copy": {"dim": 50, "layers": 1, "dropout": 0.05},
    "mnist": {"dim": 130, "layers": 1, "dropout": 0.0},
    "permuted-mnist": {"dim": 130, "layers": 1, "dropout": 0.0, "forget": 10.0},
    "jsb": {"dim": 200, "dropout": 0.2, "forget": 10.0},
    "nottingham": {"dim": 280, "layers": 3, "dropout": 0.1},
    "words": {"dim": 700, "embedding": 700, "layers": 3, "dropout": 0.4},
    "characters": {"dim": 600, "embedding": 120, "dropout": 0.1},
    "text8": {"dim": 1024, "embedding": 120, "layers": 1, "dropout": 0.15},
}
