"""Kill it as often as you like, wherever it is: it comes to the same end."""

from __future__ import annotations

import hashlib
import multiprocessing
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import toy

from regard.training.log import read_metrics

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["regard.training", "torch._dynamo"])  # imported once, and not once for every kill

FSYNCS = 9  # in one save: the log, six files, their folder, the folder above


def trainer(arguments: list[str]) -> None:
    sys.exit(toy.main(arguments))


def start(folder: Path, steps: int, *arguments: str) -> Any:
    settings = ["--steps", str(steps), "--save_every", "2", *arguments]
    process = PROCESSES.Process(target=trainer, args=([str(folder), *settings],))
    process.start()
    return process


def finish(folder: Path, steps: int) -> str:
    """Trains undisturbed to the end; gives the hash of the final weights."""
    process = start(folder, steps)
    process.join()
    assert process.exitcode == 0
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def storm(folder: Path, steps: int, kills: int, seed: int) -> None:
    """Half of the kills come inside a save, half at any moment."""
    draw = random.Random(seed)
    for kill in range(kills):
        inside = kill % 2 == 0
        process = start(folder, steps, *(["--die", str(5 + draw.randrange(3 * FSYNCS))] if inside else []))
        process.join(None if inside else draw.uniform(0.02, 0.4))
        process.kill()
        process.join()
        assert process.exitcode == -9, "it must be killed before its end, or this shows nothing"


def assert_same_end(folder: Path, kills: int, seed: int) -> None:
    steps = 60 * kills
    expected = finish(folder / "calm", steps)
    storm(folder / "storm", steps, kills, seed)
    assert finish(folder / "storm", steps) == expected
    logged = {
        name: [line["step"] for line in read_metrics(folder / name / "metrics.jsonl") if "loss" in line]
        for name in ("calm", "storm")
    }
    assert logged["storm"] == logged["calm"] == [*range(3, steps, 3), steps]
    kept = {name: sorted(path.name for path in (folder / name / "checkpoints").iterdir()) for name in ("calm", "storm")}
    assert kept["storm"] == kept["calm"]


def test_three_kills_change_nothing(tmp_path: Path) -> None:
    assert_same_end(tmp_path, kills=3, seed=0)


@pytest.mark.storm
def test_twenty_five_kills_change_nothing(tmp_path: Path) -> None:
    assert_same_end(tmp_path, kills=25, seed=1)
