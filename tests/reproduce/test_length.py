"""Quality against length: the buckets part the test split, and together they say what the run said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tiny

from regard.pipeline import load
from regard.reproduce.length import LENGTH, WIDTH, bucket, by_length, columns
from regard.reproduce.plot import PANELS
from regard.reproduce.results import Found, Row
from regard.reproduce.study import Cell


def test_every_length_is_in_one_bucket() -> None:
    found = [bucket(length) for length in range(1, 61)]
    assert found[0] == found[9] == "1–10"
    assert found[10] == "11–20"
    assert [found.count(name) for name in dict.fromkeys(found)] == [WIDTH] * 6
    assert columns(1, 60) == tuple(f"exact {name}" for name in dict.fromkeys(found))
    assert columns(11, 60) == columns(1, 61)[1:-1]


def test_the_buckets_together_say_what_the_run_said(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(tiny.trained(), folder)
    found = by_length(folder)
    pairs = json.loads((folder / "data" / "test.json").read_text("utf-8"))
    encode = load(folder).tokenizers.source.encode
    lengths = [bucket(len(encode(source))) for source, _ in pairs]
    assert {f"{measure} {length}" for measure in PANELS for length in lengths} == set(found)
    whole = sum(found[f"exact {length}"]["value"] for length in lengths) / len(lengths)
    assert whole == pytest.approx(json.loads((folder / "evaluation.json").read_text())["exact"]["value"])
    for length in lengths:
        assert 0 <= found[f"exact {length}"]["value"] <= found[f"accuracy {length}"]["value"] <= 100
    (folder / "model.safetensors").unlink()
    assert by_length(folder) == found, "what was measured is kept"


def test_right_answers_are_all_right_and_wrong_ones_are_not(tmp_path: Path) -> None:
    """The test split is made of the run's own answers, the second with its last word changed."""
    folder = tmp_path / "run"
    shutil.copytree(tiny.trained(), folder)
    sources = [source for source, _ in json.loads((folder / "data" / "test.json").read_text("utf-8"))]
    answers = load(folder)(sources)
    (folder / "data" / "test.json").write_text(json.dumps(list(zip(sources, answers, strict=True))), "utf-8")
    assert {measure["value"] for measure in by_length(folder).values()} == {100}
    (folder / "lengths.json").unlink()
    wrong = [(source, f"{answer} und") for source, answer in zip(sources, answers, strict=True)]
    (folder / "data" / "test.json").write_text(json.dumps(wrong), "utf-8")
    found = by_length(folder)
    assert all(measure["value"] == 0 for name, measure in found.items() if name.startswith("exact"))
    assert all(0 < measure["value"] < 100 for name, measure in found.items() if name.startswith("accuracy"))


def test_the_figure_has_a_line_for_each_cell_and_says_what_was_not_run(tmp_path: Path) -> None:
    study = LENGTH["copy"]
    report = {f"{m} {c.partition(' ')[2]}": {"value": 50.0, "definition": ""} for m in PANELS for c in study.columns}
    run = Found(report, "cpu", 1)
    rows = [Row(study.cells[0], (0, 1), {0: run, 1: run}), Row(Cell("absent"), (0, 1), {})]
    png, svg = study.draw(study, rows, tmp_path / "figure")
    assert png.stat().st_size > 10_000
    said = svg.read_text("utf-8")
    assert all(word in said for word in ("none", "absent (not run)", "1–10", "51–60", *PANELS.values(), study.title))
