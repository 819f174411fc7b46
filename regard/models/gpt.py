"""GPT (Radford et al. 2018, 2019): a Transformer that only writes, and so can be asked anything that text can ask.

    x = E[token] + P[position]
    GPT-1   x ← LN(x + look(x, x)) → LN(x + W₂ gelu(W₁x + b₁) + b₂)           norm = "post"
    GPT-2   x ← x + look(LN x, LN x) → x + W₂ gelu(W₁ LN x + b₁) + b₂         norm = "pre", and one LN behind the last
    p(next token) = softmax(E x): the embedding is the head as well

A token looks at itself and at those before it. Pre-norm adds up 2 · layers sublayers along the residual; GPT-2's paper
begins with their last matrices 1/√(2 · layers) as large, so that the sum does not grow with depth. Its released code
does not.

With `inputs` it reads numbers: x = W x_t + b + P[position], and there is nothing to write.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.config import ModelConfig
from regard.core.attention import Attention
from regard.core.autoregressive import Sourceless
from regard.core.block import RESIDUALS, Block, FeedForward
from regard.core.documents import begins
from regard.core.dropout import dropout
from regard.core.head import Head
from regard.core.linear import Linear
from regard.core.mask import Mask
from regard.core.norm import LayerNorm
from regard.core.position import Learned
from regard.core.spans import has_kernel
from regard.core.state import State

STD = 0.02  # of every matrix at first, but for those that are scaled


class Config(ModelConfig):
    vocab: int | None = Field(None, ge=1, le=10_000_000)
    """Tokens, as many as the tokenizer has."""
    inputs: int | None = Field(None, ge=1, le=65_536)
    """Numbers of a step, where it reads numbers instead of tokens."""
    dim: int = Field(768, ge=1, le=65_536)
    heads: int = Field(12, ge=1, le=1024)
    layers: int = Field(12, ge=1, le=1024)
    hidden: int | None = Field(None, ge=1, le=1_048_576)
    """Width inside the feed-forward; 4 · dim when left out."""
    context: int = Field(1024, ge=1, le=1_048_576)
    """Longest sequence."""
    norm: Literal["pre", "post"] = "pre"
    """Before each sublayer, as in GPT-2, or after each residual, as in GPT-1."""
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "gelu_tanh"
    dropout: float = Field(0.1, ge=0, lt=1)
    """On the embeddings, on the output of each sublayer, and before the labels."""
    attention_dropout: float = Field(0.1, ge=0, lt=1)
    epsilon: float = Field(1e-5, gt=0, le=1)
    """Of the norms."""
    bias: bool = True
    """Biases in products and norms."""
    tied: bool = True
    """The head is the embedding of the words, and no matrix of its own."""
    scaled_init: bool = True
    """The last matrix of each sublayer begins 1/√(2 · layers) as large."""
    labels: int | None = Field(None, ge=1, le=1_000_000)
    """Labels, or numbers, to tell of a whole text from its summary, or of each step."""

    @property
    def longest(self) -> int:
        return self.context

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self.check_heads()
        self.check_inputs()
        return self


class GPT(Sourceless):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, self.longest, self.inputs = config, config.longest, config.inputs
        if config.inputs is None:
            self.words = nn.Embedding(config.vocab or 0, config.dim)
        else:
            self.enter = Linear(config.inputs, config.dim)
        self.positions = Learned(config.dim, config.context)
        self.blocks = nn.ModuleList(_block(config) for _ in range(config.layers))
        self.norm = RESIDUALS[config.norm].closing(config.dim, partial(LayerNorm, epsilon=config.epsilon))
        if not config.bias:
            self.apply(_without_bias)
        if config.inputs is None:
            self.head = Head(config.dim, config.vocab or 0, tied=self.words if config.tied else None)
        if config.labels is not None:
            self.labels = nn.Sequential(nn.Dropout(config.dropout), Linear(config.dim, config.labels))
        self._initialise()

    def start(self, source: Tensor | None = None, real: Tensor | None = None, *, rows: int | None = None) -> State:
        if source is not None:
            raise ValueError("a GPT has no source apart; write it before the target, as one sequence of tokens")
        return State(past=[None] * len(self.blocks))

    def states(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        self.check(tokens)
        written = tokens.shape[1]
        documents = None if state.memory is None else state.memory.ids[:, : state.length + written]
        x, mask = self._embed(tokens, state, documents), _mask(written, state, documents)
        past = []
        for block, seen in zip(self.blocks, state.past, strict=True):
            x, seen = block(x, mask, past=seen)
            past.append(seen)
        return self.norm(x), state.after(written, past)

    def _embed(self, tokens: Tensor, state: State, documents: Tensor | None) -> Tensor:
        x = self.words(tokens) if self.inputs is None else self.enter(tokens)
        if documents is None:
            where = self.positions(state.length, tokens.shape[1], state.lengths)
        else:
            where = self.positions(0, documents.shape[1])[_places(documents)[:, state.length :]]
        x = x + where.to(x)
        return dropout(x, self.config.dropout) if self.training else x

    def _initialise(self) -> None:
        self.apply(_normal)
        if self.config.norm == "pre":  # GPT-2's positions begin half as large; GPT-1's like everything else
            nn.init.normal_(self.positions.table.weight, std=STD / 2)
        if self.config.scaled_init:
            for name, matrix in self.blocks.named_parameters():
                if name.endswith(("attention.output.weight", "feed_forward.narrow.weight")):
                    nn.init.normal_(matrix, std=STD * (2 * self.config.layers) ** -0.5)


def _block(config: Config) -> Block:
    attention = Attention(config.dim, heads=config.heads, dropout=config.attention_dropout)
    feed_forward = FeedForward(config.dim, config.hidden or 4 * config.dim, config.activation)
    residual, norm = RESIDUALS[config.norm], partial(LayerNorm, epsilon=config.epsilon)
    return Block(attention, feed_forward, lambda: residual(config.dim, config.dropout, norm))


def _mask(queries: int, state: State, documents: Tensor | None) -> Mask:
    if documents is None:
        return Mask.after(state.length, queries, state.lengths)
    starts = state.memory.starts
    if starts is not None and queries == state.memory.ids.shape[1] and has_kernel(starts.device):
        return Mask(causal=True, segments=documents, starts=starts)
    apart = Mask(causal=True, segments=documents)
    return Mask(pairs=apart.dense(queries, documents.shape[1], documents.device))  # drawn once, for all blocks


def _places(documents: Tensor) -> Tensor:
    """Where each token stands in its own document, (B, T)."""
    at = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    return at - at.where(begins(documents), 0).cummax(1).values


def _normal(part: nn.Module) -> None:
    if isinstance(part, nn.Linear):
        nn.init.normal_(part.weight, std=STD)
        if part.bias is not None:
            nn.init.zeros_(part.bias)
    elif isinstance(part, nn.Embedding):
        nn.init.normal_(part.weight, std=STD)


def _without_bias(part: nn.Module) -> None:
    if isinstance(part, (nn.Linear, nn.LayerNorm)):
        part.register_parameter("bias", None)


SIZES = {
    "gpt1": {"vocab": 40_478, "context": 512, "norm": "post", "scaled_init": False},
    "gpt2": {"vocab": 50_257},
    "gpt2-medium": {"vocab": 50_257, "dim": 1024, "heads": 16, "layers": 24},
    "gpt2-large": {"vocab": 50_257, "dim": 1280, "heads": 20, "layers": 36},
    "gpt2-xl": {"vocab": 50_257, "dim": 1600, "heads": 25, "layers": 48},
    # nanoGPT's character models
    "nano": {
        "dim": 384, "heads": 6, "layers": 6, "context": 256, "bias": False,
        "dropout": 0.2, "attention_dropout": 0.2,
    },
    "nano-cpu": {
        "dim": 128, "heads": 4, "layers": 4, "context": 64, "bias": False,
        "dropout": 0.0, "attention_dropout": 0.0,
    },
}  # fmt: skip
