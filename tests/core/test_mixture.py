from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.core import head as module
from regard.core.head import Head, Mixture

from .test_head import Largest

VOCAB, DIM, CHOICES = 7, 5, 3


def make(bias: bool = True, rows: int = 3, length: int = 4) -> tuple[Mixture, Tensor, Tensor, Tensor]:
    head = Mixture(DIM, VOCAB, bias=bias).double()
    if head.bias is not None:
        nn.init.normal_(head.bias)
    shares = torch.randn(rows, length, CHOICES, 1, dtype=torch.float64).log_softmax(2)
    each = torch.randn(rows, length, CHOICES, DIM, dtype=torch.float64)
    hidden = torch.cat([each, shares], -1).requires_grad_()
    targets = torch.randint(0, VOCAB, (rows, length))
    real = torch.arange(length) < torch.linspace(length, 1, rows).long()[:, None]
    return head, hidden, targets, real


def enumerated(head: Mixture, hidden: Tensor) -> Tensor:
    """p(y) = Σ_s p(s) p(y | s), one choice at a time: (B, T, V)."""
    total = torch.zeros(*hidden.shape[:2], VOCAB, dtype=torch.float64)
    for s in range(CHOICES):
        logits = hidden[:, :, s, :-1] @ head.weight.T + (0 if head.bias is None else head.bias)
        total = total + hidden[:, :, s, -1:].exp() * logits.exp() / logits.exp().sum(-1, keepdim=True)
    return total


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
def test_logits_are_the_log_of_the_sum_over_all_choices(bias: bool) -> None:
    head, hidden, _, _ = make(bias)
    logits = head.logits(hidden)
    torch.testing.assert_close(logits, enumerated(head, hidden).log(), rtol=0, atol=1e-12)
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(3, 4, dtype=torch.float64))
    torch.testing.assert_close(head.logits(hidden[:, -1]), logits[:, -1])  # as a step asks


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("chunk", [1, 2 * 9 * VOCAB, 2**24], ids=["one word", "two words", "all words"])
def test_the_loss_is_minus_the_log_of_what_all_choices_give_the_word(
    smoothing: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In value and in every gradient, however few words are taken at a time."""
    monkeypatch.setattr(module, "CHUNK", chunk)
    head, hidden, targets, real = make()
    loss = head(hidden, targets, real=real, smoothing=smoothing)
    logs = enumerated(head, hidden).log()[real]
    nll = -logs.gather(1, targets[real][:, None]).sum()
    wanted = (1 - smoothing) * nll - smoothing * logs.mean(-1).sum()
    torch.testing.assert_close(loss.total, wanted, rtol=1e-12, atol=0)
    torch.testing.assert_close(loss.parts["nll"], nll.detach(), rtol=1e-12, atol=0)
    assert loss.count == int(real.sum())
    one, other = (torch.autograd.grad(y, [hidden, *head.parameters()]) for y in (loss.total, wanted))
    for ours, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 2**24])
def test_logprobs_are_those_of_the_given_words(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    head, hidden, targets, real = make()
    found = head.logprobs(hidden, targets)
    wanted = enumerated(head, hidden).gather(2, targets[..., None])[..., 0].log()
    torch.testing.assert_close(found, wanted.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(-found[real].sum(), head(hidden, targets, real=real).total.detach())


def test_a_sure_choice_is_a_plain_head() -> None:
    head, hidden, targets, real = make()
    plain = Head(DIM, VOCAB, bias=True).double()
    plain.load_state_dict(head.state_dict())
    sure = hidden.detach().clone()
    sure[..., -1] = -torch.inf
    sure[..., 1, -1] = 0.0
    chosen = sure[:, :, 1, :-1]
    torch.testing.assert_close(head.logits(sure), plain.logits(chosen).log_softmax(-1))
    for smoothing in (0.0, 0.1):
        ours, theirs = (
            h(x, targets, real=real, smoothing=smoothing) for h, x in ((head, sure), (plain, chosen.contiguous()))
        )
        torch.testing.assert_close(ours.total, theirs.total)


def test_the_table_of_all_choices_is_never_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    head, hidden, targets, real = make(rows=2, length=30)
    monkeypatch.setattr(module, "CHUNK", 2 * CHOICES * VOCAB)
    with Largest() as plain:
        head.logits(hidden)
    assert plain.size == 2 * 30 * CHOICES * VOCAB  # this is what it looks like when somebody does
    for wanted in (
        lambda: head(hidden, targets, real=real | True, smoothing=0.1).total.backward(),
        lambda: head.logprobs(hidden, targets),
    ):
        with Largest() as ours:
            wanted()
        assert 0 < ours.size <= hidden.numel() < plain.size
