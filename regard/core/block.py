"""The Transformer's block: sublayers, each inside a residual whose order and norm are values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.attention import Attention
from regard.core.dropout import dropout
from regard.core.linear import Linear
from regard.core.mask import Mask
from regard.core.norm import LayerNorm, Norm
from regard.core.state import KV

Sublayer = Callable[[Tensor], Tensor]


class PostNorm(nn.Module):
    """LN(x + f(x)), as in the paper."""

    def __init__(self, dim: int, dropout: float = 0.0, norm: Norm = LayerNorm) -> None:
        super().__init__()
        self.norm, self.dropout = norm(dim), dropout

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        return self.norm(x + self.drop(sublayer(x)))

    def drop(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout) if self.training else x

    @staticmethod
    def closing(dim: int, norm: Norm = LayerNorm) -> nn.Module:
        """What a stack of such blocks ends with: each ends with its own norm already."""
        return nn.Identity()


class PreNorm(PostNorm):
    """x + f(LN(x)), as in the authors' later code: trains deeper without a gentle warm-up."""

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        return x + self.drop(sublayer(self.norm(x)))

    @staticmethod
    def closing(dim: int, norm: Norm = LayerNorm) -> nn.Module:
        return norm(dim)


RESIDUALS: dict[str, type[PostNorm]] = {"post": PostNorm, "pre": PreNorm}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


class FeedForward(nn.Module):
    """W₂ · activation(W₁x + b₁) + b₂, at each position alone."""

    def __init__(self, dim: int, hidden: int, activation: str = "relu", dropout: float = 0.0) -> None:
        super().__init__()
        self.wide, self.narrow = Linear(dim, hidden), Linear(hidden, dim)
        self.activation, self.dropout = ACTIVATIONS[activation], dropout

    def forward(self, x: Tensor) -> Tensor:
        x = self.wide(x)
        # while it learns in place, where nobody else has these numbers: fresh memory costs more than a relu
        own = self.training and type(self.wide) is Linear and not self.wide._forward_hooks
        x = x.relu_() if own and self.activation is F.relu else self.activation(x)
        return self.narrow(dropout(x, self.dropout) if self.training else x)


class Block(nn.Module):
    """Self-attention, then cross-attention where there is a memory to read, then the feed-forward."""

    def __init__(
        self,
        attention: Attention,
        feed_forward: nn.Module,
        residual: Callable[[], nn.Module],
        cross: Attention | None = None,
    ) -> None:
        super().__init__()
        self.attention, self.around_attention = attention, residual()
        self.cross, self.around_cross = cross, residual() if cross is not None else None
        self.feed_forward, self.around_feed_forward = feed_forward, residual()

    def forward(
        self, x: Tensor, mask: Mask, *, past: KV | None = None, memory: KV | None = None, memory_mask: Mask = Mask()
    ) -> tuple[Tensor, KV]:
        """`past` is what this block has projected so far; it comes back with the keys and values of x at its end.

        Of a block that was compiled to learn, these come back as numbers alone: for gradients of them that nobody has,
        its graph would make zeros and add them.
        """
        seen: KV

        def look(h: Tensor) -> Tensor:
            nonlocal seen
            y, seen = self.attention.inward(h, past, mask)
            return y

        x = self.around_attention(x, look)
        if (cross := self.cross) is not None and memory is not None and self.around_cross is not None:
            x = self.around_cross(x, lambda h: cross.look(h, memory, memory_mask))
        x = self.around_feed_forward(x, self.feed_forward)
        return x, seen.detached() if self.training and torch.compiler.is_compiling() else seen


class Encoder(nn.ModuleList):
    """Blocks that a whole sequence goes through at once; nobody asks what they have projected."""

    reader: Callable[[Tensor, Mask], Tensor | None] | None = None  # does it in one call, where it was prepared

    def forward(self, x: Tensor, mask: Mask) -> Tensor:
        read = None if self.reader is None else self.reader(x, mask)
        if read is not None:
            return read
        for block in self:
            x, _ = block(x, mask)
        return x
