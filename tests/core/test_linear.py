"""However the product is turned, it is the product."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from regard.core import linear
from regard.core.linear import Linear, product


@pytest.fixture(autouse=True)
def small_matrices_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "LARGE", 1)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(1,), (1, 1), (2, 1), (3, 1), (5, 7), (1, 8), (4, 40)])
@pytest.mark.parametrize(("wide", "tall"), [(6, 6), (6, 20), (20, 6)])
def test_it_is_torchs_linear(shape: tuple[int, ...], wide: int, tall: int, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        weight, bias, x = (torch.randn(*s, dtype=torch.float64) for s in ((tall, wide), (tall,), (*shape, wide)))
        with torch.no_grad():
            torch.testing.assert_close(product(x, weight, bias), F.linear(x, weight, bias), atol=1e-13, rtol=0)
            torch.testing.assert_close(product(x, weight), F.linear(x, weight), atol=1e-13, rtol=0)
    finally:
        torch.set_num_threads(before)


def test_few_rows_are_turned_and_many_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    turned: list[int] = []
    monkeypatch.setattr(linear.torch, "mm", lambda a, b: turned.append(b.shape[1]) or a @ b)
    weight = torch.randn(8, 4)
    with torch.no_grad():
        for rows in (1, 2, 1000):
            product(torch.randn(rows, 4), weight)
    product(torch.randn(2, 4), weight)  # gradients are recorded: never turned
    assert turned == [linear.PANEL, 2]


def test_gradients_are_torchs() -> None:
    ours, x = Linear(5, 3), torch.randn(2, 5)
    theirs = torch.nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    for layer in (ours, theirs):
        layer(x).square().sum().backward()
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    torch.testing.assert_close(ours.bias.grad, theirs.bias.grad)
