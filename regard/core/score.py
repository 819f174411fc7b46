"""Scores: how well a query and a key match. The attention core never learns which one it was handed.

    dot          q·k                       general   q·Wk                  cosine    β · cos(Wq, Uk)
    scaled_dot   Wq·Uk / √D                additive  v·tanh(Wq + Uk)       location  (Wq)ᵢ, blind to the keys
    concat       v·tanh(W[q; k])           mlp       v·tanh(M tanh(Wq + Uk) + b)

A score owns the projections that carry its inputs to where they meet. One that comes down to a dot product says so by
`prepare`, and runs in the fused kernel; any other gives the (B, H, Q, K) table itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.core.linear import Linear
from regard.errors import ConfigError, DataError, nearest

CHUNK = 2**23  # most numbers alive at once on a CPU where every query meets every key in a hidden layer: 32 MiB, which
# go back to the system when they are freed; of smaller pieces the heap keeps a gigabyte
CHUNK_GPU = 2**26
BEYOND = ("ignore", "refuse")


class Place(NamedTuple):
    """Where the queries stand among the keys, for scores that ask how far apart two of them are."""

    offset: int | Tensor = 0


class Dots(NamedTuple):
    """A score as scale · q·k + bias."""

    q: Tensor
    k: Tensor
    scale: float = 1.0
    bias: Tensor | None = None


class Score(nn.Module):
    """Base of all scores: `query` and `key` project, then `prepare` or `forward` compares."""

    heads: int | None = None  # for how many it was built; None: any number will do

    def __init__(self, query: nn.Module, key: nn.Module) -> None:
        super().__init__()
        self.query, self.key = query, key

    @property
    def dots(self) -> bool:
        """It comes down to a dot product."""
        return type(self).prepare is not Score.prepare

    def prepare(self, q: Tensor, k: Tensor, place: Place) -> Dots | None:
        """The same score as a dot product, where it is one."""
        return None

    def forward(self, q: Tensor, k: Tensor, place: Place) -> Tensor:  # (B, H, Q, D), (B, H, K, D) -> (B, H, Q, K)
        dots = self.prepare(q, k, place)
        if dots is None:
            raise TypeError(f"{type(self).__name__} must define prepare or forward")
        table = (dots.q * dots.scale) @ dots.k.transpose(-2, -1)
        return table if dots.bias is None else table + dots.bias


# ---- scores that come down to a dot product


class Dot(Score):
    """q · k, without projections: both sides must be equally wide."""

    name = "dot"

    def __init__(self, dim: int, memory_dim: int, heads: int = 1, *, bias: bool = True) -> None:
        if dim != memory_dim:
            raise ConfigError(
                f"score {self.name!r} compares equal widths, but queries have {dim} and keys {memory_dim}; "
                "'general' brings the query to the keys' width, 'scaled_dot' projects both"
            )
        super().__init__(nn.Identity(), nn.Identity())

    def prepare(self, q: Tensor, k: Tensor, place: Place) -> Dots:
        return Dots(q, k)


class ScaledDot(Score):
    """Wq · Uk / √D (Vaswani et al. 2017)."""

    def __init__(self, dim: int, memory_dim: int, heads: int = 1, *, bias: bool = True) -> None:
        super().__init__(Linear(dim, dim, bias=bias), Linear(memory_dim, dim, bias=bias))

    def prepare(self, q: Tensor, k: Tensor, place: Place) -> Dots:
        return Dots(q, k, scale=q.shape[-1] ** -0.5)


class ScaledDotLiteral(Dot):
    """q · k / √‖k‖: the formula of a lecture slide that took the n of its source, a dimension, for a norm."""

    name = "scaled_dot_literal"

    def prepare(self, q: Tensor, k: Tensor, place: Place) -> Dots:
        norm = k.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(k.dtype).tiny)
        return Dots(q, k / norm.sqrt())


class General(Score):
    """q · Wk (Luong et al. 2015). W is kept at the query, so that the keys are the memory itself."""

    def __init__(self, dim: int, memory_dim: int, heads: int = 1, *, bias: bool = True) -> None:
        _divides("general", memory_dim, heads)
        super().__init__(Linear(dim, memory_dim, bias=False), nn.Identity())

    def prepare(self, q: Tensor, k: Tensor, place: Place) -> Dots:
        return Dots(q, k)


class Cosine(Score):
    """β · cos(Wq, Uk), with a key strength β ≥ 0 that is learnt (Graves et al. 2014).

    Without it a softmax over S keys can give none of them more than e² / (e² + S - 1).
    """

    def __init__(self, dim: int, memory_dim: int, heads: int = 1, *, bias: bool = True) -> None:
        super().__init__(Linear(dim, dim, bias=bias), Linear(memory_dim, dim, bias=bias))
        self.heads = heads
        self.strength = nn.Parameter(torch.full((heads, 1, 1), math.log(math.expm1(1.0))))  # softplus of it is 1

    def prepare(self, q: Tensor, k: Tensor, place: Place) -> Dots:
        return Dots(F.normalize(q, dim=-1) * F.softplus(self.strength), F.normalize(k, dim=-1))


class CosineLiteral(Score):
    """cos(Wq, Uk), as on the slide: no key strength, so nothing can be looked at sharply."""

    def __init__(self, dim: int, memory_dim: int, heads: int = 1, *, bias: bool = True) -> None:
        super().__init__(Linear(dim, dim, bias=bias), Linear(memory_dim, dim, bias=bias))

    def prepare(self, q: Tensor, k: Tensor, place: Place) -> Dots:
        return Dots(F.normalize(q, dim=-1), F.normalize(k, dim=-1))


# ---- scores in which every query meets every key in a hidden layer


class Additive(Score):
    """v · tanh(Wq + Uk) (Bahdanau et al. 2015).

    The hidden layer is (B, H, Q, K, D): nothing for one query at a time, too much for whole sequences, so those are
    done some queries at a time, and again in the backward pass.
    """

    def __init__(self, dim: int, memory_dim: int, heads: int = 1, *, bias: bool = True) -> None:
        if dim % heads:
            raise ConfigError(f"dim={dim} does not divide into heads={heads}; try heads=1")
        super().__init__(Linear(dim, dim, bias=bias), Linear(memory_dim, dim, bias=False))
        self.heads = heads
        self.v = nn.Parameter(torch.empty(heads, dim // heads, 1))
        nn.init.uniform_(self.v, -((heads / dim) ** 0.5), (heads / dim) ** 0.5)

    def forward(self, q: Tensor, k: Tensor, place: Place) -> Tensor:
        most = CHUNK if q.device.type == "cpu" else CHUNK_GPU
        rows = max(1, most // max(1, q.shape[0] * k.shape[1] * k.shape[2] * k.shape[3]))
        if rows >= q.shape[-2]:
            return self.energy(q, k)
        pieces = [checkpoint(self.energy, some, k, use_reentrant=False) for some in q.split(rows, -2)]
        return torch.cat(pieces, -2)

    def energy(self, q: Tensor, k: Tensor) -> Tensor:
        hidden = (q.unsqueeze(-2) + k.unsqueeze(-3)).tanh_()
        return _along(hidden, self.v)


class Concat(Additive):
    """v · tanh(W[q; k]) (Luong et al. 2015). W is kept as its two blocks, because W[q; k] = W₁q + W₂k: so it is the
    additive score without its bias.
    """

    def __init__(self, dim: int, memory_dim: int, heads: int = 1, *, bias: bool = True) -> None:
        super().__init__(dim, memory_dim, heads, bias=False)


class ConcatLiteral(Additive):
    """v · tanh(Wq + k): the concat score as its authors ran it, with the keys' block fixed to the identity."""

    def __init__(self, dim: int, memory_dim: int, heads: int = 1, *, bias: bool = True) -> None:
        _divides("concat_literal", memory_dim, heads)
        super().__init__(memory_dim, memory_dim, heads, bias=False)
        self.query, self.key = Linear(dim, memory_dim, bias=False), nn.Identity()


