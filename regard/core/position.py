"""Positions: what tells an attention, which sees a set, where in the sequence a token stands."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.errors import ConfigError

FIRST = 1024  # waves that are drawn at once


def sinusoid(positions: Tensor, dim: int) -> Tensor:
    """PE(p, 2i) = sin(p / 10000^(2i/dim)), PE(p, 2i+1) = cos(same): (T,) -> (T, dim)."""
    rates = torch.exp(
        torch.arange(0, dim, 2, device=positions.device, dtype=positions.dtype) * (-math.log(10_000.0) / dim)
    )
    angles = positions[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :dim]


class Sinusoidal(nn.Module):
    """The paper's fixed waves. A table that grows on demand: positions have no end. `offset` is the first token's."""

    def __init__(self, dim: int, context: int, offset: int = 0) -> None:
        super().__init__()
        self.dim, self.offset = dim, offset
        self.table: Tensor
        self.register_buffer("table", self._draw(min(context, FIRST)), persistent=False)

    def forward(self, start: int, length: int, own: Tensor | None = None) -> Tensor:
        """(T, dim) from `start` on; (B, T, dim) of rows that start at `own` (B,), none of them later than `start`."""
        start, table = start + self.offset, self.table
        if start + length > len(table):
            with torch.inference_mode(False):  # grown while decoding, it must still serve in training
                table = self._draw(2 * (start + length)).to(table)
            self.table = table  # which another thread may replace by a shorter one
        return table[start : start + length] if own is None else table[_places(own, self.offset, length)]

    def _draw(self, length: int) -> Tensor:
        return sinusoid(torch.arange(length, dtype=torch.float64), self.dim).to(torch.get_default_dtype())


class Halves(Sinusoidal):
    """The same waves in another order: all sines, then all cosines."""

    def _draw(self, length: int) -> Tensor:
        waves = super()._draw(length)
        return torch.cat([waves[:, 0::2], waves[:, 1::2]], 1)


class Learned(nn.Module):
    """One vector a position, up to a longest sequence. `offset` rows of the table stand before the first token's."""

    def __init__(self, dim: int, context: int, offset: int = 0) -> None:
        super().__init__()
        self.table, self.offset = nn.Embedding(context + offset, dim), offset

    def forward(self, start: int, length: int, own: Tensor | None = None) -> Tensor:
        """As the waves'."""
        context = self.table.num_embeddings - self.offset
        if start + length > context:
            raise ConfigError(
                f"a sequence of {start + length} tokens came, "
                f"but the learned positions end at {context}; "
                "shorten it, or train with a larger model.context or with sinusoidal positions"
            )
        if own is not None:
            return self.table(_places(own, self.offset, length))
        return self.table.weight[self.offset + start : self.offset + start + length]


def _places(own: Tensor, offset: int, length: int) -> Tensor:  # (B,) -> (B, T), or one number -> (T,)
    start = own + offset if offset else own
    return start[..., None] + torch.arange(length, device=start.device) if length > 1 else start[..., None]


POSITIONS: dict[str, type[Sinusoidal] | type[Learned]] = {
    "sinusoidal": Sinusoidal,
    "halves": Halves,
    "learned": Learned,
}
