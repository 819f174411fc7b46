"""Tables of benchmarks whose parts are run apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from bench import harness
from bench.harness import Comparison, report

NAMES = ("small", "large")


def raced(name: str, machine: str = "") -> Comparison:
    return Comparison(
        name, "words/s", "regard", {"regard": 8.0, "peer": 8.0}, {"regard": [1.0], "peer": [2.0]}, machine
    )


def test_works_that_were_not_raced_keep_their_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    report("race", "A race", "How.", [raced("small", "an old machine"), raced("large"), raced("gone")], known=NAMES)
    report("race", "A race", "How.", [raced("large")], known=NAMES)
    (table,) = tmp_path.glob("race-*.md")
    text = table.read_text("utf-8")
    assert [line.split("|")[1].strip() for line in text.splitlines() if "regard |" in line] == ["small", "large"]
    assert "| large | peer | 4 words/s | **2.00×** (2.00–2.00) |" in text
    assert "an old machine\n" in text
    report("race", "A race", "How.", [raced("large")])
    assert [row["work"] for row in json.loads(table.with_suffix(".json").read_text("utf-8"))["rows"]] == ["large"]
