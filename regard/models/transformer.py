"""The Transformer (Vaswani et al. 2017, "Attention Is All You Need"): an encoder-decoder with nothing but attention.

    x     = √dim · E[token] + PE(position)
    block = LN(x + look(x, x)) → LN(x + look(x, memory)) in the decoder → LN(x + W₂ max(0, W₁x + b₁) + b₂)

Unlike the recurrent encoder-decoders before it, no step waits for the one before: a sentence is read, and in training
also written, all at once. `norm = "pre"` moves the norm inside the residual, as the authors' later code does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Self, cast

import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.config import ModelConfig
from regard.core.attention import Attention
from regard.core.autoregressive import Autoregressive
from regard.core.block import RESIDUALS, Block, FeedForward
from regard.core.dropout import dropout
from regard.core.head import Head
from regard.core.mask import Mask
from regard.core.norm import NORMS
from regard.core.position import POSITIONS
from regard.core.score import Location, Score
from regard.core.spans import Begun
from regard.core.state import KV, Memory, State
from regard.errors import ConfigError


class Config(ModelConfig):
    vocab: int | None = Field(None, ge=4, le=10_000_000)
    """Words of the target side, as many as its tokenizer has."""
    source_vocab: int | None = Field(None, ge=4, le=10_000_000)
    """Words of the source side, where it has a vocabulary of its own."""
    dim: int = Field(512, ge=1, le=65_536)
    heads: int = Field(8, ge=1, le=1024)
    layers: int = Field(6, ge=1, le=1024)
    """Blocks of the encoder, and of the decoder unless decoder_layers says otherwise."""
    decoder_layers: int | None = Field(None, ge=1, le=1024)
    hidden: int = Field(2048, ge=1, le=1_048_576)
    """Width inside the feed-forward."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """On the output of each sublayer and on the embeddings, as in the paper."""
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    activation_dropout: float = Field(0.0, ge=0, lt=1)
    score: Literal["dot", "scaled_dot", "general", "additive", "concat", "mlp", "cosine", "location"] = "scaled_dot"
    """How well a query and a key match; additive, concat, mlp and location do not run in the fused kernel."""
    rows: int = Field(256, ge=1, le=1_048_576)
    """Keys that the score "location" has a row for."""
    beyond: Literal["ignore", "refuse"] = "ignore"
    """Keys beyond them get no weight, or the sentence is refused."""
    norm: Literal["post", "pre"] = "post"
    """After each residual, as in the paper, or before each sublayer."""
    normalise: Literal["layer", "layer_unbiased", "batch", "none"] = "layer"
    """Which norm stands there."""
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "relu"
    positions: Literal["sinusoidal", "halves", "learned"] = "sinusoidal"
    """Waves as in the paper, or all sines before all cosines, or learned."""
    source_positions: Literal["shared", "own"] = "shared"
    """Whether the source has learned positions of its own."""
    context: int = Field(1024, ge=1, le=1_048_576)
    """Longest sequence for learned positions."""
    offset: int = Field(0, ge=0, le=1024)
    """The position of the first token."""
    scaled: bool = True
    """Embeddings are multiplied by √dim."""
    std: float | None = Field(None, gt=0, le=1)
    """Spread of the word vectors before training, and of the head's own; 1/√dim when left out."""
    embedding_norm: bool = False
    """A norm stands behind the embeddings of each side too."""
    tied: Literal["all", "words", "target", "none"] = "all"
    """Which of the source, target and output matrices are one; "words": the first two."""
    bias: bool = False
    """Biases in the attention's projections; the paper has none."""
    head_bias: bool = False
    """A bias for each word in the logits."""

    @property
    def longest(self) -> int | None:
        """Waves have no end; learned positions have, and the rows of a score that refuses what lies beyond."""
        limits = [self.context] if self.positions == "learned" else []
        if self.score == "location" and self.beyond == "refuse":
            limits.append(self.rows)
        return min(limits, default=None)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self.check_heads()
        if self.tied in ("all", "words") and self.source_vocab is not None:
            raise ConfigError(
                'tied: two vocabularies cannot share one matrix; write tied = "target", or tokens.joint = true'
            )
        return self


class Side(NamedTuple):
    """What tokens of the source or of the target go through before the first block."""

    words: nn.Embedding
    positions: nn.Module
    norm: nn.Module


