"""The causal convolution against PyTorch's, padded and cut off, and all ways of making its products."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.parametrizations import weight_norm

from regard.core import convolution
from regard.core.convolution import Causal, Columns, Heard, Taps, causal
from regard.core.state import State, join, reorder

ROWS, INPUTS, OUTPUTS, STEPS = 3, 4, 5, 11
every_way = pytest.mark.parametrize(
    "products",
    [(Taps, 0), (Taps, 2**16), (Columns, 0)],
    ids=["taps", "taps, gradients at once", "columns"],
    indirect=True,
)
kernels = pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (2, 1), (3, 2), (4, 3), (3, 8)])


@pytest.fixture
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """How the products are made, and up to how many numbers their gradients are made at once."""
    how, near = request.param
    monkeypatch.setattr(convolution, "NEAR", near)
    return how


def make(kernel: int, dilation: int) -> Causal:
    torch.manual_seed(0)
    conv = Causal(INPUTS, OUTPUTS, kernel, dilation).double()
    for parameter in conv.parameters():
        torch.nn.init.normal_(parameter)
    return conv


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def padded_and_cut(x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int) -> Tensor:
    """(B, C, T): padding on both sides, and what comes of the right one cut off."""
    reach = (weight.shape[-1] - 1) * dilation
    return F.conv1d(x, weight, bias, padding=reach, dilation=dilation)[..., : x.shape[-1]]


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@every_way
@kernels
@pytest.mark.parametrize("biased", [True, False])
def test_it_is_pytorchs_convolution_of_the_past(products: Any, kernel: int, dilation: int, biased: bool) -> None:
    x, weight = numbers(INPUTS, STEPS, ROWS), numbers(OUTPUTS, kernel, INPUTS)
    bias = numbers(OUTPUTS) if biased else None
    y = products.apply(x.flatten(1), weight, bias, dilation * ROWS, 0).view(OUTPUTS, STEPS, ROWS)
    peer = padded_and_cut(x.permute(2, 0, 1), weight.transpose(1, 2), bias, dilation)
    close(y, peer.permute(1, 2, 0))
    wanted = [t for t in (x, weight, bias) if t is not None]
    towards = torch.randn_like(y)
    ours, theirs = (torch.autograd.grad((some * towards).sum(), wanted) for some in (y, peer.permute(1, 2, 0)))
    for mine, other in zip(ours, theirs, strict=True):
        close(mine, other)


@every_way
@pytest.mark.parametrize(("kernel", "dilation", "lead"), [(1, 1, 0), (3, 2, 0), (3, 2, 3), (3, 2, 4), (4, 5, 7)])
def test_its_gradients_are_those_of_its_formula(products: Any, kernel: int, dilation: int, lead: int) -> None:
    given = numbers(2, 9), numbers(3, kernel, 2), numbers(3)
    assert torch.autograd.gradcheck(lambda *some: products.apply(*some, dilation, lead), given)


@every_way
def test_only_the_gradients_that_are_wanted_are_made(products: Any) -> None:
    x, weight, bias = numbers(2, 9).detach(), numbers(3, 2, 2), numbers(3)
    assert torch.autograd.gradcheck(lambda *some: products.apply(x, *some, 1, 0), (weight, bias))


@kernels
@torch.no_grad()
def test_what_is_only_heard_is_not_answered(kernel: int, dilation: int) -> None:
    conv = make(kernel, dilation)
    x, whole = numbers(INPUTS, STEPS, ROWS).detach(), (kernel - 1) * dilation
    for lead in range(1, min(whole, STEPS - 1) + 1):
        answered = [causal(x, conv.weight, conv.bias, dilation, some) for some in (0, lead)]
        close(answered[1], answered[0][:, lead:])


# ------------------------------------------------------------------ weight norm


def test_its_weight_is_g_times_a_direction() -> None:
    conv = make(3, 2)
    for row, v, g in zip(conv.weight, conv.v, conv.g, strict=True):
        close(row, g * v / v.norm())


def test_it_has_pytorchs_weight_norm_and_begins_as_its_convolutions_do() -> None:
    torch.manual_seed(0)
    conv = Causal(16, 64, 3)
    torch.testing.assert_close(conv.g, conv.v.flatten(1).norm(dim=1))  # W = V at first
    torch.testing.assert_close(conv.weight, conv.v)
    bound = (3 * 16) ** -0.5  # uniform, as kaiming_uniform_(a=√5) has it
    assert 0.98 * bound < conv.v.abs().max() <= bound
    assert conv.v.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
    peer = weight_norm(torch.nn.Conv1d(16, 64, 3))
    with torch.no_grad():
        peer.parametrizations.weight.original0.copy_(2 * conv.g[:, None, None])
        peer.parametrizations.weight.original1.copy_(conv.v.transpose(1, 2))
        conv.g.mul_(2)
    torch.testing.assert_close(conv.weight.transpose(1, 2), peer.weight)
    assert sum(p.numel() for p in conv.parameters()) == sum(p.numel() for p in peer.parameters())


# ------------------------------------------------------------------ the past


@kernels
@pytest.mark.parametrize("pieces", [[1] * STEPS, [4, 1, 6], [2, 9]])
@torch.no_grad()
def test_in_pieces_it_says_what_it_says_at_once(kernel: int, dilation: int, pieces: list[int]) -> None:
    conv, x, past, said = make(kernel, dilation), numbers(INPUTS, STEPS, ROWS).detach(), None, []
    for piece in x.split(pieces, 1):
        y, past = conv(piece, past)
        said.append(y)
    close(torch.cat(said, 1), conv(x)[0])
    assert past is not None
    close(past, x[:, STEPS - min(conv.reach, STEPS) :].permute(2, 0, 1))


@kernels
@torch.no_grad()
def test_the_past_of_a_row_ends_with_its_last_real_step(kernel: int, dilation: int) -> None:
    conv, lengths = make(kernel, dilation), torch.tensor([STEPS, 1, 6])
    before, x, after = (numbers(INPUTS, steps, ROWS).detach() for steps in (2, STEPS, 3))
    real = torch.arange(STEPS) < lengths[:, None]
    _, past = conv(before)
    _, past = conv(x, past, real)
    y, _ = conv(after, past)
    for row, length in enumerate(lengths.tolist()):
        one = torch.cat([before[..., [row]], x[:, :length, [row]], after[..., [row]]], 1)
        close(y[..., [row]], conv(one)[0][:, 2 + length :])


@torch.no_grad()
def test_rows_that_have_read_unequally_much_go_on_together() -> None:
    conv, rows = make(3, 4), [numbers(INPUTS, steps, 1).detach() for steps in (1, 12, 5)]
    states = [State(past=Heard([conv(x)[1]]), length=x.shape[1]) for x in rows]
    turned = reorder(join(states), torch.tensor([2, 0, 1]))
    assert isinstance(turned.past, Heard)
    then = numbers(INPUTS, 2, ROWS).detach()
    y, _ = conv(then, turned.past[0])
    for place, row in enumerate([2, 0, 1]):
        close(y[..., [place]], conv(torch.cat([rows[row], then[..., [place]]], 1))[0][:, -2:])


@torch.no_grad()
def test_a_past_does_not_keep_a_long_sequence_alive() -> None:
    conv = make(3, 2)
    _, past = conv(numbers(INPUTS, 1000, ROWS).detach())
    assert past.untyped_storage().nbytes() == past.nbytes


# ------------------------------------------------------------------ every second step


@pytest.mark.parametrize("kernel", [1, 2, 3, 6])
@pytest.mark.parametrize("steps", [1, 2, 7, 8])
def test_every_second_step_is_that_of_all(kernel: int, steps: int) -> None:
    conv, x = make(kernel, 1), numbers(INPUTS, steps, ROWS)
    whole, some = conv(x)[0][:, (steps - 1) % 2 :: 2], conv.every_second(x)
    close(some, whole)
    towards = torch.randn_like(some)
    ours, theirs = (torch.autograd.grad((y * towards).sum(), [x, conv.v, conv.g]) for y in (some, whole))
    for mine, other in zip(ours, theirs, strict=True):
        close(mine, other)


def test_autocast_makes_the_products_in_half_precision() -> None:
    conv, x = make(3, 2).float(), torch.randn(INPUTS, STEPS, ROWS, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = conv(x)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert [t.grad.dtype for t in (x, conv.v, conv.bias) if t.grad is not None] == [torch.float32] * 3
    torch.testing.assert_close(y.float(), conv(x)[0], rtol=0.05, atol=0.2)


def test_taps_that_reach_back_before_the_beginning_cost_nothing() -> None:
    """Were there room for what they do not hear, no machine would have the memory."""
    far = make(3, 2**40)
    x = numbers(INPUTS, STEPS, ROWS)
    y = causal(x, far.weight, far.bias, far.dilation)
    close(y, causal(x, far.weight[:, -1:], far.bias))
    y.sum().backward()
    assert far.v.grad is not None
    assert far.v.grad.isfinite().all()
