"""The race against the peer runs, on models so small that it takes a moment; that is all that can be told without a
GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from bench import decode


@pytest.mark.parametrize("cell", ["xl-1", "base-64-4"])
def test_both_sides_say_the_same(cell: str) -> None:
    line = decode.compare(cell, decode.CELLS[cell], dry=True)
    assert line.same == 1.0
    assert line.captures == 1
    assert all(rate > 0 for rate in line.amount.values())


def test_cells_that_run_apart_share_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "RESULTS", tmp_path)
    seconds = {"regard": [1.0, 1.0], "Hugging Face generate": [8.0, 8.0]}
    for cell, work in (("base-64-4", "wide"), ("xl-1", "large"), ("base-64-4", "wider")):
        decode.write(
            decode.Line(cell, work, "tokens/s", dict.fromkeys(seconds, 64.0), seconds, 0.5, 1.0, 1, 7, "a machine")
        )
    text = (tmp_path / "decode-gpu.md").read_text("utf-8")
    assert "| large | regard | 64 tokens/s |  | 50.0% | 100% | 7 MiB |" in text
    assert "| wider | Hugging Face generate | 8 tokens/s | **8.00×** (8.00–8.00) |" in text
    assert "| wide |" not in text
    assert [row["cell"] for row in json.loads((tmp_path / "decode-gpu.json").read_text("utf-8"))["rows"]] == [
        "xl-1",
        "base-64-4",
    ]


def test_a_cell_that_is_not_known_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["decode", "--dry", "xl"])
    with pytest.raises(SystemExit):
        decode.main()
    assert "xl: no such cell; known: xl-1, xl-1-int8, 124m-1" in capsys.readouterr().err
