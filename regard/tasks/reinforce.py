"""REINFORCE (Williams 1992), for attention that chooses: a choice is made likelier by as much as what followed it was
better than usual.

    ∇ [ log p(y | s) ]  +  λ Σ_t (R_t - b_t) ∇ log p(s_t)  +  μ Σ_t ∇ H(s_t)

R_t is the log-probability of the words from t on, because nothing before t has heard of s_t; b_t, what is usual, is a
moving average of the log-probability of a word, times the words that are left. It changes the variance, not the mean.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.core.head import Head, Loss

KEPT = 0.9  # of the moving average


def with_choices(
    loss: Loss, head: Head, hidden: Tensor, words: Tensor, real: Tensor, notes: dict[str, Tensor], task: Any, usual: Any
) -> tuple[Tensor, Tensor]:
    """The loss with the choices' share, and the new moving average. hidden (B, T, dim); words, real, notes (B, T)."""
    gained = head.logprobs(hidden.detach(), words) * real
    from_here_on = _rest(gained)
    mean = gained.sum() / real.sum().clamp(min=1)
    usual = mean if usual is None else usual
    better = from_here_on - usual * _rest(real.to(gained.dtype))
    choices = (better * notes["choice"] * real).sum()
    entropy = (notes["entropy"] * real).sum()
    return loss.total - task.reinforce * choices - task.entropy * entropy, KEPT * usual + (1 - KEPT) * mean


def _rest(t: Tensor) -> Tensor:
    """Sums from each place to the end of its row."""
    return torch.flip(torch.flip(t, [1]).cumsum(1), [1])
