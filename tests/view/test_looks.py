"""What a training notes of one held-out pair along the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from rich.console import Console

from regard import run
from regard.config import make_recipe
from regard.models import schema
from regard.pipeline import load
from regard.serve.training import held_pair
from regard.tasks.rewrite import Rewrite, aligned
from regard.training.log import read_metrics
from regard.training.stop import Stopped

RECIPE = tiny.recipe(data={"count": 200, "held": 8}, tokens={"size": 270})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.train(tmp_path_factory.mktemp("looks") / "run", RECIPE)


def looks(folder: Path) -> list[dict[str, Any]]:
    return read_metrics(folder / "looks.jsonl")


def test_a_look_at_each_line_of_the_log_and_each_checkpoint(folder: Path) -> None:
    """From before the first step; always at the same pair; the last is what the trained model does."""
    found = looks(folder)
    assert [line["step"] for line in found] == [0, 5, 10, 15, 20]
    assert len({(line["text"], line["answer"], *line["rows"], *line["columns"]) for line in found}) == 1
    pipeline = load(folder, device="cpu")
    seen = aligned(pipeline.model, pipeline.tokenizers, *held_pair(pipeline))  # type: ignore[arg-type]
    assert seen is not None
    np.testing.assert_allclose(found[-1]["weights"], seen.weights, atol=2e-6)
    np.testing.assert_allclose(np.sum(found[-1]["weights"], 1), 1, atol=1e-4)
    assert not np.allclose(found[0]["weights"], found[-1]["weights"], atol=1e-3)


def test_looking_changes_no_weight(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Rewrite, "look")
    blind = tiny.train(tmp_path / "blind", RECIPE)
    assert not (blind / "looks.jsonl").exists()
    assert tiny.weights_hash(blind) == tiny.weights_hash(folder)


def test_a_run_that_was_stopped_notes_each_step_once(folder: Path, tmp_path: Path) -> None:
    recipe = make_recipe(
        tiny.recipe(data={"count": 200, "held": 8}, tokens={"size": 270}, train={"stop_after": 1e-9}), schema
    )
    with pytest.raises(Stopped):
        run.start(recipe, tmp_path / "run", Console(quiet=True))
    place = tmp_path / "run" / "recipe.toml"
    place.write_text(place.read_text("utf-8").replace("stop_after = 1e-09", ""), "utf-8")
    ahead = json.dumps({**looks(folder)[-1], "answer": "of a start that came to nothing"})
    (tmp_path / "run" / "looks.jsonl").write_text(f"{ahead}\n", "utf-8")
    run.resume(tmp_path / "run", Console(quiet=True))
    assert looks(tmp_path / "run") == looks(folder)


def test_a_look_that_fails_is_said_once_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no room for this")

    monkeypatch.setattr(Rewrite, "look", fail)
    run.start(make_recipe(RECIPE, schema), tmp_path / "run", Console())
    said = capsys.readouterr().out
    assert said.count("warning: step 0 could not be looked at: no room for this; training goes on") == 1
    assert "step 5 could not be looked at" not in said
    assert (tmp_path / "run" / "model.safetensors").exists()
