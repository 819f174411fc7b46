"""Runs from their first moment to their last, whatever stops them on the way."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
from rich.console import Console

import regard
from regard import run
from regard.cli import main
from regard.config import make_recipe, read_toml
from regard.data.store import Store
from regard.data.tokenizer import Tokenizer
from regard.errors import ConfigError, RegardError
from regard.models import schema
from regard.prepare import rewrite as prepare
from regard.tasks.rewrite import MEASURES
from regard.training import checkpoint

QUIET = Console(quiet=True)
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["regard.run", "torch._dynamo"])  # imported once, and not once for every kill


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing has disturbed; it is only ever read."""
    return tiny.train(tmp_path_factory.mktemp("calm") / "run")


# ---- data in, model out


def test_two_files_a_tsv_and_a_jsonl_give_the_same_run(tmp_path: Path) -> None:
    lines = tiny.pairs(120)
    two = tiny.write_pairs(tmp_path, lines)
    tsv, swapped, jsonl = (tmp_path / name for name in ("text.tsv", "swapped.tsv", "text.jsonl"))
    tsv.write_text("".join(f"{s}\t{t}\n" for s, t in lines), "utf-8")
    swapped.write_text("".join(f"x\t{t}\t{s}\n" for s, t in lines), "utf-8")
    jsonl.write_text("".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in lines), "utf-8")
    recipes = {
        "two": tiny.from_files(*two),
        "tsv": tiny.from_files(tsv),
        "swapped": tiny.from_files(swapped, data={"fields": [2, 1]}),
        "jsonl": tiny.from_files(jsonl),
    }
    hashes = {name: tiny.weights_hash(tiny.train(tmp_path / name, values)) for name, values in recipes.items()}
    assert len(set(hashes.values())) == 1, hashes


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "word", "char"])
@pytest.mark.parametrize("joint", [True, False])
def test_every_kind_of_vocabulary_trains(kind: str, joint: bool, tmp_path: Path) -> None:
    files = tiny.write_pairs(tmp_path, tiny.pairs(80))
    tokens = {"kind": kind, "joint": joint, "size": 400, "lowercase": True}
    values = tiny.from_files(*files, tokens=tokens, train={"steps": 2})
    model = regard.load(tiny.train(tmp_path / "run", values))
    assert model.tokenizers.joint is joint
    assert isinstance(model("Twenty-Three"), str)
    assert model("Twenty-Three") == model("twenty-three")


def test_the_same_recipe_gives_the_same_weights_and_another_seed_others(calm: Path, tmp_path: Path) -> None:
    again = tiny.weights_hash(tiny.train(tmp_path / "again"))
    other = tiny.weights_hash(tiny.train(tmp_path / "other", tiny.recipe(train={"seed": 1})))
    assert tiny.weights_hash(calm) == again != other


def test_without_a_validation_split_the_last_weights_are_taken(tmp_path: Path) -> None:
    files = tiny.write_pairs(tmp_path, tiny.pairs(60))
    best = tiny.train(tmp_path / "best", tiny.from_files(*files, train={"final": "best", "evaluate_every": 4}))
    last = tiny.train(tmp_path / "last", tiny.from_files(*files, train={"final": "last", "evaluate_every": 4}))
    assert tiny.weights_hash(best) == tiny.weights_hash(last)
    assert not (best / "evaluation.json").exists(), "no test split, no test score"
    assert "| measure |" not in (best / "README.md").read_text("utf-8")


def test_with_a_validation_split_alone_its_measures_stand_in_the_card(tmp_path: Path) -> None:
    files = tiny.write_pairs(tmp_path, tiny.pairs(60))
    data = {"valid": [str(path) for path in files]}
    folder = tiny.train(tmp_path / "run", tiny.from_files(*files, data=data, train={"steps": 2}))
    assert "| measure | validation |" in (folder / "README.md").read_text("utf-8")


def test_the_loss_of_a_trained_model_is_far_below_that_of_a_guess() -> None:
    found = json.loads((tiny.trained() / "evaluation.json").read_text("utf-8"))
    assert found["loss"]["value"] < math.log(300) / 3


def test_bad_lines_are_counted_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [*tiny.pairs(40), ("nothing", " "), ("", "nichts")]
    path = tiny.write_recipe(
        tmp_path / "r.toml", tiny.from_files(*tiny.write_pairs(tmp_path, lines), train={"steps": 1})
    )
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 0
    assert "train: 2 of 42 lines skipped: 2 with an empty side (lines 41, 42)" in capsys.readouterr().out


# ---- what a run leaves


def test_a_run_folder_holds_what_is_promised() -> None:
    names = {path.name for path in tiny.trained().iterdir()}
    assert names >= {"recipe.toml", "model.safetensors", "tokenizer.json", "checkpoints", "metrics.jsonl", "env.json"}
    assert not any(name.startswith(".") for name in names)


