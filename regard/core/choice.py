"""Soft attention reads a mixture; hard attention chooses one key and reads that (Xu et al. 2015).

A choice has no gradient. It is learnt by REINFORCE: what it says of itself, the log-probability of the chosen keys and
the entropy of the distributions they were drawn from, goes into a state's notes, where the task finds it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def choose(weights: Tensor, *, draw: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(B, H, Q, K) -> the weights as ones and zeros, log p of the choice and entropy, (B, Q) each, summed over heads.

    Drawn at random in training; the likeliest otherwise.
    """
    chances = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    if draw:
        at = torch.multinomial(chances.detach().flatten(0, -2), 1).view(*weights.shape[:-1], 1)
    else:
        at = weights.argmax(-1, keepdim=True)
    chosen = torch.zeros_like(weights).scatter(-1, at, 1.0)
    logs = chances.clamp(min=torch.finfo(weights.dtype).tiny).log()
    return chosen, logs.gather(-1, at).squeeze(-1).sum(1), -(chances * logs).sum(-1).sum(1)
