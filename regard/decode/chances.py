"""What some rows may say next, and which of it is likeliest: of logits on the device where they were made."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.decode.filters import NEVER

GROUP, SHORT = 128, 32  # words of a group, and groups from which on it is worth making them
FEW = 16  # words that are found one after the other; of more, a table is made and sorted

Bend = Callable[[Tensor], Tensor]  # what the filters make of the scores of all words
Likeliest = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
"""Logits, what the filters left of them, k -> log-probabilities and numbers of the k likeliest words of each row."""


class Chances:
    """(rows, V) logits, before and after the filters. `quick` finds the likeliest words without a table of
    log-probabilities; it may be given where filters do to logits what they do to these."""

    def __init__(self, logits: Tensor, bend: Bend, quick: Likeliest | None = None) -> None:
        self.logits, self.bend, self.quick = logits, bend, quick

    @cached_property
    def exact(self) -> Tensor:
        return self.logits.to(torch.promote_types(self.logits.dtype, torch.float32))

    @cached_property
    def own(self) -> Tensor:
        """The model's log-probabilities, which no filter bends."""
        return self.exact.log_softmax(-1)

    @property
    def bent(self) -> Tensor:
        return self.bend(self.exact)

    def likeliest(self, k: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities and numbers of the k best words of each row that the filters leave, best first."""
        if self.quick is None or k > FEW:
            return likeliest(self.bend(self.own), k)
        return self.quick(self.logits, self.bend(self.logits), min(k, self.logits.shape[1]))


def likeliest(chance: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of each row, and which they are. On a GPU `topk` goes many times over its rows; so over long ones it
    goes twice over short ones: the best are in those k groups whose best are best."""
    if chance.device.type == "cpu" or chance.shape[1] < SHORT * GROUP or k > SHORT:
        return chance.topk(min(k, chance.shape[1]))
    return best_of_groups(chance, k)


def best_of_groups(chance: Tensor, k: int) -> tuple[Tensor, Tensor]:
    vocab = chance.shape[1]
    whole = F.pad(chance, (0, -vocab % GROUP), value=NEVER) if vocab % GROUP else chance
    groups = whole.unflatten(1, (-1, GROUP))  # (rows, groups, GROUP)
    among = groups.amax(-1).topk(k).indices  # (rows, k)
    best, at = groups.gather(1, among[..., None].expand(-1, -1, GROUP)).flatten(1).topk(k)
    return best, (among.gather(1, at // GROUP) * GROUP + at % GROUP).clamp(max=vocab - 1)
