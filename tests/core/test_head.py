from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard.core import head as module
from regard.core.head import Head, Loss

VOCAB, DIM = 11, 6


def make(
    rows: int = 3, length: int = 5, *, bias: bool = True, dtype: torch.dtype = torch.float64
) -> tuple[Head, Tensor, Tensor, Tensor]:
    head = Head(DIM, VOCAB, bias=bias).to(dtype)
    if head.bias is not None:
        nn.init.normal_(head.bias)
    hidden = torch.randn(rows, length, DIM, dtype=dtype, requires_grad=True)
    targets = torch.randint(0, VOCAB, (rows, length))
    real = torch.arange(length) < torch.linspace(length, 1, rows).long()[:, None]
    return head, hidden, targets, real


def reference(head: Head, hidden: Tensor, targets: Tensor, real: Tensor, smoothing: float) -> Tensor:
    logits = F.linear(hidden, head.weight, head.bias)
    return F.cross_entropy(logits[real], targets[real], reduction="sum", label_smoothing=smoothing)


def gradients(loss: Tensor, head: Head, hidden: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, [hidden, *head.parameters()], retain_graph=True)


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("chunk", [1, 3 * VOCAB, 2**24], ids=["one row", "three rows", "all rows"])
@pytest.mark.parametrize("ahead", [set(), {"cpu"}], ids=["left out", "weight 0"])
def test_the_loss_is_cross_entropy(
    bias: bool, smoothing: float, chunk: int, ahead: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In value and in every gradient, however few rows are taken at a time, and whatever becomes of padding."""
    monkeypatch.setattr(module, "CHUNK", chunk)
    monkeypatch.setattr(module, "AHEAD", ahead)
    head, hidden, targets, real = make(bias=bias)
    loss = head(hidden, targets, real=real, count=int(real.sum()), smoothing=smoothing)
    assert loss.count == int(real.sum())
    wanted = reference(head, hidden, targets, real, smoothing)
    torch.testing.assert_close(loss.total, wanted, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        loss.parts["nll"], reference(head, hidden, targets, real, 0.0).detach(), rtol=1e-12, atol=0
    )
    for ours, theirs in zip(gradients(loss.total, head, hidden), gradients(wanted, head, hidden), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_compiled_is_the_same(smoothing: float) -> None:
    """Its gradient has no scatter."""
    head, hidden, targets, real = make()
    plain = head(hidden, targets, real=real, smoothing=smoothing)
    head.compile(backend="eager", fullgraph=True)
    compiled = head(hidden, targets, real=real, smoothing=smoothing)
    torch.testing.assert_close(compiled.total, plain.total, rtol=1e-12, atol=0)
    for one, other in zip(gradients(compiled.total, head, hidden), gradients(plain.total, head, hidden), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
def test_words_that_only_fill_a_row_are_never_told(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 16 bits the table of logits is widened on a GPU; loss and gradients are those of the table as it was."""
    head, hidden, targets, real = make(bias=bias, dtype=torch.bfloat16)
    found = []
    monkeypatch.setattr(module, "ALIGNED", 8)
    for ahead in (set(), {"cpu"}):
        monkeypatch.setattr(module, "AHEAD", ahead)
        loss = head(hidden, targets, real=real, smoothing=0.1)
        found.append([loss.total, loss.parts["nll"], *gradients(loss.total, head, hidden)])
    assert module._aligned(head.weight, None)[0].shape == (16, DIM)
    for narrow, wide in zip(*found, strict=True):
        torch.testing.assert_close(wide, narrow, rtol=2e-2, atol=2e-2)  # bfloat16 has 8 bits


def test_autocast_multiplies_in_16_bits_and_sums_in_32() -> None:
    head, hidden, targets, real = make(rows=8, length=20, dtype=torch.float32)
    plain = head(hidden, targets, real=real)
    with torch.autocast("cpu", torch.bfloat16):
        cast = head(hidden, targets, real=real)
    assert cast.total.dtype == torch.float32
    assert cast.total.item() != plain.total.item()
    torch.testing.assert_close(cast.total, plain.total, rtol=1e-2, atol=0)
    for ours, theirs in zip(*(gradients(one.total, head, hidden) for one in (cast, plain)), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=0.1, atol=0.05)


def test_gradients_are_scaled_with_what_the_loss_is_divided_by() -> None:
    head, hidden, targets, real = make()
    loss = head(hidden, targets, real=real, smoothing=0.1)
    whole, mean = gradients(loss.total, head, hidden), gradients(loss.total / loss.count, head, hidden)
    for a, b in zip(whole, mean, strict=True):
        torch.testing.assert_close(a / loss.count, b)


@given(st.integers(0, 10_000))
def test_only_real_tokens_count(dice: int) -> None:
    head, hidden, targets, _ = make()
    real = torch.rand(3, 5, generator=torch.Generator().manual_seed(dice)) < 0.5
    loss = head(hidden, targets, real=real, smoothing=0.1)
    assert isinstance(loss, Loss)
    assert loss.count == int(real.sum())
    other = hidden.detach().clone()
    other[~real] = torch.nan  # whatever stands at padding is not even read
    assert torch.equal(head(other, targets, real=real, smoothing=0.1).total, loss.total.detach())
    (grad,) = torch.autograd.grad(loss.total, hidden)
    assert (grad[~real] == 0).all()
    assert not real.any() or (grad[real].abs().sum(-1) > 0).all()


def test_a_batch_of_padding_costs_nothing() -> None:
    head, hidden, targets, real = make()
    loss = head(hidden, targets, real=real & False)
    assert (loss.total.item(), loss.count) == (0.0, 0)
    loss.total.backward()
    assert head.weight.grad is not None
    assert torch.equal(head.weight.grad, torch.zeros_like(head.weight))


def test_the_floor_of_label_smoothing() -> None:
    """The best possible loss at V = 1000, ε = 0.1 is the entropy of the smoothed target."""
    head = Head(1000, 1000, bias=False).double()
    gold = 0.9 + 0.1 / 1000
    with torch.no_grad():
        head.weight.copy_(torch.full((1000, 1000), 0.1 / 1000).fill_diagonal_(gold).log())
    words = torch.tensor([[3, 141, 592]])
    loss = head(F.one_hot(words, 1000).double(), words, real=torch.ones_like(words, dtype=torch.bool), smoothing=0.1)
    assert abs(loss.total.item() / loss.count - 1.01485) < 5e-6
    assert abs(loss.parts["nll"].item() / loss.count + torch.tensor(gold).log().item()) < 1e-6


class Largest(TorchDispatchMode):
    """The size of the largest tensor that any operation gave."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.size = max([self.size, *(t.numel() for t in tree_leaves(result) if isinstance(t, Tensor))])
        return result


def test_the_table_of_logits_is_never_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    head, hidden, targets, real = make(rows=8, length=20)
    monkeypatch.setattr(module, "CHUNK", 2 * VOCAB)
    with Largest() as plain:
        reference(head, hidden, targets, real | True, 0.1).backward()
    assert plain.size >= 8 * 20 * VOCAB  # this is what it looks like when somebody does
    for wanted in (
        lambda: head(hidden, targets, real=real | True, smoothing=0.1).total.backward(),
        lambda: head.logprobs(hidden, targets),
    ):
        with Largest() as ours:
            wanted()
        assert 0 < ours.size <= max(2 * VOCAB, hidden.numel())


@pytest.mark.parametrize("chunk", [VOCAB, 2**24])
def test_logprobs_are_the_log_softmax_of_the_given_words(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    head, hidden, targets, real = make()
    wanted = head.logits(hidden).log_softmax(-1).gather(2, targets[..., None])[..., 0]
    found = head.logprobs(hidden, targets)
    torch.testing.assert_close(found, wanted.detach())
    torch.testing.assert_close(-found[real].sum(), head(hidden, targets, real=real).total.detach())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_bf16_autocast_stays_near_fp32(smoothing: float) -> None:
    head, hidden, targets, real = make(dtype=torch.float32)
    wanted = reference(head, hidden, targets, real, smoothing)
    with torch.autocast("cpu", torch.bfloat16):
        loss = head(hidden, targets, real=real, smoothing=smoothing)
    assert loss.total.dtype == torch.float32
    torch.testing.assert_close(loss.total, wanted, rtol=1e-2, atol=0)
    for ours, theirs in zip(gradients(loss.total, head, hidden), gradients(wanted, head, hidden), strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() < 2e-2 * theirs.norm()


def test_bf16_throughout() -> None:
    head, hidden, targets, real = make(dtype=torch.bfloat16)
    loss = head(hidden, targets, real=real, smoothing=0.1)
    fine, wide = Head(DIM, VOCAB, bias=True).double(), hidden.detach().double()
    fine.load_state_dict(head.state_dict())
    torch.testing.assert_close(loss.total.double(), reference(fine, wide, targets, real, 0.1), rtol=1e-2, atol=0)
    loss.total.backward()
    assert hidden.grad is not None
    assert hidden.grad.dtype == torch.bfloat16


def test_a_frozen_matrix_lets_the_gradient_through() -> None:
    head, hidden, targets, real = make()
    head.requires_grad_(False)
    (ours,) = torch.autograd.grad(head(hidden, targets, real=real).total, hidden)
    (theirs,) = torch.autograd.grad(reference(head, hidden, targets, real, 0.0), hidden)
    torch.testing.assert_close(ours, theirs)


def test_a_tied_head_lends_the_matrix() -> None:
    words = nn.Embedding(VOCAB, DIM)
    before = words.weight.detach().clone()
    head = Head(DIM, VOCAB, tied=words)
    assert head.weight is words.weight
    assert torch.equal(words.weight, before)  # lent as it is, not drawn anew
