"""Recurrent encoder-decoders, without attention and with it.

    read      h₁ … h_S = encoder(x)                         the memory: one state a word, of both directions
    sutskever s_t = cell(Ey, s_{t-1}),  s_0 = h_S           a sentence squeezed into one vector (Sutskever et al. 2014)
    cho       s_t = cell([Ey; c], s_{t-1}),  c = tanh(V h_S)    that vector, heard again at every word (Cho et al. 2014)
    bahdanau  c_t = look(s_{t-1}, h);  s_t = cell([Ey; c_t], s_{t-1})   attention (Bahdanau et al. 2015)
    luong     s_t = cell([Ey; a_{t-1}], s_{t-1});  c_t = look(s_t, h);  a_t = tanh(W[c_t; s_t])   (Luong et al. 2015)

y is the word before. cho and bahdanau end in a deep output, maxout(U s_t + V Ey + C c_t); with bahdanau it reads s_t,
as in the paper's equation 4 (its appendix writes s_{t-1}). With both directions s_0 = tanh(W[→h_S; ←h_1]), for each
layer, whatever the decoder: where each direction ended. (Bahdanau has s_0 = tanh(W ←h_1), the backward one alone.)
Keys are projected once, and whatever does not wait for the word before is computed for all words at once: the words'
share of the gates, the outputs; without input feeding, all.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.config import ModelConfig
from regard.core.attention import Attention
from regard.core.autoregressive import Autoregressive
from regard.core.choice import choose
from regard.core.dropout import dropout
from regard.core.head import Head, Mixture
from regard.core.linear import Linear
from regard.core.mask import Mask
from regard.core.recurrent import Past, Recurrent, initialise
from regard.core.score import Location, Score
from regard.core.state import KV, Memory, State
from regard.core.window import lengths, make_window
from regard.errors import ConfigError

LOOKING = ("score", "heads", "values", "window", "choice", "context")  # settings of an attention


class Config(ModelConfig):
    vocab: int | None = Field(None, ge=4, le=10_000_000)
    """Words of the target side, as many as its tokenizer has."""
    source_vocab: int | None = Field(None, ge=4, le=10_000_000)
    """Words of the source side, where it has a vocabulary of its own."""
    dim: int = Field(512, ge=1, le=65_536)
    """Units of a layer, in each direction of the encoder and in the decoder."""
    embedding: int = Field(256, ge=1, le=65_536)
    """Width of the word vectors."""
    layers: int = Field(1, ge=1, le=64)
    cell: Literal["rnn", "gru", "lstm"] = "gru"
    bidirectional: bool = True
    """The encoder reads forwards and backwards."""
    merge: Literal["concat", "sum"] = "concat"
    """What becomes of a word's two states; a sum is as wide as the decoder's, as the score "dot" wants it."""
    reverse: bool = False
    """The source is read from its end, as Sutskever et al. found to help."""
    decoder: Literal["sutskever", "cho", "bahdanau", "luong"] = "bahdanau"
    score: Literal[
        "dot", "scaled_dot", "general", "additive", "concat", "mlp", "cosine", "location",
        "scaled_dot_literal", "concat_literal", "cosine_literal",
    ] = "additive"  # fmt: skip
    heads: int = Field(1, ge=1, le=1024)
    values: Literal["memory", "projected"] = "memory"
    """What is read: the encoder's states themselves, or projected, with an output matrix."""
    window: Literal["global", "local-m", "local-p"] = "global"
    reach: int = Field(10, ge=0, le=1_000_000)
    """D of the local windows: words to either side."""
    choice: Literal["soft", "hard", "marginal"] = "soft"
    """A mixture of what is seen; one state, drawn; or all of them, each with its own prediction."""
    feeding: bool = True
    """luong hears its last attentional vector with the next word."""
    context: Literal["sum", "mean"] = "sum"
    """"mean" divides what was read by the length of the source, as one lecture's formula has it."""
    positions: int = Field(256, ge=1, le=1_048_576)
    """Rows of the score "location"."""
    beyond: Literal["ignore", "refuse"] = "ignore"
    """Source words beyond them get no weight, or the sentence is refused."""
    dropout: float = Field(0.3, ge=0, lt=1)
    """On the word vectors, between layers, and before the output."""
    tied: Literal["all", "target", "none"] = "none"
    """Which of the source, target and output matrices are one."""

    @property
    def longest(self) -> int | None:
        """Where longer sources are refused, the rows of the score "location"."""
        looks = self.decoder in ("bahdanau", "luong")
        return self.positions if looks and self.score == "location" and self.beyond == "refuse" else None

    @property
    def memory(self) -> int:
        """Width of a word's state in the memory."""
        return 2 * self.dim if self.bidirectional and self.merge == "concat" else self.dim

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.tied == "all" and self.source_vocab is not None:
            raise ConfigError(
                'tied: two vocabularies cannot share one matrix; write tied = "target", or tokens.joint = true'
            )
        if self.choice == "marginal" and (self.decoder != "luong" or self.feeding or self.heads > 1):
            raise ConfigError(
                'choice: "marginal" adds up all choices of a word, which none after it may hear of; '
                'write decoder = "luong", feeding = false and heads = 1, or choice = "hard"'
            )
        self._refuse_what_does_nothing()
        if self.decoder in ("bahdanau", "luong"):
            with torch.device("meta"):  # what does not fit is refused here, before any data is read
                _attention(self)
                make_window(self.window, self.dim, self.reach)
        return self

    def _refuse_what_does_nothing(self) -> None:
        for name in LOOKING if self.decoder in ("sutskever", "cho") else ():
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ConfigError(
                    f'{name}: it says how to look, but decoder = "{self.decoder}" has no attention; '
                    f'write decoder = "bahdanau" or "luong", or leave {name} out'
                )
        for name, whose, used in (
            ("reach", 'the windows "local-m" and "local-p"', self.window != "global"),
            ("positions", 'the score "location"', self.score == "location"),
            ("beyond", 'the score "location"', self.score == "location"),
            ("merge", "an encoder that reads both ways", self.bidirectional),
        ):
            if not used and getattr(self, name) != type(self).model_fields[name].default:
                raise ConfigError(f"{name}: it is for {whose} alone; leave it out")
        if self.decoder != "luong" and not self.feeding:
            raise ConfigError(
                f'feeding: only "luong" is fed its last attentional vector, but decoder = "{self.decoder}" came; '
                'write decoder = "luong", or leave feeding out'
            )


