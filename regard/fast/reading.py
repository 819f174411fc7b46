"""What the native side has to know of a model: matrices, norms and tables in the order in which they are used.

The structures are those of native/reading.h and native/writer.cpp, field by field.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, c_float, c_int, c_void_p
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from regard.core.attention import Attention
from regard.core.block import ACTIVATIONS, Block, FeedForward, PostNorm, PreNorm
from regard.core.changes import Likeness, meddled, notice_optimizers, parts_of, replaced
from regard.core.head import Head
from regard.core.linear import Linear, recorded
from regard.core.norm import LayerNorm
from regard.core.score import ScaledDot
from regard.fast.alone import Alone
from regard.fast.build import Unbuilt
from regard.fast.matrix import WIDEST, Matrix


class Norm(Structure):
    _fields_ = [("weight", c_void_p), ("bias", c_void_p), ("epsilon", c_float)]


class Blocked(Structure):
    _fields_ = [
        *((name, Norm) for name in ("around_attention", "around_cross", "around_feed_forward")),
        *((name, c_void_p) for name in ("inward", "output", "query", "memory", "cross_output", "wide", "narrow")),
    ]


class Stack(Structure):
    _fields_ = [
        ("blocks", POINTER(Blocked)),
        *((name, c_int) for name in ("count", "dim", "heads", "before", "activation")),
        ("closing", Norm),
    ]


class Entry(Structure):
    _fields_ = [("words", c_void_p), ("positions", c_void_p), ("scale", c_float), ("norm", Norm)]


class Model(Structure):
    _fields_ = [("encoder", Stack), ("decoder", Stack), ("source", Entry), ("target", Entry), ("head", c_void_p)]


class Unable(Exception):
    """The accelerator does not know such a model."""


class Reading:
    """All that the accelerator has to know of a model, laid out once."""

    def __init__(self, model: nn.Module, *, whole: bool) -> None:
        if any(map(replaced, parts_of(model))):
            raise Unable
        self.whole = whole
        self.held: list[Any] = []  # whatever the native side points at

    def stack(self, blocks: nn.ModuleList, closing: nn.Module) -> Stack:
        first = blocks[0]
        if not all(type(block) is Block and type(block.feed_forward) is FeedForward for block in blocks):
            raise Unable
        assert isinstance(first, Block)
        assert isinstance(first.feed_forward, FeedForward)
        (named, *others) = {activation_of(block.feed_forward.activation) for block in blocks}  # type: ignore[union-attr, arg-type]
        if others:
            raise Unable
        listed = (Blocked * len(blocks))(*(self._block(block) for block in blocks))
        self.held.append(listed)
        before = isinstance(first.around_attention, PreNorm)
        dim, heads = first.attention.dim, first.attention.heads
        return Stack(listed, len(blocks), dim, heads, before, named, self.norm(closing))

    def _block(self, block: nn.Module) -> Blocked:
        assert isinstance(block, Block)
        assert isinstance(block.feed_forward, FeedForward)
        feed_forward = self.matrix(block.feed_forward.wide), self.matrix(block.feed_forward.narrow)
        norms = [self._around(part) for part in (block.around_attention, block.around_cross, block.around_feed_forward)]
        inward = self.matrix(*self._projections(block.attention)), self.matrix(block.attention.output)
        if block.cross is None:
            return Blocked(*norms, *inward, None, None, None, *feed_forward)
        query, key, value = self._projections(block.cross)
        outward = self.matrix(query), self.matrix(key, value), self.matrix(block.cross.output)
        return Blocked(*norms, *inward, *outward, *feed_forward)

    def _projections(self, attention: Attention) -> list[nn.Module]:
        parts = [attention.score.query, attention.score.key, attention.value, attention.output]
        if type(attention) is not Attention or type(attention.score) is not ScaledDot:
            raise Unable
        if not all(type(part) is Linear for part in parts):
            raise Unable
        return parts[:3]

    def _around(self, residual: nn.Module | None) -> Norm:
        if residual is None:
            return Norm()
        if type(residual) is not PostNorm and type(residual) is not PreNorm:
            raise Unable
        if isinstance(residual.norm, nn.Identity):
            raise Unable
        return self.norm(residual.norm)

    def norm(self, norm: nn.Module) -> Norm:
        if isinstance(norm, nn.Identity):
            return Norm()
        if type(norm) is not LayerNorm and type(norm) is not nn.LayerNorm:
            raise Unable
        return Norm(self.numbers(norm.weight), self.numbers(norm.bias), norm.eps)

    def matrix(self, *parts: Any) -> c_void_p:
        """Several matrices under each other are one."""
        if not all(type(part) in (Linear, Head) for part in parts):
            raise Unable
        biases = [part.bias for part in parts if part.bias is not None]
        if biases and len(biases) < len(parts):
            raise Unable
        if self.whole and parts[0].weight.shape[1] > WIDEST:
            raise Unable
        bias = torch.cat(biases) if biases else None
        self.held.append(Matrix(torch.cat([part.weight for part in parts]), bias, whole=self.whole))
        return self.held[-1].pointer

    def numbers(self, t: Tensor | None) -> int | None:
        if t is None:
            return None
        self.held.append(t.detach().contiguous())
        return self.held[-1].data_ptr()


R = TypeVar("R", bound=Reading)


class Latest(Generic[R]):
    """What was read of a model, and once it has changed, what it is now. Whoever asks keeps what he got until the
    native side is done with it: meanwhile another thread may have found the model changed."""

    def __init__(self, read: Callable[[], R]) -> None:
        notice_optimizers()
        self.read = read
        self.found: R | None = None
        self.like: Likeness | None = None  # what the model was then
        self.alone = Alone()  # one thread reads, and whoever else comes waits for that

    def __call__(self, parts: Sequence[nn.Module]) -> R | None:
        """None: there is nothing to be read, or nobody who could."""
        now = Likeness(parts)
        with self.alone:
            if self.like is None or not now.same(self.like):
                self.found = self._read()
                self.like = now  # last: a process that is forked in between reads it once more
            return self.found

    def _read(self) -> R | None:
        try:
            return self.read()
        except (Unable, Unbuilt):
            return None


def activation_of(function: Callable[[Tensor], Tensor]) -> int:
    """Its place among those that are known. One that has settings is copied with its model."""
    for place, known in enumerate(ACTIVATIONS.values()):
        if known is function:
            return place
        if isinstance(known, partial) and isinstance(function, partial) and known.func is function.func:
            return place
    raise Unable


def as_it_is(parts: Sequence[nn.Module], *vectors: Tensor) -> bool:
    """A model of such parts is only asked, in 32 bits and on a CPU, and nobody watches, silences, hooks, records or
    replaces any of them."""
    weights = [w for part in parts for w in part._parameters.values() if w is not None]
    for t in (*weights, *vectors):
        if t.device.type != "cpu" or t.dtype != torch.float32:
            return False
    if torch.is_autocast_enabled("cpu") or recorded():
        return False
    return not hooks._global_forward_hooks and not hooks._global_forward_pre_hooks and not any(map(meddled, parts))