class MLP(Additive):
    """v · tanh(M tanh(Wq + Uk) + b): one more hidden layer than the additive score."""

    def __init__(self, dim: int, memory_dim: int, heads: int = 1, *, bias: bool = True) -> None:
        super().__init__(dim, memory_dim, heads, bias=bias)
        wide = dim // heads
        self.middle = nn.Parameter(torch.empty(heads, wide, wide))
        self.bias = nn.Parameter(torch.zeros(heads, 1, 1, wide))
        nn.init.uniform_(self.middle, -(wide**-0.5), wide**-0.5)

    def energy(self, q: Tensor, k: Tensor) -> Tensor:
        hidden = (q.unsqueeze(-2) + k.unsqueeze(-3)).tanh_()
        hidden = (hidden @ self.middle.unsqueeze(1) + self.bias).tanh_()
        return _along(hidden, self.v)


# ---- the score that does not look


class Location(Score):
    """(Wq)ᵢ: where to look is decided by the query alone (Luong et al. 2015).

    W has a row for each of `positions` keys. Of a shorter memory the first are used; keys beyond the last row get no
    weight, as with Luong, or are refused.
    """

    def __init__(
        self,
        dim: int,
        memory_dim: int,
        heads: int = 1,
        *,
        bias: bool = True,
        positions: int = 256,
        beyond: str = "ignore",
    ) -> None:
        _divides("location", memory_dim, heads)
        if positions < 1:
            raise ConfigError(f"positions={positions} leaves score 'location' no key to look at; write 1 or more")
        if beyond not in BEYOND:
            raise ConfigError(f"beyond={beyond!r} is not known; {nearest(beyond, BEYOND)}")
        super().__init__(Linear(dim, heads * positions, bias=bias), nn.Identity())
        self.heads, self.positions, self.beyond = heads, positions, beyond

    def forward(self, q: Tensor, k: Tensor, place: Place) -> Tensor:
        keys = k.shape[-2]
        if keys <= self.positions:
            return q[..., :keys]
        if self.beyond == "refuse":
            raise DataError(
                f"a source of {keys} tokens came, but score 'location' has rows for {self.positions}; shorten it, "
                "train with more positions, write beyond = \"ignore\", or take a score that looks, such as 'additive'"
            )
        nothing = float("-inf")  # below what is put where one may not look: no share even of a row that sees nothing
        return F.pad(q, (0, keys - self.positions), value=nothing)