class Seq2Seq(Autoregressive):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, self.exempt = config, _exempt(config)
        vocab, source_vocab = config.vocab or 0, config.source_vocab or config.vocab or 0
        self.words = nn.Embedding(vocab, config.embedding)
        self.source_words = self.words if config.tied == "all" else nn.Embedding(source_vocab, config.embedding)
        self.encoder = Recurrent(
            config.cell, config.embedding, config.dim,
            layers=config.layers, bidirectional=config.bidirectional, dropout=config.dropout,
        )  # fmt: skip
        self.bridge = nn.ModuleList(
            Linear(2 * config.dim, config.dim)
            for _ in range((2 if config.cell == "lstm" else 1) * config.bidirectional)
        )
        self.decoder: Decoder = DECODERS[config.decoder](config)
        wide = self.decoder.width if config.tied == "none" else config.embedding
        self.narrow = nn.Identity() if wide == self.decoder.width else Linear(self.decoder.width, wide, bias=False)
        kind = Mixture if config.choice == "marginal" else Head
        self.head = kind(wide, vocab, tied=None if config.tied == "none" else self.words, bias=config.tied == "none")
        self.apply(initialise)

    def start(self, source: Tensor | None = None, real: Tensor | None = None, *, rows: int | None = None) -> State:
        if source is None:
            raise ValueError("an encoder-decoder reads a source before it writes; give start the source tokens")
        order = _backwards(source, real) if self.config.reverse else None
        words = self._drop(self.source_words(source if order is None else source.gather(1, order)))
        memory, last = self.encoder(words, None, real)
        if order is not None:  # what is looked at stands where it stood in the source
            memory = memory.gather(1, order[..., None].expand_as(memory))
        if self.config.bidirectional and self.config.merge == "sum":
            memory = memory.unflatten(-1, (2, -1)).sum(-2)
        return self.decoder.start(memory, real, self._cross_over(last))

    def states(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        hidden, state = self.decoder(self._drop(self.words(tokens)), state)
        if self.config.choice == "marginal":  # the last number of each vector is its share, not to be narrowed
            return torch.cat([self.narrow(self._drop(hidden[..., :-1])), hidden[..., -1:]], -1), state
        return self.narrow(self._drop(hidden)), state

    def _cross_over(self, last: Past) -> Past:
        """The encoder's last state as the decoder's first: both directions of a layer through one matrix."""
        if not self.bridge:
            return last
        joined = [t.unflatten(1, (-1, 2)).flatten(2) for t in last]  # (B, layers, 2 · dim)
        return tuple(
            turn(t).tanh() if i == 0 else turn(t) for i, (turn, t) in enumerate(zip(self.bridge, joined, strict=True))
        )

    def _drop(self, x: Tensor) -> Tensor:
        return dropout(x, self.config.dropout) if self.training else x


class Decoder(nn.Module):
    """From word vectors (B, T, embedding) and a state to what the words are told from, (B, T, width)."""

    width: int

    def start(self, memory: Tensor, real: Tensor | None, first: Past) -> State:
        raise TypeError(f"{type(self).__name__} must define start")

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        raise TypeError(f"{type(self).__name__} must define forward")


class Sutskever(Decoder):
    """All that it knows of the source is its first state."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.rnn = _cells(config, config.embedding)
        self.width = config.dim

    def start(self, memory: Tensor, real: Tensor | None, first: Past) -> State:
        return State(past={"hidden": first})

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        y, hidden = self.rnn(x, state.past["hidden"])
        return y, _after(x, state, {"hidden": hidden})


class Cho(Decoder):
    """Hears the one vector again at every word."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.summary = Linear(config.dim, config.dim)
        self.rnn = _cells(config, config.embedding + config.dim)
        self.output = DeepOutput(config, config.dim)
        self.width = config.embedding

    def start(self, memory: Tensor, real: Tensor | None, first: Past) -> State:
        return State(past={"hidden": first, "context": self.summary(first[0][:, -1:]).tanh()})

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        context = state.past["context"].expand(-1, x.shape[1], -1)
        y, hidden = self.rnn(torch.cat([x, context], -1), state.past["hidden"])
        return self.output(y, x, context), _after(x, state, {**state.past, "hidden": hidden})


class Looking(Decoder):
    """What both attentional decoders share: a memory of keys and values, and one look at it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.cross = _attention(config)
        self.window = make_window(config.window, config.dim, config.reach)

    def start(self, memory: Tensor, real: Tensor | None, first: Past) -> State:
        return State(Memory(self.cross.project(memory), real), past={"hidden": first})

    def look(self, x: Tensor, state: State, step: int, notes: Notes) -> Tensor:
        """What queries (B, Q, dim) read; the first of them stands `step` target positions after the state."""
        kv, mask = state.memory.keys, Mask(keys=state.memory.real)
        if self.config.window == "global" and self.config.choice == "soft":
            context = self.cross.look(x, kv, mask)
        else:
            context = self.cross.read(self.weigh(x, kv, mask, state.at + step, notes), kv)
        return self.scaled(context, kv, mask)

    def scaled(self, context: Tensor, kv: KV, mask: Mask) -> Tensor:
        if self.config.context == "sum":
            return context
        return context / lengths(mask, kv.length, context, kv.rows)[:, None, None]

    def weigh(self, x: Tensor, kv: KV, mask: Mask, step: int | Tensor, notes: Notes) -> Tensor:
        """The weights that are really used: within the window, faded, and chosen from."""
        view = self.window(x, step, mask, kv.length, kv.rows)
        weights = self.cross.weigh(x, kv, view.mask)
        if view.fading is not None:
            weights = weights * view.fading
        if self.config.choice != "hard":
            return weights
        blind = ~weights.any(-1, keepdim=True)  # with nothing to see: any choice will do, for it is not read
        chosen, chance, entropy = choose(weights.masked_fill(blind, 1.0), draw=self.training)
        notes.append({"choice": chance, "entropy": entropy})
        return chosen.masked_fill(blind, 0.0)


class Bahdanau(Looking):
    """Looks with the state before the word."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.rnn = _cells(config, config.embedding + self.cross.width)
        self.output = DeepOutput(config, self.cross.width)
        self.width = config.embedding

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        hidden, notes = state.past["hidden"], Notes()
        y = hidden[0][:, -1]
        words, read = self.rnn.inputs(x)
        contexts, outputs = [], []
        for t, gates in enumerate(words.unbind(1)):
            context = self.look(y[:, None], state, t, notes)
            y, hidden = self.rnn.advance(torch.addmm(gates, context.squeeze(1), read), hidden)
            contexts.append(context)
            outputs.append(y)
        told_from = self.output(torch.stack(outputs, 1), x, torch.cat(contexts, 1))
        return told_from, _after(x, state, {"hidden": hidden}, notes)


class Luong(Looking):
    """Looks with the state after the word."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.rnn = _cells(config, config.embedding + config.dim * config.feeding)
        self.combine = Linear(self.cross.width + config.dim, config.dim, bias=False)
        self.width = config.dim

    def start(self, memory: Tensor, real: Tensor | None, first: Past) -> State:
        state = super().start(memory, real, first)
        if self.config.feeding:
            state.past["fed"] = torch.zeros_like(first[0][:, -1])
        return state

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        notes = Notes()
        if self.config.feeding:
            return self._word_by_word(x, state, notes)
        y, hidden = self.rnn(x, state.past["hidden"])
        if self.config.choice == "marginal":
            return self._every_choice(y, state), _after(x, state, {"hidden": hidden})
        return self._attentional(y, self.look(y, state, 0, notes)), _after(x, state, {"hidden": hidden}, notes)

    def _word_by_word(self, x: Tensor, state: State, notes: Notes) -> tuple[Tensor, State]:
        hidden, fed = state.past["hidden"], state.past["fed"]
        words, hears = self.rnn.inputs(x)
        outputs = []
        for t, gates in enumerate(words.unbind(1)):
            y, hidden = self.rnn.advance(torch.addmm(gates, fed, hears), hidden)
            fed = self._attentional(y, self.look(y[:, None], state, t, notes)[:, 0])
            outputs.append(fed)
        return torch.stack(outputs, 1), _after(x, state, {"hidden": hidden, "fed": fed}, notes)

    def _attentional(self, y: Tensor, context: Tensor) -> Tensor:
        return self.combine(torch.cat([context, y], -1)).tanh()

    def _every_choice(self, y: Tensor, state: State) -> Tensor:
        """(B, T, S, dim + 1): for each word of the source what would be said if it were chosen, and log p of that."""
        kv, mask = state.memory.keys, Mask(keys=state.memory.real)
        weights = self.weigh(y, kv, mask, state.at, Notes())
        whole = weights.sum(-1, keepdim=True)
        blind = whole[:, 0] == 0  # (B, T, 1) with nothing to see: all choices alike, and none is read
        weights = self.cross.show(weights / whole.masked_fill(whole == 0, 1.0))[:, 0]  # (B, T, S)
        weights = weights.masked_fill(blind, 1 / kv.length)
        values = self.scaled(self.cross.output(kv.values[:, 0]), kv, mask).repeat_interleave(len(y) // kv.rows, 0)
        read, heard = self.combine.weight.split([self.cross.width, y.shape[-1]], 1)
        said, told = (y @ heard.T)[:, :, None], (values @ read.T)[:, None]
        each = torch.addcmul(said, told, (~blind).to(said)[..., None]).tanh()
        return torch.cat([each, weights.clamp(min=torch.finfo(weights.dtype).tiny).log()[..., None]], -1)


DECODERS: dict[str, type[Decoder]] = {"sutskever": Sutskever, "cho": Cho, "bahdanau": Bahdanau, "luong": Luong}


class DeepOutput(nn.Module):
    """maxout(U s + V Ey + C c): the larger of two numbers, for each that the words are told from."""

    def __init__(self, config: Config, context: int) -> None:
        super().__init__()
        self.inner = Linear(config.dim + config.embedding + context, 2 * config.embedding)

    def forward(self, y: Tensor, x: Tensor, context: Tensor) -> Tensor:
        return self.inner(torch.cat([y, x, context], -1)).unflatten(-1, (-1, 2)).amax(-1)


class Notes(list[dict[str, Tensor]]):
    """What each look said of itself, (B, Q) tensors by name."""

    def joined(self) -> dict[str, Tensor]:
        return {name: torch.cat([note[name] for note in self], 1) for name in (self[0] if self else ())}


def _after(x: Tensor, state: State, past: dict[str, Any], notes: Notes | None = None) -> State:
    return state.after(x.shape[1], past, notes.joined() if notes else {})


def _cells(config: Config, width: int) -> Recurrent:
    return Recurrent(config.cell, width, config.dim, layers=config.layers, dropout=config.dropout)


def _attention(config: Config) -> Attention:
    score: str | Score = config.score
    if score == "location":
        score = Location(config.dim, config.memory, config.heads, positions=config.positions, beyond=config.beyond)
    return Attention(config.dim, score=score, heads=config.heads, memory_dim=config.memory, values=config.values)


def _exempt(config: Config) -> dict[str, str]:
    if config.decoder in ("sutskever", "cho"):
        return dict.fromkeys(("fused", "watching", "shown is read", "rows", "silence"), "it has no attention")
    if config.window == "local-p" and config.choice == "soft":
        return {"rows": "local-p fades the weights after the softmax and does not make them sum to one again"}
    if config.window != "global" and config.score == "location":
        return {
            "rows": "a window beyond the rows of location shows nothing, and a query with nothing to see reads zeros"
        }
    return {}


def _backwards(source: Tensor, real: Tensor | None) -> Tensor:
    """(B, S) the places of each row from its last real word to its first; padding stays behind."""
    places = torch.arange(source.shape[1], device=source.device).expand_as(source)
    if real is None:
        return places.flip(1)
    lengths = real.sum(1, keepdim=True)
    return torch.where(places < lengths, lengths - 1 - places, places)


SIZES = {
    "tiny": {"dim": 128, "embedding": 64, "dropout": 0.1},
    "small": {"dim": 256, "embedding": 128, "dropout": 0.2},
    "base": {"dim": 512, "embedding": 256, "dropout": 0.3},
    "big": {"dim": 1000, "embedding": 620, "dropout": 0.3},  # RNNsearch's numbers
}
