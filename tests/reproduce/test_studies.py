"""Every cell of every table can be built and learns; mistakes on the command line are answered in a sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from regard.cli import main
from regard.config import Recipe, make_recipe, merge, task_of, write_toml
from regard.models import build, schema
from regard.prepare import prepare
from regard.recipes import find_recipe
from regard.reproduce import STUDIES
from regard.reproduce.layout import by_part
from regard.reproduce.study import Cell, Study
from regard.reproduce.work import check

ONE = {name: {data: study for data, study in some.items() if study.recipe} for name, some in STUDIES.items()}
ALL = [(name, data, cell) for name in ONE for data, study in ONE[name].items() for cell in study.cells]
SMALL = {
    "rewrite": {
        "data": {"made": "copy", "count": 40, "held": 2, "longest": 9},
        "tokens": {"kind": "word", "least": 1},
        "train": {"tokens": 128},
    },
    "classify": {"data": {"longest": 12}, "tokens": {"least": 1}, "train": {"tokens": 128}},
}
Told = Callable[..., str]


MODELS = {
    "seq2seq": {"dim": 12, "embedding": 10, "dropout": 0.0},
    "transformer": {"dim": 16, "hidden": 32, "dropout": 0.0},
    "tcn": {"dim": 12, "embedding": 10, "dropout": 0.0},
    "recurrent": {"dim": 12, "embedding": 10, "dropout": 0.0},
    "bert": {"dim": 16, "hidden": 32, "dropout": 0.0},
}


def recipe_of(study: Study, cell: Cell, file: Path = Path("none")) -> Recipe:
    """The cell with a small model and little data: made, or all of it in one file."""
    (job,) = study.only([cell.name]).jobs([0], Path("out"), {})
    name = task_of(job.values)
    files = {} if name == "rewrite" else {split: [str(file)] for split in ("train", "valid", "test")}
    small = merge(SMALL[name], {"data": files, "model": MODELS[job.values["system"]]})
    return make_recipe(merge(job.values, small), schema)


def labelled(study: Study, folder: Path) -> Path:
    """A few examples as the study's own files have them."""
    every = map("".join, product("ACGT", repeat=4))
    rows = [(letters, "EI" if "A" in letters else "N") for letters in every]
    comma = study.recipe == "dna"
    path = folder / "some.data"
    path.write_text("".join(f"{y}, NAME, {x}\n" if comma else f"{y} {x.lower()} !\n" for x, y in rows), "utf-8")
    return path


@pytest.mark.parametrize(("name", "data", "cell"), ALL, ids=[f"{n}-{d}-{c.name}" for n, d, c in ALL])
def test_every_cell_learns_from_a_step(name: str, data: str, cell: Cell, tmp_path: Path) -> None:
    study = STUDIES[name][data]
    recipe, task = prepare(recipe_of(study, cell, labelled(study, tmp_path)), tmp_path)
    model = build(recipe.system, recipe.model)  # type: ignore[arg-type]
    batch = task.batch("train", 0)

    def surprise() -> float:
        with torch.no_grad():
            loss = task.loss(model.eval(), batch, None)
            return float(loss.parts.get("nll", loss.total))

    before = surprise()
    loss = task.loss(model.train(), batch, None)
    torch.autograd.backward(loss.total / loss.count)
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    assert recipe.task.name == "classify" or all(p.grad is not None for p in model.parameters())
    torch.optim.SGD(model.parameters(), 0.1).step()
    assert surprise() < before


@pytest.mark.parametrize("cell", STUDIES["dna"]["splice"].cells, ids=lambda cell: cell.name)
def test_what_the_data_decides_makes_no_other_cell(cell: Cell, tmp_path: Path) -> None:
    study = STUDIES["dna"]["splice"]
    (job,) = study.only([cell.name]).jobs([0], tmp_path, {})
    files = {split: [str(labelled(study, tmp_path))] for split in ("train", "valid", "test")}
    job = replace(job, folder=tmp_path, values=merge(job.values, {"data": files}))
    recipe, _ = prepare(job.recipe(), tmp_path)
    (tmp_path / "recipe.toml").write_text(write_toml(recipe), "utf-8")
    check(job)


