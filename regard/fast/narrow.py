"""A Transformer's block for a few vectors at a time, in five kernels, or eight where it reads a memory.

    x ─LN·W+b─▶ q k v ─attend─▶ ─W+b+x─▶ x ─LN·W+b, activation─▶ ─W+b+x─▶ x

For more of them the products are the library's, and what stands between them is ours. It is the block's own forward
pass, put together from the same weights; only where one kernel ends is different.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any

from torch import Tensor, nn

from regard.core.attention import Attention
from regard.core.block import ACTIVATIONS, Block, FeedForward, PostNorm, PreNorm
from regard.core.changes import meddled, replaced
from regard.core.head import Head
from regard.core.linear import Linear
from regard.core.mask import Mask
from regard.core.norm import LayerNorm
from regard.core.score import ScaledDot
from regard.core.state import KV, Fixed
from regard.fast import kernels
from regard.fast.kernels import MOST_VECTORS, Bytes, attend, suit, write
from regard.fast.reading import Unable, activation_of
from regard.fast.words import likeliest, say

__all__ = ["attend", "likeliest", "narrowed", "say", "suit", "write"]  # all that a captured search asks for


class Narrow:
    """Stands for a block while a step is captured."""

    def __init__(self, block: Any) -> None:
        self.block = block

    def __call__(
        self, x: Tensor, mask: Mask, *, past: Fixed, memory: Fixed | None = None, memory_mask: Mask = Mask()
    ) -> tuple[Tensor, KV]:
        block, rows = self.block, x.flatten(0, -2)
        if past.kernels is None:  # there are none for so many hypotheses
            return block.forward(x, mask, past=past, memory=memory, memory_mask=memory_mask)
        rows = self._inward(rows, past)
        if block.cross is not None and memory is not None:
            rows = self._outward(rows, memory)
        return self._wide(rows).view_as(x), past

    def _inward(self, x: Tensor, past: Fixed) -> Tensor:
        attention, around = self.block.attention, self.block.around_attention
        qkv = _product(x, attention, norm=_before(around))
        q, k, v = (_of_heads(t, attention, past) for t in qkv.unflatten(1, (3, -1)).unbind(1))
        y = kernels.attend_and_write(q, k, v, past.k, past.v, past.seen, past.places, q.shape[-1] ** -0.5)
        return _back(x, _merged(y), attention.output, around)

    def _outward(self, x: Tensor, memory: Fixed) -> Tensor:
        attention, around = self.block.cross, self.block.around_cross
        q = _product(x, attention.score.query, norm=_before(around))
        q = _of_heads(q, attention, memory)
        y = kernels.attend(q, memory.k, memory.v, memory.seen, None, q.shape[-1] ** -0.5)
        return _back(x, _merged(y), attention.output, around)

    def _wide(self, x: Tensor) -> Tensor:
        part, around = self.block.feed_forward, self.block.around_feed_forward
        y = _product(x, part.wide, norm=_before(around), activation=_name_of(part))
        return _back(x, y, part.narrow, around)


def _back(x: Tensor, y: Tensor, last: nn.Module, around: Any) -> Tensor:
    """x + W y + b, and its norm where that comes last."""
    if _before(around) is not None:
        return _product(y, last, residual=x)
    if len(x) > MOST_VECTORS:
        return kernels.normed(_product(y, last), around.norm, residual=x)
    return kernels.normed(_product(y, last, residual=x), around.norm)


def _product(
    x: Tensor,
    part: Any,
    *,
    norm: LayerNorm | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    if len(x) <= MOST_VECTORS:
        weight, bias, scale = _held(part)
        return kernels.product(x, weight, bias, scale=scale, norm=norm, activation=activation, residual=residual)
    x = x if norm is None else kernels.normed(x, norm)
    y: Tensor = (part.packed.product if isinstance(part, Attention) else part)(x)  # type: ignore[union-attr]
    y = y if activation is None else ACTIVATIONS[activation](y)
    return y if residual is None else y + residual


def _held(part: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Matrix, bias, and what its rows are multiplied by where they are in bytes."""
    packed = part.packed
    if packed is not None and isinstance(packed.multiply, Bytes):
        return packed.multiply.words, packed.multiply.bias, packed.multiply.scale
    weight, bias = packed.whole if isinstance(part, Attention) else (part.weight, part.bias)
    return weight, bias, None


def _before(around: Any) -> LayerNorm | None:
    norm: LayerNorm | None = around.norm if type(around) is PreNorm else None  # type: ignore[assignment]
    return norm


def _of_heads(t: Tensor, attention: Any, kv: KV) -> Tensor:  # (B·n, dim) -> (B, H, n, D)
    return t.unflatten(1, (attention.heads, -1)).unflatten(0, (kv.rows, -1)).transpose(1, 2)


def _merged(y: Tensor) -> Tensor:  # (B, H, n, D) -> (B·n, dim)
    return y.transpose(1, 2).flatten(0, 1).flatten(1)


def fits(part: nn.Module) -> bool:
    """Whether it is a block of whose parts nobody has made something else."""
    if type(part) is not Block or type(part.feed_forward) is not FeedForward:
        return False
    joined = part.attention.joined
    if joined is None or (joined.whole is None and not isinstance(joined.multiply, Bytes)):
        return False
    attentions = [attention for attention in (part.attention, part.cross) if attention is not None]
    around = [one for one in (part.around_attention, part.around_cross, part.around_feed_forward) if one is not None]
    return (
        all(type(one) is Attention and type(one.score) is ScaledDot for one in attentions)
        and all(type(one) in (PreNorm, PostNorm) and type(one.norm) is LayerNorm for one in around)
        and all(type(one) is Linear for one in part.modules() if isinstance(one, nn.Linear))
        and _name_of(part.feed_forward) is not None
        and not any(meddled(one) or replaced(one) for one in part.modules())
    )


def _name_of(part: FeedForward) -> str | None:
    try:
        return [*ACTIVATIONS][activation_of(part.activation)]
    except Unable:
        return None


def _here(act: Callable[..., Any], ever: Callable[..., Any]) -> Callable[..., Any]:
    """The one in this thread, and the other, as ever, in all others."""
    thread = get_ident()
    return lambda *args, **named: (act if get_ident() == thread else ever)(*args, **named)


@contextmanager
def narrowed(model: nn.Module, rows: int) -> Iterator[None]:
    """For as long as a step is captured; whoever calls the layers otherwise, or from another thread, meets them as they
    are."""
    parts = [part for part in model.modules() if not meddled(part)] if suit(next(model.parameters()), 1) else []
    blocks = [part for part in parts if fits(part)]
    heads = [part for part in parts if type(part) is Head and not replaced(part) and rows <= MOST_VECTORS]
    norms = [part for part in parts if type(part) is LayerNorm and part.elementwise_affine]
    stand_in: dict[nn.Module, Any] = {norm: partial(kernels.normed, norm=norm) for norm in norms}
    stand_in |= {block: Narrow(block) for block in blocks}
    before = [(part, vars(part).get("_compiled_call_impl")) for part in stand_in]
    for part, call in before:
        part._compiled_call_impl = _here(stand_in[part], call or part._call_impl)
    for head in heads:
        head.logits = _here(partial(_product, part=head), head.logits)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for part, call in before:
            del part._compiled_call_impl
            if call is not None:
                part._compiled_call_impl = call
        for head in heads:
            del head.logits
