"""A matrix in the accelerator's layout, in floats or in bytes.

In bytes, row i of W is sᵢ times whole numbers w from -127 to 127, and a vector x is s times whole numbers u from 0 to
255, less the one that stands for zero; s is chosen by its own least and largest number:

    y = s · sᵢ · Σ (u - zero) · w + b       the sum is of whole numbers, and exact

From -64 to 64 with AVX2, whose quickest instruction adds two products in 16 bits. What a vector becomes depends on no
other, so an answer does not depend on who else is in the batch.
"""

from __future__ import annotations

from ctypes import c_void_p
from typing import NoReturn

import torch
from torch import Tensor

from regard.core.linear import Multiply
from regard.fast.build import library, trouble

WIDEST = 2**16  # the sum of so many products of two bytes fits into 32 bits


class Matrix:
    """y = Wx + b. `kernels` names those of another processor than the best that is there."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, whole: bool, kernels: str | None = None) -> None:
        self.tall, self.wide = weight.shape
        weight = weight.detach().float().contiguous()
        bias = None if bias is None else bias.detach().float().contiguous()
        self.forget = library().regard_forget  # at the very end the module may be gone before its matrices
        named = None if kernels is None else kernels.encode()
        self.at: int | None = library().regard_matrix(
            weight.data_ptr(), None if bias is None else bias.data_ptr(), self.tall, self.wide, int(whole), named
        )
        if self.at is None:
            raise trouble(f"a matrix of {self.tall} × {self.wide}", named)

    def product(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.wide).to("cpu", torch.float32).contiguous()
        y = torch.empty(len(rows), self.tall, dtype=torch.float32)
        if not library().regard_product(self.at, rows.data_ptr(), len(rows), y.data_ptr()):
            raise MemoryError(f"no room for the product of {len(rows)} vectors")
        return y.view(*x.shape[:-1], self.tall)

    @property
    def pointer(self) -> c_void_p:
        return c_void_p(self.at)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Matrix is native memory, of which there is no copy; make another of the same weight")

    def __del__(self) -> None:
        if getattr(self, "at", None) is not None:
            self.forget(self.at)


def in_bytes(weight: Tensor, bias: Tensor | None) -> Multiply | None:
    """The layout of `core.linear.pack` for arithmetic in int8: of small matrices too, as a search in one call has
    them, so that whoever watches sees the same numbers at work."""
    if weight.shape[1] > WIDEST or weight.dtype != torch.float32 or weight.device.type != "cpu":
        return None
    return Matrix(weight, bias, whole=True).product