@pytest.mark.parametrize("name", [name for name in ONE if ONE[name]])
def test_every_cell_of_a_table_is_another_model(name: str) -> None:
    for study in ONE[name].values():
        models = [recipe_of(study, cell).model.model_dump_json() for cell in study.cells]
        assert len(set(models)) == len(models)
        assert find_recipe(study.recipe).exists()


@pytest.mark.parametrize("name", STUDIES)
def test_every_cell_has_a_name_of_its_own(name: str) -> None:
    for study in STUDIES[name].values():
        names = [cell.name for cell in study.cells]
        assert len(set(names)) == len(names)
        assert set(study.quick) <= set(names)
        assert study.quick_parts or len(study.quick) < len(names)
        parts = [part.name for part in study.parts]
        assert len(set(parts)) == len(parts)


# ---- the verb


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """What a command says, which must end with this code."""

    def run(code: int, *words: str | Path) -> str:
        assert main(["reproduce", *map(str, words)]) == code
        printed = capsys.readouterr()
        return " ".join((printed.out if code == 0 else printed.err).split())

    return run


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            (),
            "reproduce what? Name one table: attention or ladder or length or gpt-ablation or tcn or sentiment or dna",
        ),
        (
            ("attention", "length"),
            "reproduce what? Name one table: attention or ladder or length or gpt-ablation or tcn or sentiment or dna",
        ),
        (("atention",), "no table 'atention'; did you mean 'attention'?"),
        (("length", "--data", "multi30k"), "the table 'length' is not made of 'multi30k'; known: copy, spoken"),
        (("attention", "--data", "spokn"), "the table 'attention' is not made of 'spokn'; did you mean 'spoken'?"),
        (("attention", "--cells", "dott"), "--cells: no cell 'dott' in this table; did you mean 'dot'?"),
        (("attention", "--seed", "1"), "seed: no such setting; did you mean 'seeds'?"),
        (("attention", "--seeds", "-1"), "seeds.0: must be greater than or equal to 0, but it is -1"),
        (("attention", "--side-by-side", "0"), "side_by_side: must be greater than or equal to 1, but it is 0"),
    ],
)
def test_mistakes(told: Told, words: tuple[str, ...], sentence: str) -> None:
    assert sentence in told(2, *words)


def test_a_place_where_no_run_can_be_is_told_before_anything_is_begun(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert told(2, "length", "--device", "gpu").startswith("regard: device: no device 'gpu' here; write auto or one of")
    (tmp_path / "file").touch()
    for out in ("file", "file/runs", "/proc/runs"):
        said = told(2, "length", "--device", "cpu", "--out", out)
        assert said.startswith(f"regard: --out: {out} cannot be written: ")
        assert said.endswith("; name another folder")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_data_that_is_missing_is_told_before_anything_is_begun(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    for at_once in ("1", "2"):
        said = told(3, "attention", "--data", "multi30k", "--side-by-side", at_once)
        assert "multi30k/raw/train.de: no such file" in said
        assert "REGARD_DATA" in said
    assert list(tmp_path.iterdir()) == []


def test_what_was_not_run_is_shown_as_such(told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, tables in STUDIES.items():
        for data, study in tables.items():
            one, grid = study.cells[0].name, study.lay is by_part
            for words, cells in (([], len(study.cells)), (["--quick"], len(study.quick)), (["--cells", one], 1)):
                parts = study.quick_parts if "--quick" in words else study.parts
                said = told(0, name, "--data", data, "--show", *words)
                absent = re.findall("not run|no data", said.partition(" - ")[0])
                assert len(absent) == cells * (len(parts) if grid else 1)
                assert study.title in said
    assert list(tmp_path.iterdir()) == []
