"""What makes a model quick, above all one that is only asked.

On a CPU, an optional accelerator in C++, compiled when it is first used:

build    from C++ to a library that is loaded
matrix   products in floats or in bytes
reading  a model as the native side sees it
reader   an encoder in one call
writer   a whole search in one call
native/  the C++

and for one that learns there:

learning  products of gradients, the loss of logits, and attention of rows that lie end to end

On a GPU, searches whose steps are captured (`regard.decode.captured`), in kernels of our own:

early    kernels that begin before the one before them has ended
kernels  a product with all that is around it, and one query at all keys so far
words    the likeliest word with its books, or the k likeliest
narrow   a Transformer's block made of them

and for one that learns there:

loss     the loss of a row of logits and its gradient, in one kernel
short    attention of short rows that lie end to end
"""

from __future__ import annotations

from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from regard.core.autoregressive import Autoregressive
from regard.core.block import Encoder
from regard.core.head import Head
from regard.core.linear import Layout, Multiplying, pack
from regard.decode.captured import capture
from regard.errors import ConfigError, nearest
from regard.fast import kernels, learning, loss, narrow, short
from regard.fast.build import Unbuilt, library
from regard.fast.matrix import Matrix, in_bytes
from regard.fast.reader import Reader
from regard.fast.writer import Writer

__all__ = ["Arithmetic", "Matrix", "Reader", "Unbuilt", "Writer", "in_bytes", "library", "prepare", "quicken"]

Arithmetic = Literal["fp32", "bf16", "int8"]

M = TypeVar("M", bound=nn.Module)


def prepare(model: M, arithmetic: str = "fp32") -> M:
    """Makes a model ready to be asked: large products packed, and whole encoders and searches in one call; on a GPU,
    steps of a search that are captured once and then replayed.

    In fp32 the accelerator serves where it can, and nobody hears of it where it cannot; int8 asks for it by name, and
    on a GPU means weights in bytes. bf16 converts the model, which on a GPU is what makes it quick.
    """
    if arithmetic not in get_args(Arithmetic):
        raise ConfigError(f"arithmetic: {arithmetic!r} is not known; {nearest(arithmetic, get_args(Arithmetic))}")
    if arithmetic == "bf16":
        model = model.to(torch.bfloat16)
    whole = arithmetic == "int8"
    layout = _in_bytes(next(model.parameters())) if whole else None
    if isinstance(model, Autoregressive):
        model.writer = Writer(model, whole=whole)
    for part in model.modules():
        if isinstance(part, Encoder):
            part.reader = Reader(part, whole=whole)
    return capture(pack(model, layout), kernels=narrow)


def quicken(model: nn.Module) -> None:
    """Makes a model ready to learn where it is: what stands between the products of its head in one kernel, and on a
    CPU products and attention by the accelerator. Nobody hears of it where there is none."""
    like = next(model.parameters(), None)
    native = like is not None and learning.suits(like)
    for part in model.modules():
        if type(part) is Head and (native or loss.suits(part.weight)):
            part.spread = learning.spread if native else loss.spread
        if native and isinstance(part, Multiplying):
            part.times = learning.times
        if native and isinstance(part, Autoregressive):
            part.along = learning.along
        elif like is not None and short.suits(like) and isinstance(part, Autoregressive):
            part.nearby = short.look_along


def _in_bytes(like: Tensor) -> Layout:
    """How matrices are multiplied in int8 wherever they are."""
    if like.device.type == "cpu":
        library()
        return in_bytes
    if not kernels.suit(like, 1):
        raise ConfigError(
            "arithmetic: int8 is for CPUs and, where Triton is installed, for CUDA, "
            f"but the model is on {like.device}; write device cpu, or fp32"
        )
    return kernels.in_bytes
