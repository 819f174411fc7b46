"""What is learnt: batch → loss, and batch → text → metric. The loop knows this protocol and nothing of any system."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import nn

from regard.core.head import Loss

__all__ = ["Loss", "Steady", "Task"]


class Task(Protocol):
    """One thing to learn, with its data and its measure. Where it has a `look(model)` too, the loop notes what it gives
    along the way (see tasks.rewrite).
    """

    fingerprint: str
    """Names the data: a checkpoint remembers which it was trained on."""

    def batch(self, split: str, step: int, rank: int = 0, world: int = 1) -> Any:
        """A function of its arguments alone, so that resuming needs no iterator state.

        What comes has `.to(device)`, `.tokens` and `.ids`.
        """

    def epoch(self, step: int, world: int = 1) -> float:
        """How often the data has been seen before this step."""

    def loss(self, model: nn.Module, batch: Any, carry: Any) -> Loss:
        """Summed, with its count, so that accumulation is exact; `.carry` is for the next batch."""

    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        """Metrics by name, each with its definition where it has one; none where there is no such split."""


class Steady:
    """A task whose loss takes the same way for all batches of one form, and so can be recorded once and replayed (see
    training.recorded). What the host has to decide or to count stands before it and after it.

    Its batches have a `.count`, of what the loss is summed over, and `.steady(longest)`: the same in one of few shapes.
    """

    steady = True

    def in_few_shapes(self, model: nn.Module) -> Callable[[Any], Any]:
        """How a batch becomes one of few shapes, for this model and in the precision of now."""
        longest = getattr(model, "longest", None)
        return lambda batch: batch.steady(longest)

    def cost(self, model: nn.Module, batch: Any, before: Any) -> Loss:
        """The sum alone, from tensors and their shapes: numbers that change from batch to batch are not asked for."""
        raise TypeError(f"{type(self).__name__} must define cost")

    def taken_up(self, batch: Any, carry: Any) -> Any:
        """What the cost hears of the batches before."""
        return carry

    def handed_on(self, batch: Any, left: Any) -> Any:
        """The carry, from what the cost has left."""
        return left

    def loss(self, model: nn.Module, batch: Any, carry: Any) -> Loss:
        """Summed over `batch.count`."""
        loss = self.cost(model, batch, self.taken_up(batch, carry))
        loss.count, loss.carry = batch.count, self.handed_on(batch, loss.carry)
        return loss
