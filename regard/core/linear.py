"""The one product that everything is made of, and the one place to make it faster."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache, partial
from operator import is_
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from regard.core.changes import mark, notice_optimizers

LARGE = 2**17  # numbers in a matrix: a smaller one is multiplied before a packed product has begun
ALONE = 2**19  # the same for one vector, where the matrix is near
WHOLE = 3 * 2**20  # multiplications from which oneDNN is faster than MKL that uses whole registers
WORTH = 2**22  # multiplications of a product in training that are worth a call of our own
ALIGNED = 64  # rows of a matrix on a GPU are a multiple of this
ROWS = 32  # the layout is chosen for about so many vectors at a time; measured to suit one as well as hundreds
NEAR = 2**23  # numbers in a model: so many stay in a CPU's cache from one word to the next
TURNED = 2**27  # numbers in a model: of so many, matrices are kept once more where that is faster for one vector
LONG = 2**22  # numbers in a matrix that is kept turned even where MKL uses whole registers
FEW = 4  # vectors that a matrix from further away is multiplied by at least: AVX-512 then reads it faster than by one

M = TypeVar("M", bound=nn.Module)
Multiply = Callable[[Tensor], Tensor]  # x -> Wx + b
Times = Callable[..., Tensor]  # as `times` below
Layout = Callable[[Tensor, Tensor | None], Multiply | None]  # W and b -> how they are multiplied; None: as ever


def onednn(weight: Tensor, bias: Tensor | None, model: int = TURNED + 1) -> Multiply | None:
    """On a CPU `F.linear` makes the layout that it multiplies in anew at each call; made once, products are 1.3 to 3
    times as fast (measured). `model`: how many numbers there are in the whole of it."""
    in_float = weight.device.type == "cpu" and weight.dtype == torch.float32
    if not in_float or weight.numel() < LARGE or not torch.backends.mkldnn.is_available():
        return None
    matrix = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)

    def several(x: Tensor) -> Tensor:
        return _onednn(x, matrix, bias)

    plain = partial(F.linear, weight=weight, bias=bias)
    one = _of_one(weight, bias, plain, several, model)
    least = WHOLE if _whole_registers() else 0

    def multiply(x: Tensor) -> Tensor:
        if x.numel() == x.shape[-1]:
            return one(x)
        return several(x) if x.numel() * len(weight) >= least else plain(x)

    return multiply


def _of_one(weight: Tensor, bias: Tensor | None, plain: Multiply, several: Multiply, model: int) -> Multiply:
    """How one vector is multiplied: whichever was fastest. oneDNN was, where MKL uses halves of registers; MKL likes
    rows that are long, so a matrix with more rows than columns is kept turned, too: any, where there is no AVX-512,
    and else the largest."""
    tall, whole = len(weight) > weight.shape[1], _whole_registers()
    if torch.backends.cpu.get_cpu_capability() == "AVX512" and not whole:
        if model > NEAR:
            return partial(_as_few, several)
        return several if weight.numel() >= ALONE else plain
    if not tall or model > TURNED or (whole and weight.numel() < LONG):
        return several if tall and not whole else plain
    turned, shift = weight.t().contiguous(), weight.new_zeros(()) if bias is None else bias
    return lambda x: torch.addmm(shift, x.reshape(1, -1), turned).view(*x.shape[:-1], -1)


def _as_few(several: Multiply, x: Tensor) -> Tensor:
    return several(x.reshape(1, -1).expand(FEW, -1).contiguous())[0].view(*x.shape[:-1], -1)


def _whole_registers() -> bool:
    """MKL uses all of an AVX-512 register."""
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and _of_intel()


@cache
def _of_intel() -> bool:
    """On its own maker's processors alone MKL uses whole AVX-512 registers, and halves of them on others."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:  # no Linux
        return "Intel" in platform.processor()


def aligned(weight: Tensor, bias: Tensor | None) -> Multiply | None:
    """On a GPU, a table of 16-bit numbers whose rows begin anywhere takes several times as long, so the matrix gets
    rows for numbers that nobody asks for."""
    missing = -len(weight) % ALIGNED
    if weight.device.type != "cuda" or weight.element_size() > 2 or weight.numel() < LARGE or not missing:
        return None
    matrix, shift = F.pad(weight, (0, 0, 0, missing)), None if bias is None else F.pad(bias, (0, missing))
    return lambda x: F.linear(x, matrix, shift)[..., : len(weight)]


def swiftest(weight: Tensor, bias: Tensor | None, model: int = TURNED + 1) -> Multiply | None:
    """The layout for wherever they are."""
    return onednn(weight, bias, model) or aligned(weight, bias)


def times(a: Tensor, b: Tensor, to: Tensor | None = None, *, bias: Tensor | None = None, add: bool = False) -> Tensor:
    """a·b + bias for (m, k) and (k, n); into `to`, or added to what is there."""
    if to is None:
        return a @ b if bias is None else torch.addmm(bias, a, b)
    if add:
        return to.addmm_(a, b) if bias is None else to.addmm_(a, b).add_(bias)
    return torch.mm(a, b, out=to) if bias is None else torch.addmm(bias, a, b, out=to)


