"""A step whose numbers are not numbers changes no weight, and its batch is named."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import toy
from torch import nn

from regard.errors import Diverged
from regard.tasks import Loss
from regard.training import Stopped, train
from regard.training.checkpoint import found, read, step_of
from regard.training.log import read_metrics
from regard.weights import weights


def bad(*indices: int) -> toy.Toy:
    return toy.Toy(poison=lambda index: index in indices)


def test_raise_names_the_step_the_file_and_the_examples(tmp_path: Path) -> None:
    text = (
        r"step 8: loss nan, gradient norm nan on the batch in nan-00000008\.json \(ids 28, 29, 30, 31\); "
        r'lower train\.rate, or set train\.on_nan to "skip" or "rewind"'
    )
    with pytest.raises(Diverged, match=text) as caught:
        toy.go(tmp_path, bad(7))
    assert caught.value.code == 5
    note = json.loads((tmp_path / "nan-00000008.json").read_bytes())
    assert note["ids"] == [28, 29, 30, 31]
    assert (note["step"], note["batches"], note["loss"]) == (8, [7], "nan")
    assert [step_of(path) for path in found(tmp_path / "checkpoints")][-1] == 5


def test_all_micro_batches_of_the_step_are_named(tmp_path: Path) -> None:
    with pytest.raises(Diverged, match=r"\(ids 24, 25, 26, 27 and 8 more\)"):
        toy.go(tmp_path, bad(7), accumulate=3)
    assert json.loads((tmp_path / "nan-00000003.json").read_bytes())["batches"] == [6, 7, 8]


class Wild(toy.Toy):
    """Other ways to go wrong than a NaN."""

    def __init__(self, how: Callable[[Loss, nn.Module], Loss]) -> None:
        super().__init__()
        self.how = how

    def loss(self, model: nn.Module, batch: toy.Batch, carry: Any) -> Loss:
        loss = super().loss(model, batch, carry)
        return self.how(loss, model) if batch.ids.start == 28 else loss


def infinite(loss: Loss, model: nn.Module) -> Loss:
    return Loss(loss.total * torch.inf, loss.count, loss.parts, loss.carry)


def steep(loss: Loss, model: nn.Module) -> Loss:
    """The loss is finite, and its gradient is not."""
    edge = next(model.parameters()).flatten()[0]
    return Loss(loss.total + (edge - edge.detach()).abs().sqrt(), loss.count, loss.parts, loss.carry)


def empty(loss: Loss, model: nn.Module) -> Loss:
    return Loss(loss.total * 0, 0, {}, loss.carry)


@pytest.mark.parametrize("how", [infinite, steep, empty])
def test_other_ways_to_go_wrong(tmp_path: Path, how: Callable[[Loss, nn.Module], Loss]) -> None:
    with pytest.raises(Diverged, match="step 8"):
        toy.go(tmp_path, Wild(how))


def test_skip_leaves_weights_buffers_optimizer_and_carry_untouched(tmp_path: Path) -> None:
    run = toy.fresh(tmp_path, toy.config(on_nan="skip"))
    seen: dict[int, Any] = {}

    class Watching(toy.Toy):
        def loss(self, model: nn.Module, batch: toy.Batch, carry: Any) -> Loss:
            step = batch.ids.start // self.rows
            slots = [value.clone() for memory in run.optimizers["adamw"].state.values() for value in memory.values()]
            seen[step] = [*(t.clone() for t in weights(model).values()), *slots, *(carry["past"] if carry else [])]
            return super().loss(model, batch, carry)

    said: list[str] = []
    train(run, Watching(poison=lambda index: index == 7), toy.config(on_nan="skip"), said.append)
    assert all(torch.equal(before, after) for before, after in zip(seen[7], seen[8], strict=True))
    assert any(not torch.equal(before, after) for before, after in zip(seen[8], seen[9], strict=True))
    assert any("step 8: loss nan" in text and "; skipped, 1 in a row" in text for text in said)
    line = next(line for line in read_metrics(tmp_path / "metrics.jsonl") if "bad" in line)
    assert line == {"step": 8, "loss": "nan", "norm": "nan", "bad": "nan-00000008.json"}
    assert run.step == 20


def test_ten_may_be_skipped_in_a_row_and_no_more(tmp_path: Path) -> None:
    toy.go(tmp_path / "ten", toy.Toy(poison=lambda index: 2 <= index < 12 or index == 14), on_nan="skip")
    with pytest.raises(Diverged, match=r"skip did not help 10 times in a row: lower train\.rate, or look at the data"):
        toy.go(tmp_path / "eleven", toy.Toy(poison=lambda index: 2 <= index < 13), on_nan="skip")


def test_rewind_goes_back_and_on_with_the_data_after_the_bad_step(tmp_path: Path) -> None:
    task, seen = bad(12), []
    loss = task.loss

    def watched(model: nn.Module, batch: toy.Batch, carry: Any) -> Loss:
        seen.append(batch.ids.start // task.rows)
        return loss(model, batch, carry)

    task.loss = watched  # type: ignore[method-assign]
    run = toy.go(tmp_path, task, on_nan="rewind")
    counted, *steps = seen
    assert (counted, steps) == (0, [*range(13), *range(13, 23)])
    assert (run.step, run.shift, run.rewinds) == (20, 3, 0)
    logged = [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl") if "loss" in line]
    assert logged == [3, 6, 9, 12, 15, 18, 20]
    assert all(t.isfinite().all() for t in read(found(run.checkpoints)[-1]).tensors["model"].values())


@pytest.mark.parametrize("stops", [[7], [11], [12], [6, 11, 14], [21, 22]])
def test_a_rewound_run_is_the_same_however_it_was_interrupted(tmp_path: Path, stops: list[int]) -> None:
    """Also when a checkpoint made for a signal lies between the one to go back to and the bad step."""
    toy.go(tmp_path / "calm", bad(12, 19), on_nan="rewind")
    for stop in stops:
        task = bad(12, 19)
        task.before_batch = lambda index, stop=stop: os.kill(os.getpid(), signal.SIGTERM) if index == stop else None  # type: ignore[misc]
        with pytest.raises(Stopped):
            toy.go(tmp_path / "stopped", task, on_nan="rewind")
    toy.go(tmp_path / "stopped", bad(12, 19), on_nan="rewind")
    for name in ("model.safetensors", "checkpoints/step-00000020/optimizer.safetensors"):
        assert (tmp_path / "calm" / name).read_bytes() == (tmp_path / "stopped" / name).read_bytes()


def test_rewinding_gives_up_in_the_end(tmp_path: Path) -> None:
    with pytest.raises(Diverged, match="rewind did not help 10 times in a row"):
        toy.go(tmp_path, toy.Toy(poison=lambda index: index >= 7), on_nan="rewind")
    assert len(list(tmp_path.glob("nan-*.json"))) == 11


def test_weights_that_are_no_numbers_are_never_saved(tmp_path: Path) -> None:
    with pytest.raises(
        Diverged, match=r"step 1: a weight is no longer a number, so nothing was saved; lower train\.rate"
    ):
        toy.go(tmp_path, rate=1e38, schedule="constant", warmup=0, decay=100.0, save_every=1, evaluate_every=0)
    assert [step_of(path) for path in found(tmp_path / "checkpoints")] == [0]
