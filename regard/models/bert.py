"""BERT (Devlin et al. 2019): a Transformer that only reads, and every token sees all others, before it and after it.

    x       = dropout(LN(E[token] + S[segment] + P[position]))
    block   = LN(x + look(x, x)) → LN(x + W₂ gelu(W₁x + b₁) + b₂)
    summary = tanh(W x₀ + b)                       of the whole, at the first token, [CLS]

    p(hidden token) = softmax(E LN(gelu(W x + b)) + c)          p(is next, is not) = softmax(W summary + b)

It is trained to guess tokens that were hidden from it, and whether the second of two segments follows the first. To
learn another task, the head is replaced by one new layer. The batch is read without its padding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.config import ModelConfig
from regard.core.attention import Attention
from regard.core.block import ACTIVATIONS, Block, Encoder, FeedForward, PostNorm
from regard.core.dropout import dropout
from regard.core.head import Head, Loss
from regard.core.linear import Linear
from regard.core.mask import Mask
from regard.core.norm import LayerNorm
from regard.core.position import Learned
from regard.core.spans import Spans
from regard.errors import ConfigError

POOLERS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": F.relu}


class Config(ModelConfig):
    vocab: int | None = Field(None, ge=4, le=10_000_000)
    """Tokens, as many as the tokenizer has."""
    segments: int = Field(2, ge=0, le=1024)
    """Parts of a text that have an embedding of their own; 0: none has."""
    dim: int = Field(768, ge=1, le=65_536)
    heads: int = Field(12, ge=1, le=1024)
    layers: int = Field(12, ge=1, le=1024)
    hidden: int = Field(3072, ge=1, le=1_048_576)
    """Width inside the feed-forward."""
    context: int = Field(512, ge=1, le=1_048_576)
    """Longest sequence."""
    offset: int = Field(0, ge=0, le=1_048_576)
    """Rows of the table of positions that stand before the first token's."""
    activation: Literal["gelu", "gelu_tanh", "relu", "silu"] = "gelu"
    """The authors' first code has gelu_tanh; most that came after have gelu."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """On the embeddings, on the output of each sublayer, and before the labels."""
    attention_dropout: float = Field(0.1, ge=0, lt=1)
    epsilon: float = Field(1e-12, gt=0, le=1)
    """Of the norms."""
    head: Literal["none", "pretrain", "masked", "sentence", "words"] = "none"
    """What is told: hidden tokens and whether a segment is the next, hidden tokens alone, a label of the text, or one
    of each token."""
    tied: bool = True
    """Hidden tokens are guessed with the words' own matrix."""
    pooler: Literal["tanh", "relu", "none"] = "tanh"
    """What the first token goes through to be the summary; the heads "masked" and "words" have no summary."""
    labels: int | None = Field(None, ge=1, le=1_000_000)
    """How many, for head = "sentence" and "words"."""

    @property
    def required(self) -> tuple[str, ...]:
        return ("vocab", "labels") if self.head in ("sentence", "words") else ("vocab",)

    @property
    def longest(self) -> int:
        return self.context

    @property
    def summarises(self) -> bool:
        return self.pooler != "none" and self.head not in ("masked", "words")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self.check_heads()
        if self.head in ("pretrain", "sentence") and self.pooler == "none":
            raise ConfigError(f'pooler: head = "{self.head}" asks for a summary of the text; write pooler = "tanh"')
        return self


