"""A Transformer's block for a few vectors at a time, in five kernels, or eight where it reads a memory.

    x ─LN·W+b─▶ q k v ─attend─▶ ─W+b+x─▶ x ─LN·W+b, activation─▶ ─W+b+x─▶ x

It is the block's own forward pass, put together from the same weights; only where one kernel ends is different.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from regard.core.attention import Attention
from regard.core.block import ACTIVATIONS, Block, FeedForward, PostNorm, PreNorm
from regard.core.head import Head
from regard.core.linear import Linear
from regard.core.mask import Mask
from regard.core.norm import LayerNorm
from regard.core.score import ScaledDot
from regard.core.state import KV, Fixed
from regard.fast import kernels
from regard.fast.kernels import MOST_VECTORS, Bytes, attend, say, suit, write
from regard.fast.reading import Unable, activation_of, meddled

__all__ = ["attend", "narrowed", "say", "suit", "write"]  # all that a captured search asks for


class Narrow:
    """Stands for a block while a step is captured."""

    def __init__(self, block: Any) -> None:
        self.block = block

    def __call__(
        self, x: Tensor, mask: Mask, *, past: Fixed, memory: Fixed | None = None, memory_mask: Mask = Mask()
    ) -> tuple[Tensor, KV]:
        block, rows = self.block, x.flatten(0, -2)
        rows = _inward(rows, block.attention, block.around_attention, past)
        if block.cross is not None and memory is not None:
            rows = _outward(rows, block.cross, block.around_cross, memory)
        return _wide(rows, block.feed_forward, block.around_feed_forward).view_as(x), past


def _inward(x: Tensor, attention: Any, around: Any, past: Fixed) -> Tensor:
    qkv = _product(x, attention, norm=_before(around))
    q, k, v = (_of_heads(t, attention, past) for t in qkv.unflatten(1, (3, -1)).unbind(1))
    y = kernels.attend_and_write(q, k, v, past.k, past.v, past.seen, past.places, q.shape[-1] ** -0.5)
    return _back(x, _merged(y), attention.output, around)


def _outward(x: Tensor, attention: Any, around: Any, memory: Fixed) -> Tensor:
    q = _of_heads(_product(x, attention.score.query, norm=_before(around)), attention, memory)
    y = kernels.attend(q, memory.k, memory.v, memory.seen, None, q.shape[-1] ** -0.5)
    return _back(x, _merged(y), attention.output, around)


def _wide(x: Tensor, part: Any, around: Any) -> Tensor:
    y = _product(x, part.wide, norm=_before(around), activation=_name_of(part))
    return _back(x, y, part.narrow, around)


def _back(x: Tensor, y: Tensor, last: Any, around: Any) -> Tensor:
    """x + W y + b, and its norm where that comes last."""
    x = _product(y, last, residual=x)
    if _before(around) is not None:
        return x
    last_of_all: Tensor = around.norm(x)
    return last_of_all


def _product(x: Tensor, part: Any, **around: Any) -> Tensor:
    """In bytes, where a part was packed so."""
    packed = part.packed
    if packed is not None and isinstance(packed.multiply, Bytes):
        held = packed.multiply
        return kernels.product(x, held.weight, held.bias, scale=held.scale, **around)
    whole = packed if isinstance(part, Attention) else part
    return kernels.product(x, whole.weight, whole.bias, **around)


def _before(around: Any) -> LayerNorm | None:
    norm: LayerNorm | None = around.norm if type(around) is PreNorm else None  # type: ignore[assignment]
    return norm


def _of_heads(t: Tensor, attention: Any, kv: KV) -> Tensor:  # (B·n, dim) -> (B, H, n, D)
    return t.unflatten(1, (attention.heads, -1)).unflatten(0, (kv.rows, -1)).transpose(1, 2)


def _merged(y: Tensor) -> Tensor:  # (B, H, n, D) -> (B·n, dim)
    return y.transpose(1, 2).flatten(0, 1).flatten(1)


def fits(part: nn.Module) -> bool:
    """Whether it is a block of whose parts nobody has made something else."""
    if type(part) is not Block or type(part.feed_forward) is not FeedForward or part.attention.packed is None:
        return False
    attentions = [attention for attention in (part.attention, part.cross) if attention is not None]
    around = [one for one in (part.around_attention, part.around_cross, part.around_feed_forward) if one is not None]
    return (
        all(type(one) is Attention and type(one.score) is ScaledDot for one in attentions)
        and all(type(one) in (PreNorm, PostNorm) and type(one.norm) is LayerNorm for one in around)
        and all(type(one) is Linear for one in part.modules() if isinstance(one, nn.Linear))
        and _name_of(part.feed_forward) is not None
        and not any(map(meddled, part.modules()))
    )


def _name_of(part: FeedForward) -> str | None:
    try:
        return [*ACTIVATIONS][activation_of(part.activation)]
    except Unable:
        return None


@contextmanager
def narrowed(model: nn.Module, rows: int) -> Iterator[None]:
    """For as long as a step is captured; whoever calls the layers otherwise meets them as they are."""
    parts = [*model.modules()] if rows <= MOST_VECTORS and suit(next(model.parameters()), 1) else []
    before = [(part, part._compiled_call_impl) for part in parts if fits(part)]
    heads = [part for part in parts if type(part) is Head and not meddled(part) and "logits" not in vars(part)]
    for block, _ in before:
        block._compiled_call_impl = Narrow(block)
    for head in heads:
        head.logits = partial(_product, part=head)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for block, call in before:
            block._compiled_call_impl = call
        for head in heads:
            del head.logits
