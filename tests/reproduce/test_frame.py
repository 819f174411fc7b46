"""Tables of runs: begun, stopped, gone on with, read. What was not run says so, and what fails stops nothing else."""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import tiny
import torch
from rich.console import Console

from regard.cli import main
from regard.config import write_toml
from regard.errors import ConfigError, RegardError
from regard.reproduce import STUDIES
from regard.reproduce.layout import absent, by_cell
from regard.reproduce.plot import points
from regard.reproduce.results import read
from regard.reproduce.study import Cell, Job, Published, Study
from regard.reproduce.table import as_json, markdown, print_table, write_table
from regard.reproduce.work import check, room, work
from regard.training.stop import Stopped
from regard.weights import load_weights

MODEL = "model.safetensors"
PAPER = Published("28.40", "somebody's table 1")
VALUES = tiny.recipe(
    data={"count": 120, "held": 6},
    model={"dim": 16, "hidden": 16},
    train={"steps": 6, "save_every": 2, "log_every": 2, "tokens": 256},
    decode={"longest": 4},
)


class Tripwire(io.StringIO):
    """Ears that do something when they hear a word, once."""

    def __init__(self, word: str, do: Callable[[], None]) -> None:
        super().__init__()
        self.word, self.do, self.armed = word, do, True

    def write(self, text: str) -> int:
        if self.armed and self.word in text:
            self.armed = False
            self.do()
        return super().write(text)


def two_widths(folder: Path) -> Study:
    return Study(
        title="Two widths",
        recipe=str(tiny.write_recipe(folder / "base.toml", VALUES)),
        cells=(
            Cell("mad", {"train": {"rate": 1e30, "warmup": 0, "schedule": "constant"}}),
            Cell("narrow", {"model": {"dim": 8}}, PAPER),
            Cell("wide"),
        ),
        columns=("perplexity", "bleu", "parameters", "minutes", "flops"),
        lay=by_cell,
        draw=points,
        notes=("two widths differ in nothing else",),
    )


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return two_widths(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, list[Job], Path]:
    """A table of two cells and two seeds, of which one run is missing."""
    home = tmp_path_factory.mktemp("made")
    study, out = two_widths(home), home / "out"
    jobs = jobs_of(study, out, "narrow", "wide", seeds=(0, 1))
    assert [str(job.folder.relative_to(out)) for job in jobs] == [
        "narrow/seed-0", "wide/seed-0", "narrow/seed-1", "wide/seed-1",
    ]  # fmt: skip
    assert heard(jobs[:3]).count("step 6/6") == 2 * 3
    return study, jobs, out


def jobs_of(study: Study, out: Path, *names: str, seeds: tuple[int, ...] = (0,), **train: Any) -> list[Job]:
    return list(study.only(names).jobs(seeds, out, train))


def heard(jobs: list[Job], **how: Any) -> str:
    text = io.StringIO()
    assert work(jobs, Console(file=text, width=200), **how) == []
    return text.getvalue()


Made = tuple[Study, list[Job], Path]


def test_a_finished_run_is_read_and_not_made_again(made: Made) -> None:
    study, jobs, _ = made
    assert heard(jobs[:3]) == ""
    narrow, wide = read(study, jobs)
    told = [json.loads((job.folder / "evaluation.json").read_text())["perplexity"]["value"] for job in jobs[0:3:2]]
    assert told[0] != told[1], "seeds differ"
    assert narrow.values("perplexity") == told
    assert narrow.mean("perplexity") == pytest.approx(sum(told) / 2)
    assert narrow.spread("perplexity") == pytest.approx(abs(told[0] - told[1]) / 2**0.5)
    assert wide.spread("perplexity") is None, "one run has no spread"
    assert wide.values("parameters") == [sum(t.numel() for t in load_weights(jobs[1].folder / MODEL).values())]
    for cost in ("parameters", "flops"):
        assert 0 < narrow.values(cost)[0] < wide.values(cost)[0]


