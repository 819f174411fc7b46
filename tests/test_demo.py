"""The embedded job from start to finish, in a shortened form."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import tiny

from regard import demo
from regard.cli import main
from regard.config import make_recipe, read_toml
from regard.data.spoken import CATEGORIES
from regard.models import schema
from regard.recipes import find_recipe


@pytest.fixture
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder in which the demo's recipe is a tiny one."""
    path = tiny.write_recipe(tmp_path / "tiny.toml", tiny.recipe(data={"held": 40}))
    monkeypatch.setattr(demo, "find_recipe", lambda name: path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_demo_shows_scores_answers_and_an_alignment(short: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--steps", "60"]) == 0
    text = capsys.readouterr().out.partition("Held-out phrases")[2]
    table = text[: text.index("bleu ")]
    assert all(category in table for category in (*CATEGORIES, "all"))
    assert table.count(" %") == len(CATEGORIES) + 1
    assert "tok:13a" in text[text.index("bleu ") :]
    examples = text[text.index("Five of them") : text.index("What it looked at")]
    assert examples.count("→") == 5
    assert "decoder.0.cross, mean of 2 heads" in text
    commands = [shlex.split(line) for line in text.splitlines() if re.match(r"  \S*regard ", line)]
    assert [words[1] for words in commands] == ["predict", "look", "doctor"]
    for _, *words in commands:
        assert main(words) == 0, words
    assert (short / "look.html").exists()


def test_other_languages_have_their_own_title_and_commands(short: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--source", "de", "--target", "fr", "--steps", "2", "--out", "with space"]) == 0
    text = capsys.readouterr().out
    assert "de → fr" in text
    assert (short / "with space" / "README.md").read_text("utf-8").splitlines()[0].endswith("de → fr")
    for line in text.splitlines():
        if re.match(r"  \S*regard predict", line):
            assert main(shlex.split(line)[1:]) == 0


def test_the_demos_recipe_needs_no_file_and_covers_every_category() -> None:
    recipe = make_recipe(read_toml(find_recipe("demo")), schema)
    assert recipe.data.made == "spoken"
    assert recipe.data.held >= 100 * len(CATEGORIES), "enough of each to tell 98 % from 97 %"
    assert recipe.command == "regard demo"
