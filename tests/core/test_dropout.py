"""Each number is left out with probability p, alone, and what stays grows by as much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from functorch.compile import min_cut_rematerialization_partition as cut
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from regard.core.dropout import dropout, hashed_dropout, relu_dropout

Drop = Callable[[Tensor, float], Tensor]
ways = pytest.mark.parametrize("drop", [dropout, hashed_dropout])


@ways
@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_a_share_of_p_is_left_out_and_the_mean_stays(drop: Drop, p: float) -> None:
    torch.manual_seed(0)
    y = drop(torch.ones(1000, 1001), p)  # a number that four does not divide
    spread = (p * (1 - p) / y.numel()) ** 0.5
    assert abs((y == 0).double().mean().item() - p) < 5 * spread
    assert abs(y.double().mean().item() - 1) < 5 * spread / (1 - p)
    assert set(y.unique().tolist()) == {0.0, y.max().item()}
    assert y.max().item() == pytest.approx(1 / (1 - p), rel=1e-4)


def test_neighbours_are_drawn_apart() -> None:
    """The four coins of one draw know nothing of each other."""
    torch.manual_seed(0)
    out = (dropout(torch.ones(4 * 250_000), 0.3) == 0).double().view(-1, 4) - 0.3
    together = (out.T @ out / len(out)).fill_diagonal_(0.0)
    assert together.abs().max().item() < 5 * 0.21 / len(out) ** 0.5


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_hashes_know_nothing_of_their_neighbours_nor_of_the_hashes_before(p: float) -> None:
    """Pairs at any distance, also those of a row's width, and three in a row; a mask and the next."""
    torch.manual_seed(0)
    one, other = ((hashed_dropout(torch.ones(2**20), p) == 0).double() - p for _ in range(2))
    one, other = one / (p * (1 - p)) ** 0.5, other / (p * (1 - p)) ** 0.5
    found = [(one[:-far] * one[far:]).mean() for far in (1, 2, 3, 4, 5, 7, 8, 16, 64, 768, 1024, 4096)]
    found += [(one[:-2] * one[1:-1] * one[2:]).mean(), (one * other).mean(), (one[1:] * other[:-1]).mean()]
    assert max(abs(float(share)) for share in found) < 5 * len(one) ** -0.5


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor", "ignore:.*torch.jit.script_method")  # not by us
def test_a_compiler_meets_a_hash_and_keeps_no_coins() -> None:
    """What the gradient wants of it is tossed again from the two numbers drawn."""
    kept: list[list[tuple[int, ...]]] = []

    def backward(graph: GraphModule, given: list[Tensor]) -> Any:
        kept.append([tuple(t.shape) for t in given if isinstance(t, Tensor) and not t.is_floating_point()])
        return make_boxed_func(graph.forward)

    def forward(graph: GraphModule, _: Any) -> Any:
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    x = torch.randn(40, 50, requires_grad=True)
    compiled = torch.compile(
        lambda x: dropout(x, 0.4), backend=aot_autograd(fw_compiler=forward, bw_compiler=backward, partition_fn=cut)
    )
    y = compiled(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x, y)
    assert 0 < (y == 0).sum() < y.numel()
    assert [shapes for shapes in kept if any(len(shape) > 1 for shape in shapes)] == []


@ways
def test_the_gradient_passes_where_the_number_did(drop: Drop) -> None:
    torch.manual_seed(0)
    x = torch.randn(50, dtype=torch.float64, requires_grad=True)
    y = drop(x, 0.4)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x, y)


@ways
def test_the_seed_decides(drop: Drop) -> None:
    x = torch.randn(3, 5)
    torch.manual_seed(1)
    first = drop(x, 0.5)
    torch.manual_seed(1)
    assert torch.equal(drop(x, 0.5), first)
    assert not torch.equal(drop(x, 0.5), first)


def test_nothing_is_left_out_at_zero() -> None:
    x = torch.randn(3)
    assert dropout(x, 0.0) is x
    assert dropout(torch.empty(0), 0.5).shape == (0,)


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9])
def test_behind_a_relu_nothing_but_the_result_is_kept(p: float) -> None:
    """What is zero there tells where there is no gradient."""
    x = torch.randn(40, 50, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(0)
    apart = dropout(x.relu(), p)
    torch.manual_seed(0)
    at_once = relu_dropout(x, p)
    assert torch.equal(at_once, apart)
    towards = torch.randn_like(x)
    ours, theirs = (torch.autograd.grad((y * towards).sum(), x)[0] for y in (at_once, apart))
    torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=0)


def test_in_half_precision_a_coin_is_as_fair() -> None:
    torch.manual_seed(0)
    whole = dropout(torch.ones(1000, 100), 0.0003)
    torch.manual_seed(0)
    half = dropout(torch.ones(1000, 100, dtype=torch.bfloat16), 0.0003)
    assert half.dtype == torch.bfloat16
    assert torch.equal(half == 0, whole == 0)
    assert (half == 0).any()


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor", "ignore:.*should not be instantiated", "ignore:.*torch.jit.script_method"
)
def test_compiled_behind_a_relu_gradients_grow_as_numbers_do() -> None:
    torch._dynamo.reset()
    x = torch.rand(40, 50, dtype=torch.float64).requires_grad_()
    y = torch.compile(lambda x: relu_dropout(x, 0.1), backend="aot_eager")(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x, y, rtol=1e-14, atol=0)


def test_as_good_as_everything_can_be_left_out() -> None:
    torch.manual_seed(0)
    assert not hashed_dropout(torch.ones(1000), 1 - 2**-40).any()