def test_what_was_stopped_goes_on_as_if_nothing_had_happened(study: Study, tmp_path: Path) -> None:
    (stopped,), (whole,) = (jobs_of(study, tmp_path / out, "narrow") for out in ("stopped", "whole"))
    ears = Tripwire("step 2/6", lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Stopped, match="stopped by SIGINT; every run is saved, and the same command goes on") as caught:
        work([stopped], Console(file=ears, width=200))
    assert caught.value.code == 130
    assert stopped.begun
    assert not stopped.finished
    assert told_of(study, stopped) == "stopped at step 2"
    with held(stopped.folder):
        assert told_of(study, stopped) == "in training, at step 2"
        assert heard([stopped]) == "left out: narrow, seed 0, which another process is training\n"
    assert "going on from step 2" in heard([stopped])
    heard([whole])
    assert tiny.weights_hash(stopped.folder) == tiny.weights_hash(whole.folder)


def told_of(study: Study, job: Job) -> str:
    """What the table has in place of its figures."""
    return absent(*read(study, [job]))


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """As by the process that trains it."""
    handle = os.open(folder, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    yield
    os.close(handle)


def test_steps_that_were_saved_count_though_none_was_logged(study: Study, tmp_path: Path) -> None:
    (job,) = jobs_of(study, tmp_path, "wide")
    assert told_of(study, job) == "not run"
    job.folder.mkdir(parents=True)
    (job.folder / "recipe.toml").write_text(write_toml(job.recipe()), "utf-8")
    assert told_of(study, job) == "stopped at step 0"
    (job.folder / "checkpoints" / "step-00001234").mkdir(parents=True)
    assert told_of(study, job) == "stopped at step 1,234"


def test_a_run_that_fails_stops_no_other(study: Study, tmp_path: Path) -> None:
    said = io.StringIO()
    mad, narrow = jobs_of(study, tmp_path / "out", "mad", "narrow")
    assert work([mad, narrow], Console(file=said, width=500)) == [mad]
    assert re.search(r"mad, seed 0 failed: .*(loss|gradient|weight)", said.getvalue())
    assert narrow.finished


@contextmanager
def busy(log: Path) -> Iterator[None]:
    """A process of which nobody knows any more writes on."""
    over = Event()

    def write() -> None:
        with log.open("a") as file:
            while not over.wait(0.01):
                print("step 800/800", file=file, flush=True)

    other = Thread(target=write)
    other.start()
    try:
        yield
    finally:
        over.set()
        other.join()


def test_side_by_side_they_are_the_same_runs_and_are_stopped_together(study: Study, made: Made, tmp_path: Path) -> None:
    mad, narrow = jobs_of(study, tmp_path / "out", "mad", "narrow")
    ears = Tripwire("narrow, seed 0: begun", lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped, match="stopped by SIGTERM; every run is saved, and the same command goes on"):
        work([mad, narrow], Console(file=ears, width=500), at_once=2)
    assert not narrow.finished
    said = io.StringIO()
    with busy(mad.folder.with_name("seed-0.log")):
        assert work([mad, narrow], Console(file=said, width=500), at_once=2) == [mad]
    assert re.search(r"mad, seed 0: failed with exit code 5: regard: .*(loss|gradient|weight)", said.getvalue())
    assert "narrow, seed 0: finished" in said.getvalue()
    assert "parameters" in (tmp_path / "out" / "narrow" / "seed-0.log").read_text("utf-8")
    assert tiny.weights_hash(narrow.folder) == tiny.weights_hash(made[1][0].folder)


def test_on_a_cpu_as_many_go_at_a_time_as_it_has_room_for(
    study: Study, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cores, threads, wanted in ((1, 1, 1), (2, 1, 2), (8, 1, 3), (8, 4, 2), (8, 6, 1), (2, 0, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        assert room(jobs_of(study, tmp_path, threads=threads)) == wanted, (cores, threads)
    assert room(made[1]) == 1, "what is finished needs no room"


def test_how_many_threads_a_run_has_is_its_own_matter(study: Study, made: Made, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    (job,) = jobs_of(study, tmp_path, "narrow", threads=before + 1)
    heard([job])
    assert json.loads((job.folder / "env.json").read_text("utf-8"))["threads"] == before + 1
    assert torch.get_num_threads() == before
    check(*jobs_of(study, made[2], "narrow", threads=before + 1))


def test_a_run_with_other_settings_is_shown_with_a_note(made: Made) -> None:
    study, jobs, out = made
    assert "made with" not in markdown(study, read(study, jobs))
    asked = jobs_of(study, out, "narrow", "wide", steps=9)
    lines = markdown(study, read(study, asked)).splitlines()
    for name in ("narrow", "wide"):
        assert f"- {name}, seed 0: made with train.steps = 6, but 9 is asked for" in lines


def test_a_run_with_other_settings_is_not_taken_for_this_cell(made: Made) -> None:
    study, _, out = made
    for train in ({}, {"device": "cpu"}):
        check(*jobs_of(study, out, "narrow", **train))
    with pytest.raises(ConfigError, match=r"made with train.steps = 6, but 9 is asked for; choose another folder with"):
        check(*jobs_of(study, out, "narrow", steps=9))
    other = replace(jobs_of(study, out, "narrow")[0], values={"system": "seq2seq", "data": {"made": "spoken"}})
    with pytest.raises(ConfigError, match="made with system = 'transformer', but 'seq2seq' is asked for"):
        check(other)


DAMAGES = {
    "evaluation.json": ("{", "[]", '{"loss": 3}', '{"loss": {"value": "low", "definition": ""}}'),
    "metrics.jsonl": ("", "3", '{"step": 6}'),
    "env.json": ("", "[]", "{}"),
    "recipe.toml": ("", "system = [", 'format = 1\nsystem = "nothing"'),
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, some in DAMAGES.items() for text in some])
def test_a_damaged_run_is_told_with_its_file_and_holds_up_no_other(
    made: Made, tmp_path: Path, name: str, text: str
) -> None:
    study, _, out = made
    shutil.copytree(out, tmp_path / "out")
    narrow, wide = jobs = jobs_of(study, tmp_path / "out", "narrow", "wide")
    (narrow.folder / name).write_text(text, "utf-8")
    for job in jobs:
        check(job)
    work(jobs, Console(quiet=True))
    (bad, good), printed = read(study, jobs), io.StringIO()
    assert absent(bad) == "damaged"
    assert not bad.found
    assert good.found
    (sentence,) = bad.damaged
    assert sentence.startswith(f"narrow, seed 0: {narrow.folder}")
    assert name in sentence
    print_table(study, [bad, good], Console(file=printed, width=500))
    assert f"- {sentence}\n" in printed.getvalue()
    assert json.loads(json.dumps(as_json(study, [bad, good])))["cells"][0]["damaged"] == [sentence]
    assert (wide.folder / "evaluation.json").exists()


def test_the_verb_goes_on_beside_a_damaged_run(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study, _, out = made
    monkeypatch.setitem(STUDIES, "widths", {"spoken": study})
    shutil.copytree(out, tmp_path / "out")
    bad, other = jobs_of(study, tmp_path / "out", "narrow", "wide")
    (bad.folder / "recipe.toml").write_text("system = [", "utf-8")
    shutil.rmtree(other.folder)
    words = ["reproduce", "widths", "--cells", "narrow", "wide", "--seeds", "0", "--out", str(tmp_path / "out")]
    assert main([*words, "--show"]) == 0
    assert capsys.readouterr().out.count("damaged") == 1
    assert main([*words, "--device", "cpu"]) == 4
    assert other.finished
    printed = capsys.readouterr()
    assert f"left out: narrow, seed 0, which is damaged: {bad.folder} has a recipe.toml that cannot" in printed.out
    assert "1 of 2 runs are damaged and were left as they are; what is written below the table" in printed.err


def test_a_cell_that_is_not_known_is_answered_with_the_nearest(study: Study) -> None:
    with pytest.raises(ConfigError, match=r"--cells: no cell 'narow' in this table; did you mean 'narrow'\?"):
        study.only(["narow"])
    assert [cell.name for cell in study.only(["wide", "narrow"]).cells] == ["narrow", "wide"], "the table has one order"


def test_the_verb_makes_a_table_and_says_what_failed(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(STUDIES, "widths", {"spoken": study})
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "widths", "--cells", "narrow", "mad", "--seeds", "3", "--steps", "4", "--device", "cpu"]
    assert main(words) == 1
    printed = capsys.readouterr()
    assert "1 of 2 runs failed: mad, seed 3; the same command tries them again" in " ".join(printed.err.split())
    assert "Two widths" in printed.out
    assert (tmp_path / "runs" / "widths-spoken" / "table-mad-narrow-seeds-3.md").exists()
    assert main([*words, "--show"]) == 0
    said = capsys.readouterr().out
    assert "made in 4 steps" in said
    assert said.count("stopped at step") == 1
    assert main(["reproduce", "widths", "--show"]) == 0, "other seeds are other runs"
    assert capsys.readouterr().out.count("not run") == 3


# ---- what is shown


def test_a_table_says_what_was_run_and_what_was_not(made: Made) -> None:
    study, jobs, _ = made
    lines = markdown(study, read(study, jobs)).splitlines()
    cells = {line.split("|")[1].strip(): [part.strip() for part in line.split("|")[2:-1]] for line in lines[2:6]}
    assert cells["cell"] == ["ppl", *study.columns[1:], "seeds", "published"]
    assert re.fullmatch(r"\d+\.\d\d ± \d+\.\d\d", cells["narrow"][0])
    assert re.fullmatch(r"[\d,]+", cells["narrow"][2]), "what it costs is told without a spread"
    assert cells["narrow"][5:] == ["2", "28.40"]
    assert re.fullmatch(r"\d+\.\d\d", cells["wide"][0])
    assert cells["wide"][5:] == ["1 of 2", ""]
    assert "- two widths differ in nothing else" in lines
    assert len([line for line in lines if line.startswith("- made in 6 steps on ")]) == 1
    assert "- published, narrow: somebody's table 1" in lines
    assert len([line for line in lines if "tok:13a" in line]) == 1, "a score never travels without its definition"


def test_the_three_forms_agree(made: Made) -> None:
    study, jobs, out = made
    rows, printed = read(study, [jobs[0], jobs[3]]), io.StringIO()
    console = Console(file=printed, width=200)
    print_table(study, rows, console)
    write_table(study, rows, out, console)
    stem = "table-seeds-0"
    told = json.loads((out / f"{stem}.json").read_text("utf-8"))
    assert told == json.loads(json.dumps(as_json(study, rows)))
    narrow, wide = told["cells"]
    assert narrow["seeds"]["0"]["perplexity"] == narrow["mean"]["perplexity"]
    assert narrow["published"] == {"printed": "28.40", "value": 28.4, "where": "somebody's table 1", "measure": ""}
    assert wide["seeds"] == {}
    for text in (printed.getvalue(), (out / f"{stem}.md").read_text("utf-8")):
        assert f"{narrow['mean']['perplexity']:.2f}" in text
        assert "not run" in text
    written = {f"{stem}.{kind}" for kind in ("md", "json", "png", "svg")}
    assert {path.name for path in out.iterdir()} == {"narrow", "wide", *written}
    said = (out / f"{stem}.svg").read_text("utf-8")
    assert all(word in said for word in ("narrow", "wide", "not run", "perplexity", "Two widths"))


def test_a_table_of_nothing_is_shown_and_leaves_nothing(study: Study, tmp_path: Path) -> None:
    rows, printed = read(study, jobs_of(study, tmp_path / "out", "narrow", "wide")), io.StringIO()
    print_table(study, rows, Console(file=printed, width=200))
    assert printed.getvalue().count("not run") == 2
    assert not (tmp_path / "out").exists()


def test_a_table_that_cannot_be_written_says_so(study: Study, tmp_path: Path) -> None:
    (tmp_path / "out" / "table.md").mkdir(parents=True)
    rows = read(study, jobs_of(study, tmp_path / "out", "wide", seeds=study.seeds))
    with pytest.raises(RegardError, match=r"out: cannot be written: .*; make room, or choose another --out"):
        write_table(study, rows, tmp_path / "out", Console(quiet=True))