def test_every_score_has_its_definition() -> None:
    found = json.loads((tiny.trained() / "evaluation.json").read_text("utf-8"))
    assert tuple(found) == MEASURES
    assert all(row["definition"] for row in found.values())
    assert "tok:13a" in found["bleu"]["definition"]
    assert "version:" in found["chrf"]["definition"]


def test_the_card_is_true(tmp_path: Path) -> None:
    text = (tiny.trained() / "README.md").read_text("utf-8")
    size = sum(p.numel() for p in regard.load(tiny.trained()).model.parameters())
    found = json.loads((tiny.trained() / "evaluation.json").read_text("utf-8"))
    assert text.startswith("# A few phrases\n")
    assert f"A transformer of {size:,} parameters" in text
    assert "for 250 steps" in text
    assert f"| bleu | {found['bleu']['value']:.4f} | nrefs:1\\|" in text, "a bar in a table is written with a backslash"
    assert f"regard predict {tiny.trained()} TEXT" in text


def test_a_recipe_of_a_run_trains_the_same_run(calm: Path, tmp_path: Path) -> None:
    again = tiny.train(tmp_path / "again", read_toml(calm / "recipe.toml"))
    assert tiny.weights_hash(calm) == tiny.weights_hash(again)


def test_the_scores_of_a_run_are_those_of_its_own_recipe(tmp_path: Path) -> None:
    """Other files, another split or another search are told, but do not pass for the run's own score."""
    own = (tiny.trained() / "evaluation.json").read_bytes()
    files = tiny.write_pairs(tmp_path, tiny.pairs(6))
    found = run.evaluate(tiny.trained(), QUIET, files=[str(path) for path in files])
    assert "% of 6" in found["exact"].definition  # type: ignore[attr-defined]
    assert run.evaluate(tiny.trained(), QUIET, split="valid")["loss"] != json.loads(own)["loss"]["value"]
    run.evaluate(tiny.trained(), QUIET, how={"longest": 2})
    assert (tiny.trained() / "evaluation.json").read_bytes() == own
    copy = Path(shutil.copytree(tiny.trained(), tmp_path / "run"))
    (copy / "evaluation.json").unlink()
    run.evaluate(copy, QUIET)
    assert (copy / "evaluation.json").read_bytes() == own


def test_a_rehearsal_leaves_nothing_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with Path(os.devnull).open("w") as nowhere:
        run.rehearse(make_recipe(tiny.RECIPE, schema), Console(file=nowhere))
    assert not list(tmp_path.iterdir())


# ---- stopped and resumed


def trainer(folder: Path, values: dict[str, Any], die: str) -> None:
    """A process that trains or resumes; `die` names the moment at which it is to be killed."""
    for home, name in ((Tokenizer, "save"), (Store, "build"), (prepare, "hold")):
        if die == name:
            setattr(home, name, dying(getattr(home, name)))
    if (folder / "recipe.toml").exists():
        run.resume(folder, QUIET)
    else:
        run.start(make_recipe(values, schema), folder, QUIET)


def dying(work: Callable[..., Any]) -> Callable[..., Any]:
    """Works once, then is killed."""

    def once(*args: Any, **how: Any) -> None:
        work(*args, **how)
        os.kill(os.getpid(), signal.SIGKILL)

    return once


def process(folder: Path, values: dict[str, Any], die: str = "") -> Any:
    started = PROCESSES.Process(target=trainer, args=(folder, values, die))
    started.start()
    return started


def finish(folder: Path, values: dict[str, Any]) -> str:
    last = process(folder, values)
    last.join()
    assert last.exitcode == 0
    return tiny.weights_hash(folder)


def saved(folder: Path) -> int:
    """The last step of which there is a checkpoint."""
    return max(map(checkpoint.step_of, checkpoint.found(folder / "checkpoints")), default=0)