class Bert(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, self.longest = config, config.longest
        self.words = nn.Embedding(config.vocab or 0, config.dim)
        self.segments = nn.Embedding(config.segments, config.dim) if config.segments else None
        self.positions = Learned(config.dim, config.context, config.offset)
        self.norm = LayerNorm(config.dim, config.epsilon)
        self.encoder = Encoder(_block(config) for _ in range(config.layers))
        self.pooler = Linear(config.dim, config.dim) if config.summarises else None
        if config.head in ("pretrain", "masked"):
            self.masked = MaskedHead(self.words, config.activation, config.epsilon, tied=config.tied)
        if config.head == "pretrain":
            self.next = Linear(config.dim, 2)
        elif config.head in ("sentence", "words"):
            self.labels = nn.Sequential(nn.Dropout(config.dropout), Linear(config.dim, config.labels or 0))
        self.apply(_initialise)

    def forward(self, tokens: Tensor, real: Tensor | Spans | None = None, segments: Tensor | None = None) -> Tensor:
        """(B, T) -> (B, T, dim). `segments` says of each token in which part of the text it is; False in `real` is
        padding, and what stands there afterwards means nothing. Spans say it too, and how it is left out.
        """
        mask, positions = self._mask(real), self.positions(0, tokens.shape[1])
        segments = torch.zeros_like(tokens) if segments is None else segments
        places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        if mask.spans is not None:
            tokens, segments, places = (mask.spans.pack(ids) for ids in (tokens, segments, places))
        x = self.words(tokens) + F.embedding(places, positions)
        if self.segments is not None:  # parts beyond the last that has one share its embedding
            x = x + self.segments(segments.clamp(max=self.config.segments - 1))
        x = self.norm(x)
        x = dropout(x, self.config.dropout) if self.training else x
        x = self.encoder(x, mask)
        return x if mask.spans is None else mask.spans.unpack(x)

    def _mask(self, real: Tensor | Spans | None) -> Mask:
        if isinstance(real, Spans):
            return Mask(spans=real)
        compiled = torch.compiler.is_compiling() or self.encoder[0]._compiled_call_impl is not None
        recorded = self.training and real is not None and real.is_cuda  # as steps on a GPU may be
        if real is None or compiled or recorded:  # a graph wants shapes that do not depend on the data
            return Mask(keys=real)
        return Mask() if real.all() else Mask(spans=Spans(real))

    def summary(self, hidden: Tensor, last: Tensor | None = None) -> Tensor:
        """A text in one vector, (B, T, dim) -> (B, dim), from its first token; of its `last` nothing is asked."""
        if self.pooler is None:
            what = 'pooler = "none"' if self.config.pooler == "none" else f'head = "{self.config.head}"'
            raise ConfigError(f'{what} has no summary of a text; build the model with head = "sentence"')
        return POOLERS[self.config.pooler](self.pooler(hidden[:, 0]))


class MaskedHead(Head):
    """Guesses hidden tokens by one more layer, the words' own matrix and a bias: logits = E LN(gelu(W h + b)) + c."""

    def __init__(self, words: nn.Embedding, activation: str, epsilon: float, *, tied: bool = True) -> None:
        super().__init__(words.embedding_dim, words.num_embeddings, tied=words if tied else None, bias=True)
        self.dense, self.norm = (
            Linear(words.embedding_dim, words.embedding_dim),
            LayerNorm(words.embedding_dim, epsilon),
        )
        self.activation = ACTIVATIONS[activation]

    def logits(self, hidden: Tensor) -> Tensor:
        return super().logits(self._change(hidden))

    def forward(
        self,
        hidden: Tensor,
        targets: Tensor,
        *,
        real: Tensor | None = None,
        count: int | None = None,
        smoothing: float = 0.0,
    ) -> Loss:
        """Best given the hidden positions alone, (N, dim) and (N,)."""
        return super().forward(self._change(hidden), targets, real=real, count=count, smoothing=smoothing)

    def _change(self, hidden: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(hidden)))


def _block(config: Config) -> Block:
    attention = Attention(config.dim, heads=config.heads, dropout=config.attention_dropout)
    feed_forward = FeedForward(config.dim, config.hidden, config.activation)
    norm = partial(LayerNorm, epsilon=config.epsilon)
    return Block(attention, feed_forward, lambda: PostNorm(config.dim, config.dropout, norm))


def _initialise(part: nn.Module) -> None:
    if isinstance(part, nn.Linear | nn.Embedding):
        nn.init.trunc_normal_(part.weight, std=0.02, a=-0.04, b=0.04)
    if isinstance(part, nn.Linear):
        nn.init.zeros_(part.bias)


SIZES = {
    "tiny": {"dim": 128, "heads": 2, "layers": 2, "hidden": 512},
    "mini": {"dim": 256, "heads": 4, "layers": 4, "hidden": 1024},
    "small": {"dim": 512, "heads": 8, "layers": 4, "hidden": 2048},
    "medium": {"dim": 512, "heads": 8, "layers": 8, "hidden": 2048},
    "base": {"dim": 768, "heads": 12, "layers": 12, "hidden": 3072},
    "large": {"dim": 1024, "heads": 16, "layers": 24, "hidden": 4096},
}
