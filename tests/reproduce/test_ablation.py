"""A table over several data sets, whose cells begin with runs that are made first: GPT without its parts."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
from rich.console import Console

from regard.cli import main
from regard.config import merge
from regard.errors import ConfigError
from regard.recipes import find_recipe
from regard.reproduce import STUDIES
from regard.reproduce.ablation import ABLATION
from regard.reproduce.layout import by_cell
from regard.reproduce.results import read
from regard.reproduce.study import AVERAGE, Cell, Job, Part, Study
from regard.reproduce.table import as_json, markdown
from regard.reproduce.work import check, work
from regard.weights import load_weights

GLUE = ABLATION["glue"]
SAYINGS = ("the red cat sleeps", "a blue dog runs", "no bird sings here", "one fish swims far")


# ---- the table of the paper


def settings(values: dict[str, Any], name: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from settings(value, f"{name}{key}.")
        elif key != "title":
            yield f"{name}{key}", value


@pytest.mark.parametrize(
    ("name", "differs"),
    [
        ("without-pretraining", {"train.fresh"}),
        ("without-auxiliary", {"task.auxiliary"}),
        ("lstm", {"system", "train.begin"}),
    ],
)
def test_a_row_lacks_what_it_is_named_after_and_nothing_else(name: str, differs: set[str]) -> None:
    jobs = list(GLUE.only(["full", name]).jobs([0], Path("out"), {}))
    half = len(jobs) // 2
    assert half == len(GLUE.parts)
    for full, other in zip(jobs[:half], jobs[half:], strict=True):
        assert full.part == other.part
        one, two = (dict(settings(job.recipe().model_dump(mode="json"))) for job in (full, other))
        found = {key for key in one | two if one.get(key) != two.get(key)}
        assert {key for key in found if not key.startswith("model.")} == differs
        assert other.begins is not None
        assert other.values["train"]["begin"] == str(other.begins.folder)


def test_every_part_is_measured_once_and_on_text_of_its_own() -> None:
    for job in GLUE.jobs([3], Path("out"), {}):
        recipe = job.recipe()
        assert not recipe.data.valid
        assert recipe.data.test
        assert not set(recipe.data.test) & set(recipe.data.train)
        assert job.part.measure in recipe.task.measures  # type: ignore[attr-defined]
        assert (recipe.train.final, recipe.train.seed) == ("last", 3)
        assert job.begins is not None
        assert job.begins.recipe().train.seed == 0, "pre-training is done once for all seeds"
        assert find_recipe(job.part.recipe).exists()


# ---- the frame, with two data sets of a few lines


def small_study(home: Path, **train: Any) -> Study:
    """Sayings to go on with; labels to tell of one, and how alike two are."""
    text = home / "text.txt"
    text.write_text("\n".join(SAYINGS * 20), "utf-8")
    one, two = home / "one.tsv", home / "two.tsv"
    one.write_text("".join(f"{line}\t{'cat' in line}\n" for line in SAYINGS * 3), "utf-8")
    two.write_text("".join(f"{a}\t{b}\t{len(a) - len(b)}\n" for a in SAYINGS for b in SAYINGS), "utf-8")
    short = {"tokens": 64, "save_every": 2, "log_every": 1, "threads": 1, "device": "cpu", "warmup": 0}
    first = {
        "tokens": {"kind": "word", "size": 40},
        "task": {"name": "language"},
        "data": {"train": [str(text)], "test": [str(text)], "longest": 16},
        "train": {**short, "steps": 2, **train},
    }
    gpt = {"dim": 8, "heads": 2, "layers": 1, "context": 24}
    tiny.write_recipe(home / "small.toml", {**first, "system": "gpt", "model": gpt})
    tiny.write_recipe(home / "cell.toml", {**first, "system": "recurrent", "model": {"dim": 9, "embedding": 8}})
    then = {
        "system": "bert",
        "task": {"name": "classify"},
        "model": {"size": "mini"},
        "train": {**short, "steps": 3, "schedule": "linear", "final": "last"},
    }
    tiny.write_recipe(home / "tell.toml", {**then, "data": {"train": [str(one)], "test": [str(one)], "longest": 16}})
    pairs = {"train": [str(two)], "test": [str(two)], "longest": 24, "texts": [0, 1], "label": 2}
    rate = merge(then, {"task": {"kind": "number"}, "train": {"metric": "pearson"}})
    tiny.write_recipe(home / "rate.toml", {**rate, "data": pairs})
    gpt_first, lstm_first = str(home / "small.toml"), str(home / "cell.toml")
    return replace(
        GLUE,
        parts=(
            Part("Tell", str(home / "tell.toml"), "accuracy"),
            Part("Rate", str(home / "rate.toml"), "pearson", {"task": {"similar": True}}),
        ),
        settings={"task": {"auxiliary": 0.5}},
        cells=(
            Cell("full", begin=gpt_first),
            Cell("fresh", {"train": {"fresh": True}}, begin=gpt_first),
            Cell("lstm", begin=lstm_first),
        ),
        columns=(AVERAGE, "Tell", "Rate", "minutes"),
        quick=("full",),
    )


def jobs_of(study: Study, out: Path, *names: str, seeds: tuple[int, ...] = (0,)) -> list[Job]:
    return list(study.only(names).jobs(seeds, out, {}))


def heard(jobs: list[Job], failing: int = 0) -> str:
    text = io.StringIO()
    assert len(work(jobs, Console(file=text, width=300))) == failing
    return text.getvalue()


Made = tuple[Study, list[Job], Path, str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Three cells and two seeds, of which the last lacks a data set; and what was said."""
    home = tmp_path_factory.mktemp("made")
    study, out = small_study(home), home / "out"
    jobs = jobs_of(study, out, "full", "fresh", "lstm", seeds=(0, 1))
    assert [str(job.folder.relative_to(out)) for job in jobs[:3]] == [
        "full/Tell/seed-0", "full/Rate/seed-0", "fresh/Tell/seed-0",
    ]  # fmt: skip
    return study, jobs, out, heard(jobs[:-1])


