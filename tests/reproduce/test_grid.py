"""A table whose tasks are lines and whose models are columns: each meeting of the two has settings and a published
figure of its own; a task whose data is missing holds up no other."""

from __future__ import annotations

import io
import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from rich.console import Console

from regard.cli import main
from regard.config import merge
from regard.errors import ConfigError, DataError
from regard.models import build, schema
from regard.prepare import DOUBTS
from regard.reproduce import STUDIES
from regard.reproduce.layout import by_cell, by_part, measured
from regard.reproduce.plot import panels
from regard.reproduce.results import Found, Row, read
from regard.reproduce.study import Cell, Job, Own, Part, Published, Study
from regard.reproduce.table import as_json, markdown, print_table, write_table
from regard.reproduce.tcn import TCN
from regard.reproduce.work import check, work
from regard.training import optim

TABLE = TCN["sequences"]

# ---- the table of the paper

PRINTED = """
Seq. MNIST             87.2    96.2    21.5    99.0
Permuted MNIST         85.7    87.3    25.3    97.2
Adding problem         0.164   5.3e-5  0.177   5.8e-5
Copy memory            0.0204  0.0197  0.0202  3.5e-5
JSB Chorales           8.45    8.43    8.91    8.10
Nottingham             3.29    3.46    4.05    3.07
PTB, words             78.93   92.48   114.50  88.68
WikiText-103           48.4    -       -       45.19
LAMBADA                4186    -       14725   1279
PTB, characters        -       -       -       -
PTB, characters, as the authors read it  1.36  1.37  1.48  1.31
text8                  1.50    1.53    1.69    1.45
"""
# What the data teaches a model: numbers of a step and outputs, or about how many tokens there are.
TAUGHT: dict[str, dict[str, int]] = {
    "adding": {"inputs": 2, "labels": 1},
    "copy": {"inputs": 1, "labels": 10},
    "copy-500": {"inputs": 1, "labels": 10},
    "mnist": {"inputs": 1, "labels": 10},
    "mnist-permuted": {"inputs": 1, "labels": 10},
    "jsb": {"inputs": 88, "labels": 88},
    "nottingham": {"inputs": 88, "labels": 88},
    "ptb": {"vocab": 10_002},
    "wikitext103": {"vocab": 267_738},
    "lambada": {"vocab": 93_218},
    "ptb-char": {"vocab": 54},
    "ptb-char-spelt": {"vocab": 54},
    "text8": {"vocab": 31},
}


def jobs_of(study: Study, out: Path = Path("out"), **only: Any) -> list[Job]:
    return list(study.only(**only).jobs([0], out, {}))


def whole() -> Study:
    """All lines, those of the quick table too."""
    parts = {part.name: part for part in (*TABLE.parts, *TABLE.quick_parts)}
    return replace(TABLE, parts=tuple(parts.values()))


def size(job: Job) -> int:
    recipe = job.recipe()
    with torch.device("meta"):
        model = build(recipe.system, schema(recipe.system)(**{**recipe.model.model_dump(), **TAUGHT[job.part.name]}))  # type: ignore[arg-type]
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_published_figures_are_those_that_were_printed() -> None:
    lines = [line.rsplit(maxsplit=4) for line in PRINTED.strip().splitlines()]
    assert len(lines) == len(TABLE.parts)
    for part, (name, *figures) in zip(TABLE.parts, lines, strict=True):
        assert part.title.startswith(name.strip())
        for cell, figure in zip(TABLE.cells[:4], figures, strict=True):
            theirs = cell.on(part).published
            assert (theirs.printed if theirs else "-") == figure
        assert TABLE.cells[4].on(part).published is None, "the paper has no Transformer"


@pytest.mark.parametrize("name", TAUGHT)
def test_all_models_of_a_task_are_of_one_size_and_learn_for_as_long(name: str) -> None:
    jobs = jobs_of(whole(), parts=[name])
    (tcn,) = (job for job in jobs if job.cell.name == "tcn")
    assert len(jobs) == len(TABLE.cells)
    for job in jobs:
        assert size(job) == pytest.approx(size(tcn), rel=0.12), job.cell.name
        assert _budget(job) == _budget(tcn), job.cell.name
        recipe = job.recipe()
        optim.check(recipe.train, getattr(recipe.model, "dim", None))
        longest = getattr(recipe.model, "longest", None)
        assert longest is None or longest >= recipe.data.longest or "inputs" in TAUGHT[name]


