"""Batches come by their number, whoever makes them, and in few shapes where that is wanted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import current_thread, main_thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import toy

from regard.data.batch import Batch
from regard.errors import DataError
from regard.tasks import Steady
from regard.training import loop
from regard.training.feed import Feed
from regard.training.recorded import Recorded


class Numbered(toy.Toy):
    """Tells by whom a batch was made."""

    def batch(self, split: str, step: int, rank: int = 0, world: int = 1) -> toy.Batch:
        if step == 13:
            raise DataError("no thirteenth; take another")
        self.made = [*getattr(self, "made", []), (step, current_thread() is main_thread())]
        return super().batch(split, step, rank, world)


@pytest.mark.parametrize("aside", [False, True])
def test_a_batch_is_made_once_and_ahead(tmp_path: Path, aside: bool) -> None:
    task = Numbered()
    feed = Feed(toy.fresh(tmp_path, toy.config(device="cpu")), task)
    feed.aside = ThreadPoolExecutor(1) if aside else None
    for index in (0, 1, 2, 7):
        batch = feed(index)
        assert torch.equal(batch.words, toy.Toy().batch("train", index).words)
        feed.fetch(index + 1)
    feed(8)
    assert task.made == [(index, not aside) for index in (0, 1, 2, 3, 7, 8)]


def test_what_goes_wrong_aside_is_told_to_whoever_asks(tmp_path: Path) -> None:
    feed = Feed(toy.fresh(tmp_path, toy.config(device="cpu")), Numbered())
    feed.aside = ThreadPoolExecutor(1)
    feed.fetch(13)
    with pytest.raises(DataError, match="no thirteenth"):
        feed(13)


def test_steady_batches_are_no_longer_than_the_model_reads(tmp_path: Path) -> None:
    class Long(Steady):
        def batch(self, split: str, step: int, rank: int, world: int) -> Batch:
            return Batch.of([[4] * 33], [[1, *[4] * 33, 2]], [0])

    run: Any = SimpleNamespace(device=torch.device("cpu"), rank=0, world=1, model=SimpleNamespace(longest=None))
    task: Any = Long()
    assert Feed(run, task)(0).source.shape == (1, 33)
    assert Feed(run, task, steady=True)(0).source.shape == (1, 34)
    run.model.longest = 33
    assert Feed(run, task, steady=True)(0).source.shape == (1, 33)


def test_which_shapes_are_few_is_asked_in_the_precision_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel of 16 bits is none for a run in 32."""
    asked = []
    monkeypatch.setattr(loop, "learning", lambda *given: object.__new__(Recorded))

    class Asking(toy.Toy):
        def in_few_shapes(self, model: Any) -> Any:
            asked.append(torch.is_autocast_enabled("cpu"))
            return lambda batch: batch

    for precision in ("fp32", "bf16"):
        config = toy.config(precision=precision, device="cpu")
        loop.Steps(toy.fresh(tmp_path, config), Asking(), config, SimpleNamespace(say=print))  # type: ignore[arg-type]
    assert asked == [False, True]