def test_what_others_begin_with_is_made_first_and_once(made: Made) -> None:
    _, jobs, out, said = made
    for name in ("small", "cell"):
        assert said.count(f"{name}, seed 0 (") == 1
    assert said.index("cell, seed 0 (2 of 2)") < said.index("full, Tell, seed 0 (1 of 11)")
    assert said.count(f"begins with the weights of {out / 'small'}") == 4, "two data sets, two seeds, not the fresh"
    assert said.count(f"begins with the weights of {out / 'cell'}") == 3
    assert heard(jobs[:-1]) == "", "what is finished is left alone"


def test_cells_go_on_with_what_they_begin_with_and_a_fresh_one_does_not(made: Made) -> None:
    _, jobs, out, _ = made
    before = load_weights(out / "small" / "model.safetensors")["words.weight"]
    full, fresh = (load_weights(job.folder / "model.safetensors")["words.weight"][: len(before)] for job in jobs[:4:2])
    assert (full - before).abs().mean() < (fresh - before).abs().mean() / 2


def test_a_run_is_known_again_wherever_its_folder_was_named_from(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its labels were the data's, and where it began is the folder's."""
    study, _, out, _ = made
    monkeypatch.chdir(out.parent)
    for job in jobs_of(study, Path(out.name), "full", "lstm"):
        check(job)
    with pytest.raises(ConfigError, match=r"out/small was made with train.steps = 2, but 9 is asked for"):
        check(next(study.only(["full"]).jobs([0], out, {"steps": 9})))


def test_a_row_joins_its_data_sets(made: Made) -> None:
    study, jobs, _, _ = made
    full, _, lstm = read(study, jobs)
    told = [json.loads((job.folder / "evaluation.json").read_text())[job.part.measure]["value"] for job in jobs[:2]]
    assert [full.found[0].numbers[name] for name in ("Tell", "Rate")] == told
    assert full.found[0].numbers[AVERAGE] == pytest.approx(sum(told) / 2)
    assert full.found[0].steps == 3 + 3
    assert AVERAGE not in lstm.found[1].numbers, "of one data set there is no average"
    assert len(lstm.values("Tell")) == 2


def test_the_table_has_a_column_for_each_data_set_and_counts_whole_seeds(made: Made) -> None:
    study, jobs, _, _ = made
    rows = read(study, jobs)
    (table,) = by_cell(study, rows).tables
    head, full, _, lstm = table
    assert head == ["cell", AVERAGE, "Tell", "Rate", "minutes", "seeds"]
    assert (full[-1], lstm[-1]) == ("2", "1 of 2")
    assert "±" in lstm[2]
    assert "±" not in lstm[1]
    text = markdown(study, rows)
    assert "- average: unweighted mean of Tell, Rate" in text
    assert "- Rate: 100 · Pearson correlation" in text
    assert [part["name"] for part in json.loads(json.dumps(as_json(study, rows)))["parts"]] == ["Tell", "Rate"]


def test_the_verb_makes_it(made: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    study, _, out, _ = made
    monkeypatch.setitem(STUDIES, "gpt-ablation", {"glue": study})
    words = ["reproduce", "gpt-ablation", "--quick", "--device", "cpu", "--out", str(out)]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert study.title in printed
    assert "seed 0 (" not in printed, "all of it was there"
    assert (out / "table-quick.svg").exists()


def test_nothing_begins_with_a_run_that_failed(tmp_path: Path) -> None:
    study = small_study(tmp_path, rate=1e30, schedule="constant")
    said = heard(jobs_of(study, tmp_path / "out", "full"), failing=2)
    assert "small, seed 0 failed: " in said
    assert "full, Tell" not in said
    assert not (tmp_path / "out" / "full").exists()
