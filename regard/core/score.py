"""Scores: how well a query and a key match. The attention core never learns which one it was handed.

A score owns the projections that carry its inputs to where they meet. One that comes down to a dot product says so by
`prepare`, and runs in the fused kernel; any other gives the (B, H, Q, K) table itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from regard.core.linear import Linear
from regard.errors import ConfigError, nearest


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

    def __init__(self, query: nn.Module, key: nn.Module) -> None:
        super().__init__()
        self.query, self.key = query, key

    def prepare(self, q: Tensor, k: Tensor, place: Place) -> Dots | None:
        """The same score as a dot product, where it is one."""
        return None

    def forward(self, q: Tensor, k: Tensor, place: Place) -> Tensor:  # (B, H, Q, D), (B, H, K, D) -> (B, H, Q, K)
        dots = self.prepare(q, k, place)
        if dots is None:
            raise TypeError(f"{type(self).__name__} must define prepare or forward")
        table = (dots.q * dots.scale) @ dots.k.transpose(-2, -1)
        return table if dots.bias is None else table + dots.bias


class Dot(Score):
    """q · k, without projections: both sides must be equally wide."""

    def __init__(self, dim: int, memory_dim: int, heads: int = 1, *, bias: bool = True) -> None:
        if dim != memory_dim:
            raise ConfigError(
                f"score 'dot' compares equal widths, but queries have {dim} and keys {memory_dim}; "
                "'scaled_dot' projects both"
            )
        super().__init__(nn.Identity(), nn.Identity())

    def prepare(self, q: Tensor, k: Tensor, place: Place) -> Dots:
        return Dots(q, k)


class ScaledDot(Score):
    """Wq · Uk / √D."""

    def __init__(self, dim: int, memory_dim: int, heads: int = 1, *, bias: bool = True) -> None:
        super().__init__(Linear(dim, dim, bias=bias), Linear(memory_dim, dim, bias=bias))

    def prepare(self, q: Tensor, k: Tensor, place: Place) -> Dots:
        return Dots(q, k, scale=q.shape[-1] ** -0.5)


SCORES: dict[str, Callable[..., Score]] = {"dot": Dot, "scaled_dot": ScaledDot}


def make_score(name: str, dim: int, memory_dim: int, heads: int, *, bias: bool) -> Score:
    if name not in SCORES:
        raise ConfigError(f"score {name!r} is not known; {nearest(name, SCORES)}")
    return SCORES[name](dim, memory_dim, heads, bias=bias)