def product(x: Tensor, weight: Tensor, bias: Tensor | None, by: Times = times) -> Tensor:
    """Wx + b while gradients are recorded; `by` is somebody's own, where there is enough to do."""
    if by is times or not _worth(x, weight) or recorded() or torch.is_autocast_enabled(x.device.type):
        return F.linear(x, weight, bias)
    y: Tensor = _Learnt.apply(x.flatten(0, -2), weight, bias, by)
    return y.view(*x.shape[:-1], len(weight))


def _worth(x: Tensor, weight: Tensor) -> bool:
    learnt = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    return learnt and x.dim() > 1 and x.numel() * len(weight) >= WORTH


class _Learnt(torch.autograd.Function):
    """Wx + b of vectors (N, wide), and its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, by: Times) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.by = by
        return by(x, weight.T, bias=bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        by = times if torch.is_grad_enabled() else ctx.by  # whose gradients somebody asks for, PyTorch must know
        of_x, of_weight, of_bias, _ = ctx.needs_input_grad
        dx, dw = by(dy, weight) if of_x else None, by(dy.T, x) if of_weight else None
        return dx, dw, dy.sum(0) if of_bias else None, None


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y


def recorded() -> bool:
    """PyTorch follows each operation, to compile, trace, transform or count it; what it cannot see would be left out.
    Where tensors are made by default is no such matter."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or (torch._C._len_torch_function_stack() > 0 and not _only_devices())
    )


def _only_devices() -> bool:
    return all(type(mode) is DeviceContext for mode in _get_current_function_mode_stack())


def pack(model: M, layout: Layout | None = None) -> M:
    """Prepares a model that is only asked from now on: large matrices in the layout that is multiplied
    fastest, and one product where an attention makes three of the same vector. What is trained or moved afterwards
    leaves its copies unused.
    """
    layout = layout or partial(swiftest, model=sum(w.numel() for w in model.parameters()))
    for part in model.modules():
        if isinstance(part, Packable):
            part.pack(layout)
    return model


class Multiplying(nn.Module):
    """Learns by products of matrices."""

    times: Times = staticmethod(times)  # what it multiplies by, where nobody has brought a quicker one


class Packable(Multiplying):
    """Can prepare itself for being asked and no longer trained."""

    packed: Packed | None = None

    def pack(self, layout: Layout = swiftest) -> None:
        raise TypeError(f"{type(self).__name__} must define pack")


class Product(Packable):
    """Base of what multiplies by a `weight` and may add a `bias`."""

    weight: Tensor
    bias: Tensor | None

    def product(self, input: Tensor) -> Tensor:
        """Wx + b for the vectors in the last dimension of x."""
        if self.packed is not None and self.packed.fits(input):
            return self.packed.product(input)
        if self.bias is not None and torch.compiler.is_compiling() and input.numel() == input.shape[-1]:
            return F.linear(input, self.weight) + self.bias  # of one vector, a compiler makes one kernel with the rest
        return product(input, self.weight, self.bias, self.times)

    def pack(self, layout: Layout = swiftest) -> None:
        packed = Packed(self._parameters, layout=layout)
        self.packed = None if packed.multiply is None else packed


class Linear(nn.Linear, Product):  # type: ignore[misc]
    """y = Wx + b."""

    forward = Product.product


class Packed:
    """One matrix, or several under each other, in the layout that is multiplied fastest. Its parts are where modules
    keep their weights."""

    def __init__(self, *parts: dict[str, nn.Parameter | None], layout: Layout = swiftest) -> None:
        notice_optimizers()
        self.parts, self.layout = parts, layout
        self.held = [
            (of, name, w, *mark(w)) for of in parts for name in ("weight", "bias") if (w := of.get(name)) is not None
        ]
        weights, biases = ([of[name] for of in parts if of.get(name) is not None] for name in ("weight", "bias"))
        weight, bias = _under_each_other(weights), _under_each_other(biases) if biases else None
        self.kind, self.where = weight.dtype, weight.device.type
        self.multiply = layout(weight, bias)
        self.whole = (weight, bias) if self.multiply is None else None  # kept once, in one layout or the other

    def fits(self, x: Tensor) -> bool:
        """False once a weight has been moved, converted or trained on, while gradients or operations are recorded, and
        for vectors of another precision."""
        if torch.is_grad_enabled() or recorded() or torch.is_autocast_enabled(self.where):
            return False
        return x.dtype == self.kind and self._as_it_was()

    def product(self, x: Tensor) -> Tensor:
        return F.linear(x, *self.whole) if self.multiply is None else self.multiply(x)  # type: ignore[misc]

    def made_of(self, parts: Sequence[nn.Module]) -> bool:
        """Of these modules, and not of others that stood in their places."""
        return len(parts) == len(self.parts) and all(map(is_, self.parts, (part._parameters for part in parts)))

    def _as_it_was(self) -> bool:
        for of, name, w, place, version in self.held:
            if of.get(name) is not w or w.data_ptr() != place or (version is not None and w._version != version):
                return False
        return True

    def __deepcopy__(self, memo: dict[int, Any]) -> Packed:
        """A copy of the model has weights of its own, in the same layout: it may be one that rounds them."""
        return Packed(*deepcopy(self.parts, memo), layout=self.layout)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Packed, layout=self.layout), self.parts  # not kept, but made again


def _under_each_other(tensors: Sequence[Tensor | None]) -> Tensor:
    found = [t.detach() for t in tensors if t is not None]
    return found[0] if len(found) == 1 else torch.cat(found)