SCORES: dict[str, Callable[..., Score]] = {
    "dot": Dot,
    "scaled_dot": ScaledDot,
    "general": General,
    "additive": Additive,
    "concat": Concat,
    "mlp": MLP,
    "cosine": Cosine,
    "location": Location,
    # formulas as slides or first code had them, kept to be compared with the right ones
    "scaled_dot_literal": ScaledDotLiteral,
    "concat_literal": ConcatLiteral,
    "cosine_literal": CosineLiteral,
}


def make_score(score: str | Score, dim: int, memory_dim: int, heads: int, *, bias: bool) -> Score:
    """The score of that name; or the one that came, where it fits."""
    if isinstance(score, Score):
        _suits(score, dim, memory_dim, heads)
        return score
    if not isinstance(score, str):
        kind = score.__name__ if isinstance(score, type) else "ScaledDot"
        raise ConfigError(
            f"score={score!r} came, but a name or an instance is wanted; "
            f"write score='scaled_dot', or score={kind}({dim}, {memory_dim}, heads={heads})"
        )
    if score not in SCORES:
        raise ConfigError(f"score {score!r} is not known; {nearest(score, SCORES)}")
    return SCORES[score](dim, memory_dim, heads, bias=bias)


def _suits(score: Score, dim: int, memory_dim: int, heads: int) -> None:
    kind = type(score).__name__
    if score.heads not in (None, heads):
        raise ConfigError(
            f"score {kind} was built for heads={score.heads}, but the attention has heads={heads}; "
            "build both with the same number"
        )
    for side, part, width in (("queries", score.query, dim), ("keys", score.key, memory_dim)):
        if isinstance(part, nn.Linear) and part.in_features != width:
            raise ConfigError(
                f"score {kind} was built for {side} {part.in_features} wide, but the attention's are {width}; "
                "build both with the same widths"
            )
    made = (part.out_features if isinstance(part, nn.Linear) else None for part in (score.query, score.key))
    q, k = (width if out is None else out for out, width in zip(made, (dim, memory_dim), strict=True))
    plain = isinstance(score.query, nn.Identity | nn.Linear) and isinstance(score.key, nn.Identity | nn.Linear)
    if plain and type(score) in SCORES.values() and not isinstance(score, Location) and q != k:
        raise ConfigError(
            f"score {kind} compares queries {q} wide with keys {k} wide, but they must be equally wide; "
            f"build it for this attention: {kind}({dim}, {memory_dim}, heads={heads})"
        )


def _along(hidden: Tensor, v: Tensor) -> Tensor:
    """v · hidden for each head, (B, H, Q, K, D), (H, D, 1) -> (B, H, Q, K). One head's is one product with a vector."""
    return hidden @ v.flatten() if len(v) == 1 else (hidden @ v.unsqueeze(1)).squeeze(-1)


def _divides(score: str, memory_dim: int, heads: int) -> None:
    if memory_dim % heads:
        raise ConfigError(
            f"score {score!r} shares the memory's width of {memory_dim} among its heads, "
            f"but came with heads={heads}; try heads=1, or 'scaled_dot', which projects it"
        )