class Transformer(Autoregressive):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, self.longest = config, config.longest
        vocab, source_vocab = config.vocab or 0, config.source_vocab or config.vocab or 0
        self.words = nn.Embedding(vocab, config.dim)
        joint, own = config.tied in ("all", "words"), config.source_positions == "own"
        self.source_words = self.words if joint else nn.Embedding(source_vocab, config.dim)
        self.positions = _positions(config)
        self.source_positions = _positions(config) if own else self.positions
        self.encoder = nn.ModuleList(_block(config) for _ in range(config.layers))
        self.decoder = nn.ModuleList(_block(config, cross=True) for _ in range(config.decoder_layers or config.layers))
        # batch norm averages over padding, too, and other scores want rows side by side in every block
        self.unpads = config.normalise != "batch" and cast(Block, self.decoder[0]).attention.score.dots
        residual, norm = RESIDUALS[config.norm], NORMS[config.normalise]
        behind = norm if config.embedding_norm else nn.Identity
        self.source_norm, self.norm = (behind(config.dim) for _ in range(2))
        self.encoder_norm, self.decoder_norm = (residual.closing(config.dim, norm) for _ in range(2))
        tied = self.words if config.tied in ("all", "target") else None
        self.head = Head(config.dim, vocab, tied=tied, bias=config.head_bias)
        self.apply(_initialise)
        if config.std is not None:
            for part in (self.words, self.source_words, self.head):
                nn.init.normal_(part.weight, std=config.std)

    def start(self, source: Tensor | None = None, real: Tensor | None = None, *, rows: int | None = None) -> State:
        if source is None:
            raise ValueError("a Transformer reads a source before it writes; give start the source tokens")
        keys = self._read(self._embed(source, self._source_side, 0), Mask(keys=real))
        return State(Memory(keys, real), past=[None] * len(self.decoder))

    def states(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        written, memory = tokens.shape[1], state.memory
        mask, memory_mask = Mask.after(state.length, written, state.lengths), Mask(keys=memory.real)
        x = self._embed(tokens, self._side, state.length, state.lengths)
        x, past = self._write(x, mask, state.past, memory.keys, memory_mask)
        return x, state.after(written, past)

    def unpadded(self, source: Tensor, target: Tensor, reading: Begun, writing: Begun) -> Tensor:
        keys = self._read(self._embed_rows(source, self._source_side, reading), Mask(spans=reading))
        x, nothing = self._embed_rows(target, self._side, writing), [None] * len(self.decoder)
        across = Mask(spans=reading.asked_by(writing))
        x, _ = self._write(x, Mask(causal=True, spans=writing), nothing, keys, across)
        return x

    def _read(self, x: Tensor, mask: Mask) -> list[KV]:
        """The source, as each block of the decoder looks at it."""
        for block in self.encoder:
            x, _ = block(x, mask)
        x = self.encoder_norm(x)
        return [block.cross.project(x) for block in self.decoder]  # type: ignore[operator, union-attr]

    def _write(
        self, x: Tensor, mask: Mask, past: Sequence[KV | None], memory: Sequence[KV], memory_mask: Mask
    ) -> tuple[Tensor, list[KV]]:
        after = []
        for block, seen, keys in zip(self.decoder, past, memory, strict=True):
            x, seen = block(x, mask, past=seen, memory=keys, memory_mask=memory_mask)
            after.append(seen)
        return self.decoder_norm(x), after

    @property
    def _source_side(self) -> Side:
        return Side(self.source_words, self.source_positions, self.source_norm)

    @property
    def _side(self) -> Side:
        return Side(self.words, self.positions, self.norm)

    def _embed(self, tokens: Tensor, side: Side, start: int, own: Tensor | None = None) -> Tensor:
        return self._placed(tokens, side, side.positions(start, tokens.shape[1], own))

    def _embed_rows(self, tokens: Tensor, side: Side, rows: Begun) -> Tensor:
        """(B, T) -> (1, N, dim)."""
        return self._placed(rows.pack(tokens), side, F.embedding(rows.places, side.positions(0, tokens.shape[1])))

    def _placed(self, tokens: Tensor, side: Side, positions: Tensor) -> Tensor:
        x = side.words(tokens) * (self.config.dim**0.5 if self.config.scaled else 1.0)
        x = side.norm(x + positions.to(x))
        return dropout(x, self.config.dropout) if self.training else x


def _positions(config: Config) -> nn.Module:
    return POSITIONS[config.positions](config.dim, config.context, config.offset)


def _block(config: Config, cross: bool = False) -> Block:
    def attention() -> Attention:
        return Attention(
            config.dim, score=_score(config), heads=config.heads, values="projected",
            dropout=config.attention_dropout, bias=config.bias,
        )  # fmt: skip

    feed_forward = FeedForward(config.dim, config.hidden, config.activation, config.activation_dropout)
    residual, norm = RESIDUALS[config.norm], NORMS[config.normalise]
    return Block(
        attention(), feed_forward, lambda: residual(config.dim, config.dropout, norm), attention() if cross else None
    )


def _score(config: Config) -> str | Score:
    if config.score != "location":
        return config.score
    dim, heads = config.dim, config.heads
    return Location(dim, dim, heads, bias=config.bias, positions=config.rows, beyond=config.beyond)


def _initialise(part: nn.Module) -> None:
    if isinstance(part, nn.Linear):
        nn.init.xavier_uniform_(part.weight)
        if part.bias is not None:
            nn.init.zeros_(part.bias)
    elif isinstance(part, nn.Embedding):
        nn.init.normal_(
            part.weight, std=part.embedding_dim**-0.5
        )  # of order one after the factor √dim, and as a tied head


SIZES = {
    "tiny": {"dim": 128, "heads": 4, "layers": 4, "hidden": 256, "dropout": 0.3},
    "small": {"dim": 256, "heads": 4, "layers": 3, "hidden": 1024, "dropout": 0.1},
    "base": {"dim": 512, "heads": 8, "layers": 6, "hidden": 2048, "dropout": 0.1},
    "big": {"dim": 1024, "heads": 16, "layers": 6, "hidden": 4096, "dropout": 0.3},
}
