"""Each number is left out with probability p, alone, and what stays grows by as much."""

from __future__ import annotations

import pytest
import torch

from regard.core.dropout import dropout, relu_dropout


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_a_share_of_p_is_left_out_and_the_mean_stays(p: float) -> None:
    torch.manual_seed(0)
    y = dropout(torch.ones(1000, 1001), p)  # a number that four does not divide
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


def test_the_gradient_passes_where_the_number_did() -> None:
    torch.manual_seed(0)
    x = torch.randn(50, dtype=torch.float64, requires_grad=True)
    y = dropout(x, 0.4)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x, y)


def test_the_seed_decides() -> None:
    x = torch.randn(3, 5)
    torch.manual_seed(1)
    first = dropout(x, 0.5)
    torch.manual_seed(1)
    assert torch.equal(dropout(x, 0.5), first)
    assert not torch.equal(dropout(x, 0.5), first)


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
