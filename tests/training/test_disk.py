"""A disk that is full or failing costs a checkpoint, never the run, and is not forgotten."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import toy

from regard.disk import write_through
from regard.errors import RegardError
from regard.training import checkpoint, train
from regard.training.checkpoint import found, read, step_of

MOMENTS = {"the log": 1, "a file": 3, "the folder": 8, "after the rename": 9}  # which fsync of a save fails


class Failing(toy.Toy):
    """From batch 7 on, the nth fsync fails once: that is in the save of step 10."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nth: int, number: int) -> None:
        super().__init__()
        fsync, left = os.fsync, [nth]
        armed: list[bool] = []

        def fail(handle: int) -> None:
            left[0] -= bool(armed)
            if armed and left[0] == 0:
                raise OSError(number, os.strerror(number))
            fsync(handle)

        monkeypatch.setattr(os, "fsync", fail)
        self.before_batch = lambda index: armed.append(True) if index == 7 else None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["full", "failing"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_failed_save_leaves_the_old_ones_and_the_training_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, number: int
) -> None:
    said: list[str] = []
    settings = toy.config(keep=9, evaluate_every=0)
    task = Failing(monkeypatch, MOMENTS[moment], number)
    text = f"trained to step 20, but step 10 could not be saved: {os.strerror(number)}; make room and resume"
    with pytest.raises(RegardError, match=text) as caught:
        train(toy.fresh(tmp_path / "run", settings), task, settings, said.append)
    assert caught.value.code == 1
    assert f"warning: step 10 could not be saved: {os.strerror(number)}; training goes on" in said
    steps = [step_of(path) for path in found(tmp_path / "run" / "checkpoints")]
    assert steps == ([0, 5, 10, 15, 20] if moment == "after the rename" else [0, 5, 15, 20])
    assert all(read(path) for path in found(tmp_path / "run" / "checkpoints"))
    assert not list((tmp_path / "run" / "checkpoints").glob(".tmp-*"))
    monkeypatch.undo()
    toy.go(tmp_path / "calm", keep=9, evaluate_every=0)
    names = ("calm/model.safetensors", "run/model.safetensors")
    assert (tmp_path / names[0]).read_bytes() == (tmp_path / names[1]).read_bytes()


def test_what_does_not_read_back_is_not_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that says "written" and has kept only half."""
    saves = iter(range(9))

    def half(path: Path, data: bytes) -> None:
        lost = path.name == "optimizer.safetensors" and next(saves) == 2
        write_through(path, data[: len(data) // 2] if lost else data)

    monkeypatch.setattr(checkpoint, "write_through", half)
    with pytest.raises(
        RegardError, match=r"but step 10 could not be saved: what was written does not read back .*optimizer"
    ):
        toy.go(tmp_path, evaluate_every=0, keep=9)
    assert [step_of(path) for path in found(tmp_path / "checkpoints")] == [0, 5, 15, 20]


def test_too_little_room_is_seen_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.go(tmp_path, steps=5)
    before = found(tmp_path / "checkpoints")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**20))
    with pytest.raises(RegardError, match=r"step 10 could not be saved: No space left on device: 1,0\d\d kB needed, "):
        toy.go(tmp_path, steps=10, keep=1)
    assert found(tmp_path / "checkpoints") == before


@pytest.mark.parametrize(
    ("size", "free", "told"),
    [
        (1, 2**20, "1,049 kB needed, 1,048 kB free"),
        (20_000, 2**20, "1,069 kB needed, 1,048 kB free"),
        (20_000, 0, "1,069 kB needed, 0 kB free"),
        (3_000_000_000, 700_000, "3,002 MB needed, 0 MB free"),
        (12_000_000, 13_048_575, "14 MB needed, 13 MB free"),
    ],
)
def test_what_is_needed_and_what_is_free_are_told_apart(
    size: int, free: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    with pytest.raises(OSError, match=f"No space left on device: {told}"):
        checkpoint._need_room(tmp_path, size)
    checkpoint._need_room(tmp_path, free - checkpoint.SPARE)


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_real_limit_on_files_ends_in_a_sentence_and_can_be_made_up_for(tmp_path: Path) -> None:
    text = r"but step 20 could not be saved: File too large \(and 4 more\); make room and resume"
    with files_no_larger_than(12_000), pytest.raises(RegardError, match=text):
        toy.go(tmp_path / "run", evaluate_every=0)
    assert not list((tmp_path / "run" / "checkpoints").iterdir())
    assert (tmp_path / "run" / "model.safetensors").exists()
    toy.go(tmp_path / "run", evaluate_every=0)
    assert found(tmp_path / "run" / "checkpoints")[-1].name == "step-00000020"


def test_even_the_log_may_fail(tmp_path: Path) -> None:
    with (
        files_no_larger_than(700),
        pytest.raises(RegardError, match=r"metrics.jsonl could not be written: File too lar"),
    ):
        toy.go(tmp_path, log_every=1)


def test_told_to_stop_without_room_to_save_is_a_failure(tmp_path: Path) -> None:
    task = toy.Toy()
    task.before_batch = lambda index: os.kill(os.getpid(), signal.SIGTERM) if index == 7 else None
    text = "stopped by SIGTERM, but step 7 could not be saved: File too large; make room and resume"
    with files_no_larger_than(12_000), pytest.raises(RegardError, match=text) as caught:
        toy.go(tmp_path, task, evaluate_every=0)
    assert caught.value.code == 1


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(RegardError, match=r"cannot be written: .*; make room, or train into another folder"):
        toy.go(tmp_path / "run")


def test_a_best_checkpoint_that_is_gone_is_said(tmp_path: Path) -> None:
    class Spoiler(toy.Toy):
        def evaluate(self, model: object, split: str) -> dict[str, float]:
            for path in found(tmp_path / "checkpoints"):
                if step_of(path) == 4:
                    (path / "model.safetensors").unlink(missing_ok=True)
            return {"loss": float(len(found(tmp_path / "checkpoints")))}

    with pytest.raises(RegardError, match=r"the best weights are gone and the last were taken: .*step-00000004: model"):
        toy.go(tmp_path, Spoiler(), keep=1)
    assert (tmp_path / "model.safetensors").exists()