@pytest.mark.parametrize("steps", [1, 12])
def test_all_learn_from_as_much_where_other_steps_are_asked_for(steps: int) -> None:
    budgets: dict[str, set[tuple[int, int]]] = {}
    for job in whole().jobs([0], Path("out"), {"steps": steps}):
        assert 1 <= job.values["train"]["steps"] <= steps
        budgets.setdefault(job.part.name, set()).add(_budget(job))
    assert steps == 1 or all(len(found) == 1 for found in budgets.values())


def noted(study: Study) -> str:
    return markdown(study, read(study, jobs_of(study))).partition("\n- ")[2]


def test_the_notes_are_of_what_is_shown() -> None:
    alone = noted(TABLE.only(["tcn"], ["jsb"]))
    assert "- jsb: one test after training, of the weights that are best" in alone
    assert not re.search("lambada|ptb|mnist|copy|adding|recurrent|searched", alone, re.IGNORECASE)
    quick = noted(TABLE.brief().only(TABLE.quick))
    assert "- copy-500: chance is 0.0400\n" in quick
    assert "- lstm, gru, rnn, transformer: nothing was searched for" in quick
    assert "0.0204" not in quick
    assert "brackets" in quick
    assert "brackets" not in noted(TABLE.only(parts=["copy-500"])), "nothing is published of it"
    assert all(text in noted(TABLE) for part in TABLE.parts for text in part.notes)


# Layers, dropout and clipping of the LSTM in table 3 of the paper, as far as it has the task.
TABLE_3 = {
    "adding": (1, 0.0, 5.0), "mnist": (1, 0.0, 1.0), "mnist-permuted": (1, 0.0, 1.0), "copy": (1, 0.05, 1.0),
    "copy-500": (1, 0.05, 0.25), "jsb": (2, 0.2, 1.0), "nottingham": (1, 0.1, 1.0), "ptb": (3, 0.4, 0.3),
    "ptb-char": (2, 0.1, 0.5), "ptb-char-spelt": (2, 0.1, 0.5), "text8": (1, 0.15, 0.5),
}  # fmt: skip


def test_the_notes_are_true() -> None:
    for job in jobs_of(whole()):
        recipe, said = job.recipe(), " ".join((*job.part.notes, *job.cell.on(job.part).notes))
        assert ("of the last weights" in said) == (recipe.train.final == "last"), job.name
        assert ("best on the validation split" in said) == (recipe.train.final == "best"), job.name
        if "T = " in job.part.title and "Copy" in job.part.title:
            assert f"chance is {10 * math.log(8) / (recipe.data.length + 20):.4f}" in said  # type: ignore[attr-defined]
        if job.cell.name in ("lstm", "gru", "rnn"):
            layers, dropout, clip = TABLE_3.get(job.part.name, (0, 0.0, 0.0))
            model = recipe.model.model_dump()
            assert ("the layers" in said) == ((model["layers"], model["dropout"]) == (layers, dropout)), job.name
            assert ("clipping" in said) == (recipe.train.clip == clip), job.name
            assert ("AdamW" in said) == ("words" in job.part.title), job.name
        else:
            assert "recurrent" not in said


def _budget(job: Job) -> tuple[int, int]:
    """Rows that are learnt from in all, and what counts in them."""
    data, train = job.recipe().data, job.recipe().train
    rows = train.steps * train.rows
    return rows, rows * (data.longest - getattr(data, "context", 0)) if "vocab" in TAUGHT[job.part.name] else 0


def test_the_first_table_of_the_paper_has_the_tcns_of_its_second() -> None:
    """Counted by hand, weight norm's lengths included."""
    wanted = {"adding": 70_369, "copy": 12_530, "mnist": 66_910, "jsb": 269_938, "nottingham": 1_053_238}
    for name, count in wanted.items():
        assert size(*jobs_of(TABLE, cells=["tcn"], parts=[name])) == count
    assert size(*jobs_of(TABLE, cells=["lstm"], parts=["adding"])) == 69_811
    assert size(*jobs_of(TABLE, cells=["lstm"], parts=["copy"])) == 11_110


