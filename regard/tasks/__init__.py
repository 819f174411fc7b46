"""What is learnt: batch → loss, and batch → text → metric. The loop knows this protocol and nothing of any system."""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn

from regard.core.head import Loss

__all__ = ["Loss", "Task"]


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