def storm(folder: Path, kills: int, steps: int, seed: int) -> None:
    values = tiny.recipe(
        train={"steps": steps, "save_every": 10, "evaluate_every": 50}, data={"count": 1500, "held": 3}
    )
    calm = finish(folder / "calm", values)
    draw = random.Random(seed)
    for _ in range(kills):
        wanted = saved(folder / "storm") + draw.randint(0, steps // kills // 2)
        victim = process(folder / "storm", values)
        while victim.is_alive() and saved(folder / "storm") < wanted:
            time.sleep(0.005)
        victim.join(draw.uniform(0.0, 0.05))
        victim.kill()
        victim.join()
        assert victim.exitcode == -signal.SIGKILL, "it must be killed before its end, or this shows nothing"
    assert finish(folder / "storm", values) == calm
    for name in ("recipe.toml", "tokenizer.json", "tokenizer.source.json", "evaluation.json"):
        assert (folder / "storm" / name).read_bytes() == (folder / "calm" / name).read_bytes()


def test_a_run_that_is_killed_ends_the_same(tmp_path: Path) -> None:
    storm(tmp_path, kills=1, steps=100, seed=0)


@pytest.mark.storm
def test_a_run_that_is_killed_twenty_five_times_ends_the_same(tmp_path: Path) -> None:
    storm(tmp_path, kills=25, steps=2500, seed=1)


@pytest.mark.parametrize("moment", ["save", "build", "hold"])
def test_a_run_that_is_killed_while_it_gets_ready_ends_the_same(moment: str, calm: Path, tmp_path: Path) -> None:
    """After the first of two vocabularies, after the first store, after the first held-out split."""
    victim = process(tmp_path / "run", tiny.RECIPE, moment)
    victim.join()
    assert victim.exitcode == -signal.SIGKILL
    run.resume(tmp_path / "run", QUIET)
    assert tiny.weights_hash(tmp_path / "run") == tiny.weights_hash(calm)


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGTERM, 143, marks=pytest.mark.storm), (signal.SIGINT, 130)]
)
def test_a_run_that_is_told_to_stop_saves_and_goes_on_later(number: signal.Signals, code: int, tmp_path: Path) -> None:
    values = tiny.recipe(train={"steps": 100, "save_every": 60, "log_every": 1})
    recipe, folder = tiny.write_recipe(tmp_path / "r.toml", values), tmp_path / "run"
    command = [sys.executable, "-m", "regard", "train", recipe, "--out", folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as told:
        while not (folder / "metrics.jsonl").exists() or not (folder / "metrics.jsonl").stat().st_size:
            assert told.poll() is None
            time.sleep(0.02)
        told.send_signal(number)
        _, said = told.communicate(timeout=60)
    assert told.returncode == code
    assert f"stopped by {number.name} at step".encode() in said
    assert f"which is saved; go on with: regard resume {folder}".encode() in said
    assert b"Traceback" not in said
    assert list((folder / "checkpoints").glob("step-*"))
    assert not (folder / "model.safetensors").exists()
    run.resume(folder, QUIET)
    assert tiny.weights_hash(folder) == tiny.weights_hash(tiny.train(tmp_path / "calm", values))


def test_a_finished_run_says_so_and_its_weights_stay(calm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (calm / "model.safetensors").stat().st_mtime_ns
    assert main(["resume", str(calm)]) == 0
    assert "finished at step 20; nothing to do" in capsys.readouterr().out
    assert (calm / "model.safetensors").stat().st_mtime_ns == before


# ---- progress


def test_long_preparations_say_how_far_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PATIENCE", 0.0)
    with (tmp_path / "said").open("w") as file:
        run.start(make_recipe(tiny.recipe(train={"steps": 1}), schema), tmp_path / "run", Console(file=file))
    said = (tmp_path / "said").read_text("utf-8")
    assert "300 so far" in said
    assert "evaluating on test: 24 of 24" in said


def test_a_terminal_shows_a_bar(tmp_path: Path) -> None:
    with (tmp_path / "said").open("w") as file:
        console = Console(file=file, force_terminal=True, width=80)
        run.evaluate(tiny.trained(), console)
    assert "evaluating on test" in (tmp_path / "said").read_text("utf-8")


def test_a_run_is_measured_on_the_text_that_it_had(tmp_path: Path) -> None:
    """Neither a changed file nor another working directory changes what a run is measured on."""
    source, target = tiny.write_pairs(tmp_path, tiny.pairs(60))
    values = tiny.from_files(source, target)
    values["data"]["test"] = values["data"]["train"]
    folder = tiny.train(tmp_path / "run", values)
    before = (folder / "evaluation.json").read_bytes()
    source.unlink()
    target.write_text("gone\n")
    found = run.evaluate(folder, Console(quiet=True))
    assert (folder / "evaluation.json").read_bytes() == before
    assert "60" in getattr(found["exact"], "definition", "")


def test_learned_positions_limit_what_is_written(tmp_path: Path) -> None:
    values = tiny.recipe(model={"positions": "learned", "context": 30}, data={"longest": 30})
    folder = tiny.train(tmp_path / "run", values)
    (answer,) = regard.load(folder).answer(["twenty-three"], longest=200, shortest=200)
    assert len(answer.hypotheses[0].tokens) == 30


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": {"positions": "learned", "context": 12}}, "model.context = 12 is shorter than data.longest"),
        ({"tokens": {"joint": False}, "model": {"tied": "all"}}, "two vocabularies cannot share one matrix"),
    ],
)
def test_what_the_recipe_alone_tells_is_refused_before_any_work(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        tiny.train(tmp_path / "run", tiny.recipe(**changes))
    assert not (tmp_path / "run").exists()


def test_two_trainings_do_not_share_a_folder(calm: Path) -> None:
    with run._alone(calm), pytest.raises(RegardError, match="is being trained by another process; wait for it"):
        run.resume(calm, QUIET)
    run.resume(calm, QUIET)  # the lock went with its holder