def test_characters_are_read_as_the_file_has_them_and_as_the_authors_do() -> None:
    """But for the text and what was published of it, the two lines are one."""
    plain, spelt = (jobs_of(TABLE, parts=[name]) for name in ("ptb-char", "ptb-char-spelt"))
    for one, other in zip(plain, spelt, strict=True):
        assert (one.recipe().data.documents, other.recipe().data.documents) == ("line", "spelt")  # type: ignore[attr-defined]
        asked = merge(one.values, {"data": {"documents": "spelt"}, "title": other.values["title"]})
        assert asked == other.values


def test_in_little_time_a_part_of_it_is_made() -> None:
    brief = TABLE.brief().only(TABLE.quick)
    names = [f"{job.cell.name}/{job.part.name}" for job in brief.jobs(brief.seeds, Path("out"), {})]
    cells = ("lstm", "gru", "rnn", "tcn", "transformer")
    assert names == [f"{cell}/{part}" for cell in cells for part in ("jsb", "copy-500")]
    assert all(job.recipe().train.threads == 1 for job in jobs_of(brief)), "each core has a run of its own"
    whole, short = (jobs_of(study, cells=["tcn"], parts=["jsb"])[0] for study in (TABLE, brief))
    assert whole.values == short.values, "what is made in little time need not be made again"
    assert whole.folder == short.folder


# ---- the frame, with three small tasks

SERIES = {
    "system": "tcn",
    "model": {"dim": 4, "levels": 1, "kernel": 2, "dropout": 0.0},
    "train": {
        "steps": 2, "rows": 4, "tokens": 256, "warmup": 0, "save_every": 2, "evaluate_every": 0, "log_every": 1,
        "threads": 1, "device": "cpu",
    },
}  # fmt: skip
PAPER = "somebody's table 2"


def small_study(home: Path) -> Study:
    """Sums and copies can be made; of the third task there are no files."""
    sums = {"data": {"made": "adding", "length": 6, "count": 40}, "task": {"name": "series", "kind": "number"}}
    copies = {"data": {"made": "copy", "length": 3, "count": 40}, "task": {"name": "series", "kind": "labels"}}
    gone = {"data": {"train": ["mnist/train-images-idx3-ubyte.gz"]}, "task": {"name": "series"}}
    for name, some in {"sums": sums, "copies": copies, "gone": gone}.items():
        tiny.write_recipe(home / f"{name}.toml", merge(SERIES, some))
    parts = (
        Part("sums", str(home / "sums.toml"), "loss", title="Sums"),
        Part("copies", str(home / "copies.toml"), "accuracy"),
        Part("gone", str(home / "gone.toml"), "accuracy", title="Digits"),
    )
    return Study(
        title="Three tasks",
        parts=parts,
        cells=(
            Cell(
                "lstm",
                {"system": "recurrent", "model": {"cell": "lstm", "layers": 1, "dim": 5}},
                each={"sums": Own({"model": {"dim": 7}, "train": {"optimizer": "sgd"}}, Published("0.164", PAPER))},
            ),
            Cell("tcn", each={"gone": Own(published=Published("99.0", PAPER))}),
        ),
        columns=tuple(part.name for part in parts),
        lay=by_part,
        draw=panels,
        seeds=(0, 1),
        quick=("tcn",),
        quick_parts=(replace(parts[0], name="few-sums", settings={"data": {"length": 4}}),),
    )


