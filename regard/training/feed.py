"""Training batches by number, the next one made while the device is still at work on the last."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from regard.tasks import Task
from regard.training.run import Run


class Feed:
    """`steady` batches are of few shapes, for steps that are replayed. Such a step is one call for the host, which then
    waits: so they are made in a thread meanwhile.
    """

    def __init__(self, run: Run, task: Task, *, steady: bool = False) -> None:
        self.run, self.task = run, task
        self.shape = task.in_few_shapes(run.model) if steady else None  # type: ignore[attr-defined]
        self.aside = ThreadPoolExecutor(1, "feed") if steady else None
        self.index, self.next = -1, Future[Any]()

    def __call__(self, index: int) -> Any:
        if index != self.index:
            self.fetch(index)
        return self.next.result().to(self.run.device)

    def fetch(self, index: int) -> None:
        self.index = index
        if self.aside is not None:
            self.next = self.aside.submit(self._make, index)
        else:
            self.next = Future()
            self.next.set_result(self._make(index))

    def _make(self, index: int) -> Any:
        batch = self.task.batch("train", index, self.run.rank, self.run.world)
        return batch if self.shape is None else self.shape(batch)