Made = tuple[Study, list[Row], Path, str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """All that can be made of it but the last run; and what was said."""
    home = tmp_path_factory.mktemp("grid")
    study, said = small_study(home), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_DATA", str(home))
        jobs = list(study.jobs(study.seeds, home / "out", {}))
        some = [job for job in jobs if (job.cell.name, job.part.name, job.seed) != ("tcn", "copies", 1)]
        assert work(some, Console(file=said, width=300)) == []
        return study, read(study, jobs), home / "out", said.getvalue()


def test_a_cell_has_settings_of_its_own_for_a_part(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    found = {(job.cell.name, job.part.name): job.values for job in jobs_of(study)}
    assert found["lstm", "sums"]["model"] == {"cell": "lstm", "layers": 1, "dim": 7}, "nothing is left of the TCN's"
    assert found["lstm", "copies"]["model"]["dim"] == 5
    assert found["lstm", "sums"]["train"]["optimizer"] == "sgd"
    assert found["tcn", "sums"]["model"] == SERIES["model"]
    assert all(found[cell, "sums"]["train"]["steps"] == 2 for cell in ("lstm", "tcn"))


def test_whoever_has_data_goes_on_without_the_others(made: Made) -> None:
    _, rows, _, said = made
    assert said.count("left out: all that needs mnist/train-images-idx3-ubyte.gz, which is not there") == 1
    assert "seed 1 (7 of 7)" in said
    lstm, tcn = rows
    assert [lstm.each[name].missing for name in ("sums", "gone")] == ["", "mnist/train-images-idx3-ubyte.gz"]
    assert len(tcn.each["copies"].found) == 1
    assert set(tcn.found[0].numbers) >= {"sums", "copies", "minutes"}


def test_where_nobody_has_data_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"mnist/train-images.*: no such file; looked for .*: regard fetch mnist gets"):
        work(jobs_of(small_study(tmp_path), tmp_path / "out", parts=["gone"]), Console(quiet=True))
    assert not (tmp_path / "out").exists()


def test_tasks_are_lines_and_models_are_columns(made: Made) -> None:
    study, rows, _, _ = made
    figures, costs = by_part(study, rows).tables
    assert figures[0] == ["task", "lstm", "tcn"]
    sums, copies, gone = figures[1:]
    assert sums[0] == "Sums, loss ↓"
    assert copies[0] == "copies, accuracy ↑"
    assert sums[1].endswith(" (0.164)")
    assert "±" in sums[1]
    assert "±" not in copies[2], "one run has no spread"
    assert gone == ["Digits, accuracy ↑", "no data", "no data (99.0)"]
    assert costs[0] == ["task", "cell", "parameters", "minutes", "flops", "steps", "seeds", "device"]
    assert [line[:2] for line in costs[1:]] == [
        ["Sums", "lstm"], ["Sums", "tcn"], ["copies", "lstm"], ["copies", "tcn"],
    ]  # fmt: skip
    assert [line[6] for line in costs[1:]] == ["2", "2", "2", "1 of 2"]
    assert {line[5] for line in costs[1:]} == {"2"}


@pytest.mark.parametrize(
    ("measure", "values", "told"),
    [
        ("loss", (11.464, 11.736), "11.6 ± 0.2"),
        ("loss", (0.000157, 0.000179), "0.000168 ± 0.000016"),
        ("loss", (1.2e-9, 1.4e-9), "1.30e-09 ± 0.14e-09"),
        ("loss", (8.2,), "8.20"),
        ("accuracy", (99.0, 99.2), "99.10 ± 0.14"),
    ],
)
def test_a_spread_has_the_decimals_of_its_mean(measure: str, values: tuple[float, ...], told: str) -> None:
    found = {i: Found({measure: {"value": value, "definition": ""}}, "cpu", 1) for i, value in enumerate(values)}
    assert measured(Row(Cell("any"), (0, 1), found), Part("any", "any", measure)) == told


def test_the_notes_say_what_is_measured_what_is_missing_and_who_published(made: Made) -> None:
    study, rows, _, _ = made
    lines = markdown(study, rows).splitlines()
    assert any(line.startswith("- sums: mean squared error of 1000 numbers") for line in lines)
    assert "- published, lstm, tcn: somebody's table 2" in lines
    (missing,) = (line for line in lines if line.startswith("- no data: "))
    assert "mnist/train-images-idx3-ubyte.gz is missing; it belongs to MNIST" in missing
    assert "regard fetch mnist" in missing
    assert str(Path.home()) not in missing


def test_the_forms_agree_and_the_picture_has_a_panel_for_each_task(made: Made) -> None:
    study, rows, out, _ = made
    printed = io.StringIO()
    console = Console(file=printed, width=200)
    print_table(study, rows, console)
    write_table(study, rows, out, console)
    told = json.loads((out / "table.json").read_text("utf-8"))
    assert told == json.loads(json.dumps(as_json(study, rows)))
    mean = told["cells"][0]["parts"]["sums"]["mean"]["loss"]
    for text in (printed.getvalue(), (out / "table.md").read_text("utf-8")):
        assert f"{mean:.3g} ± " in text
        assert text.count("no data") == 3
    assert told["cells"][1]["parts"]["gone"]["published"]["value"] == 99.0
    drawn = (out / "table.svg").read_text("utf-8")
    assert all(word in drawn for word in ("Sums, loss ↓", "copies, accuracy ↑", "Digits, accuracy ↑", "lstm", "hollow"))


def test_a_figure_of_other_data_than_the_published_is_marked(made: Made, tmp_path: Path) -> None:
    study, _, out, _ = made
    shutil.copytree(out / "lstm", tmp_path / "lstm")
    wrong = "sums.mat: it has 5 bytes, where 9 were wanted, so it is not the published file of sums"
    (tmp_path / "lstm" / "sums" / "seed-1" / DOUBTS).write_text(json.dumps([wrong]), "utf-8")
    some = study.only(["lstm"], ["sums", "copies"])
    rows = read(some, list(some.jobs(study.seeds, tmp_path, {})))
    (_, sums), (_, copies) = by_part(some, rows).tables[0][1:]
    assert sums.endswith("† (0.164)")
    assert "†" not in copies
    assert f"- † lstm: {wrong}" in markdown(some, rows).splitlines()
    assert as_json(some, rows)["cells"][0]["parts"]["sums"]["doubts"] == (wrong,)  # type: ignore[index]
    assert by_cell(some, rows).tables[0][1][0] == "lstm†"


def test_a_part_of_a_table_has_files_of_its_own(made: Made, tmp_path: Path) -> None:
    study, _, _, _ = made
    quick = study.brief()
    asked = {
        "table": study,
        "table-sums": study.only(parts=["sums"]),
        "table-lstm-tcn-sums": study.only(["tcn", "lstm"], ["sums"]),
        "table-quick": quick.only(quick.quick),
        "table-quick-lstm": quick.only(["lstm"]),
    }
    for some in asked.values():
        rows = read(some, list(some.jobs(some.seeds, tmp_path / "none", {})))
        write_table(some, rows, tmp_path, Console(quiet=True))
    assert {path.stem for path in tmp_path.glob("*.md")} == set(asked)


def test_a_run_is_known_again_though_the_data_has_taught_it_its_inputs(made: Made) -> None:
    study, _, out, _ = made
    for job in jobs_of(study, out, parts=["sums", "copies"]):
        assert job.finished
        check(job)


def test_the_verb_takes_parts_and_a_quick_table_has_its_own(
    made: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    study, _, out, _ = made
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    monkeypatch.setitem(STUDIES, "tcn", {"sequences": study})
    words = ["reproduce", "tcn", "--device", "cpu", "--out", str(out)]
    assert main([*words, "--parts", "sums", "--cells", "tcn", "--show"]) == 0
    said = capsys.readouterr().out
    assert "Sums, loss" in said
    assert "copies" not in said
    assert main([*words, "--quick", "--show"]) == 0
    assert capsys.readouterr().out.count("not run") == 1
    assert main([*words, "--parts", "sum", "--show"]) == 2
    assert "--parts: no part 'sum' in this table; did you mean 'sums'?" in " ".join(capsys.readouterr().err.split())


def test_a_part_of_the_quick_table_can_be_asked_for_alone() -> None:
    (job,) = jobs_of(TABLE, cells=["tcn"], parts=["copy-500"])
    (quick,) = jobs_of(TABLE.brief(), cells=["tcn"], parts=["copy-500"])
    assert job == quick
    some = TABLE.only(parts=["copy-500", "jsb"])
    assert some.columns == tuple(part.name for part in some.parts) == ("jsb", "copy-500")
    assert some.asked == ("jsb", "copy-500")
    assert "copy-500" not in TABLE.only(["tcn"]).columns


def test_a_table_without_parts_has_none_to_choose() -> None:
    with pytest.raises(ConfigError, match="--parts: no part 'x' in this table; known: none"):
        STUDIES["dna"]["splice"].only(parts=["x"])
