"""Every sentence that a user can be told, with its exit code: one line, no traceback, nothing half-written."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

import regard
from regard import disk, weights
from regard.cli import main
from regard.config import read_toml
from regard.data.tokenizer import Tokenizers
from regard.training import loop

Told = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A copy of a trained run, to be damaged."""
    return Path(shutil.copytree(tiny.trained(), tmp_path / "run"))


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    def put(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    return put


# ---- the command


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("trian demo", "'trian' is no verb of regard; did you mean 'train'?"),
        ("train", "train what? Name a recipe or a TOML file"),
        ("train dmeo", "no recipe 'dmeo'; did you mean 'demo'?"),
        ("train demo extra", "'extra': one recipe at a time"),
        ("train shakespeare --data.apart maybe", "--data.apart is true or false, but 'maybe' came; write --data.apart"),
        ("train demo --train.setps 5", "train.setps: no such setting; did you mean 'steps'?"),
        ("train demo --setps 5", "--setps: no such setting; did you mean --train.steps?"),
        ("train demo --trian.steps 5", "--trian.steps: no such setting; did you mean --train.steps?"),
        ("train demo --modle.attention-dropout 5", "did you mean --model.attention-dropout?"),
        ("train demo --decoding.beam 5", "--decoding.beam: no such setting; did you mean --decode.beam?"),
        ("train demo --loop.warmup 5", "--loop.warmup: no such setting; did you mean --train.warmup?"),
        ("train demo --xyzzy 5", "--xyzzy: no such setting; settings are written --section.key"),
        ("train demo --model.head 5", "model.head: no such setting; did you mean 'heads'?"),
        ("train demo --train.steps -5", "train.steps: must be greater than or equal to 1, but it is -5"),
        ("train demo --model.heads 5", "dim=128 does not divide into heads=5; try heads=4"),
        ("train demo --train.steps", "--train.steps: a value is missing; write --train.steps VALUE"),
        ("train demo --system transfromer", "no system 'transfromer'; did you mean 'transformer'?"),
        ("train missing.toml", "missing.toml: no such recipe file"),
        ("recipes shw demo", "recipes shw demo: not understood; write recipes, recipes show NAME"),
        ("recipes show dmeo", "no recipe 'dmeo'; did you mean 'demo'?"),
        ("demo now", "'now': demo takes settings only"),
        ("demo --stpes 5", "stpes: no such setting; did you mean 'steps'?"),
        ("resume", "which run? Name its folder"),
        ("resume a b", "'b': one run folder at a time"),
        ("evaluate a b", "'b': one run folder at a time"),
        ("doctor a b", "'b': one run folder at a time"),
        ("predict a x --baem 5", "baem: no such setting; did you mean 'beam'?"),
        ("predict a x --beam 0", "beam: must be greater than or equal to 1, but it is 0"),
    ],
)
def test_a_wrong_command(line: str, sentence: str, told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence in told(2, *line.split())
    assert not list(tmp_path.iterdir())


def test_a_wrong_setting_in_a_file(told: Told, tmp_path: Path) -> None:
    path = tiny.write_recipe(tmp_path / "r.toml", tiny.recipe(train={"stpes": 5}))
    assert "train.stpes: no such setting; did you mean 'steps'?" in told(2, "train", path, "--out", tmp_path / "run")
    path.write_text("system = ", "utf-8")
    assert "cannot be read as TOML" in told(2, "train", path)
    assert [p.name for p in tmp_path.iterdir()] == ["r.toml"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"train": {"metric": "blue"}}, "train.metric: the task measures no 'blue'; did you mean 'bleu'?"),
        ({"train": {"device": "cuda:99"}}, "device: no device 'cuda:99' here; write auto or one of cpu"),
        ({"tokens": {"size": 20}}, "tokens.size = 20 is too small"),
        ({"model": {"tied": "all"}, "tokens": {"kind": "char"}}, "two vocabularies cannot share one matrix"),
    ],
)
def test_what_only_the_data_shows_to_be_wrong(
    changes: dict[str, Any], sentence: str, told: Told, tmp_path: Path
) -> None:
    path = tiny.write_recipe(tmp_path / "r.toml", tiny.recipe(**changes))
    assert sentence in told(2, "train", path, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists(), "the same command works once the setting is mended"


def test_a_folder_that_is_taken(told: Told, run: Path) -> None:
    before = tiny.weights_hash(run)
    sentence = told(2, "train", "demo", "--out", run)
    assert f"{run} exists already; go on with it by: regard resume {run}" in sentence
    assert tiny.weights_hash(run) == before
    file = run / "recipe.toml"
    assert "exists already" in told(2, "train", "demo", "--out", file)


def test_a_copied_recipe_never_overwrites(told: Told, tmp_path: Path) -> None:
    target = tmp_path / "mine.toml"
    target.write_text("mine")
    assert "exists already; name another file: regard recipes copy demo FILE" in told(
        2, "recipes", "copy", "demo", target
    )
    assert target.read_text() == "mine"


@pytest.mark.parametrize("words", [(), ("two", "hundred")])
def test_one_input_is_looked_at(words: tuple[str, ...], told: Told) -> None:
    sentence = f'look takes one input, but {len(words)} came; write it in quotes: regard look {tiny.trained()} "two'
    assert sentence in told(2, "look", tiny.trained(), *words)


def test_a_device_that_is_not_there(told: Told) -> None:
    for verb in ("predict", "look"):
        assert "device: no device 'cuda:99' here; write auto or one of cpu" in told(
            2, verb, tiny.trained(), "x", "--device", "cuda:99"
        )


# ---- data


def wrong_data(folder: Path) -> dict[str, tuple[dict[str, Any], str]]:
    """Recipes whose data cannot be used, and what is said of it."""
    lines = tiny.pairs(30)
    english, german = tiny.write_pairs(folder, lines)
    empty, short, bytes_, columns = (folder / name for name in ("empty.de", "short.de", "bytes.de", "columns.tsv"))
    empty.write_text("")
    short.write_text("eins\nzwei\n")
    bytes_.write_bytes(german.read_bytes().replace(b"\n", b"\xff\n", 1))
    columns.write_text("\n".join(f"{s}\t{t}" for s, t in lines[:5]) + "\nonly one\n")
    refuse = {"bad_lines": "refuse"}
    return {
        "missing": (tiny.from_files(english, folder / "no.de"), "no.de: no such file; looked for"),
        "empty": (tiny.from_files(english, empty), "empty.de: empty; name a file with a sentence on every line"),
        "shorter": (tiny.from_files(english, short), "text.en has 30 lines and"),
        "bytes": (tiny.from_files(english, bytes_, data=refuse), "line 1: bytes.de is not UTF-8 at byte"),
        "columns": (tiny.from_files(columns, data=refuse), "columns.tsv, line 6: 1 column where 2 were wanted"),
        "long": (tiny.from_files(english, german, data={"longest": 2}), "no pair is left"),
        "language": (tiny.recipe(data={"languages": ["en", "klingon"]}), "klingon"),
    }


@pytest.mark.parametrize("kind", ["missing", "empty", "shorter", "bytes", "columns", "long", "language"])
def test_data_that_cannot_be_used(kind: str, told: Told, tmp_path: Path) -> None:
    values, sentence = wrong_data(tmp_path)[kind]
    path = tiny.write_recipe(tmp_path / "r.toml", values)
    before = sorted(tmp_path.iterdir())
    assert sentence in told(3, "train", path, "--out", tmp_path / "run")
    assert sentence in told(3, "train", path, "--dry-run")
    assert sorted(tmp_path.iterdir()) == before


def test_other_files_to_evaluate_on(told: Told, tmp_path: Path) -> None:
    english, german = tiny.write_pairs(tmp_path, tiny.pairs(4))
    run = tiny.trained()
    assert "nowhere.en: no such file; looked for" in told(3, "evaluate", run, "--data", "nowhere.en", german)
    assert "give two line-aligned files" in told(3, "evaluate", run, "--data", english)


def test_a_run_without_a_test_split(told: Told, run: Path) -> None:
    tiny.write_recipe(run / "recipe.toml", {**read_toml(run / "recipe.toml"), "data": {"train": ["a.tsv"]}})
    assert "has no test split; name files with --data" in told(3, "evaluate", run)


# ---- inputs


def test_an_input_over_the_limit_is_named_and_those_before_it_are_answered(
    stdin: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    run = tiny.trained()
    for more in ([], ["--stream"]):
        stdin(b"five\nsix\n" + b"seven " * 1000 + b"\neight\n")
        assert main(["predict", str(run), *more]) == 3
        printed = capsys.readouterr()
        assert len(printed.out.splitlines()) == 2
        assert "input 3 has" in printed.err
        assert "tokens with its end mark, but this model reads at most 256; split it into sentences" in printed.err


def test_input_that_is_not_utf8(stdin: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]) -> None:
    stdin(b"five\nsi\xff\n")
    assert main(["predict", str(tiny.trained())]) == 3
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 1
    assert "line 2 of standard input is not UTF-8 (byte 2); convert it first" in printed.err


def test_a_pair_without_a_tab(told: Told) -> None:
    assert "input 1 has no tab; with --score write source, a tab and the target" in told(
        3, "predict", tiny.trained(), "five", "--score"
    )


@pytest.mark.parametrize(
    "setting", ["--nbest 2", "--beam 3", "--prefix x", "--sample", "--top-p 0.5", "--embed", "--choices a", "--top 3"]
)
def test_what_a_given_answer_has_no_use_for(setting: str, told: Told) -> None:
    name = setting.split()[0]
    sentence = f"{name}: with --score a given target is measured, and none is looked for; leave either out"
    assert told(2, "predict", tiny.trained(), "five\tfünf", "--json", "--score", *setting.split()) == sentence


def test_a_setting_of_another_search_says_what_to_type(told: Told) -> None:
    ask = ["predict", tiny.trained(), "five"]
    assert "add sample = true (on a command line --sample), or leave it out" in told(2, *ask, "--temperature", "2")
    assert "(on a command line --sample false)" in told(2, *ask, "--sample", "--beam", "2")


def test_nothing_to_look_at(told: Told) -> None:
    for text in ("", "  "):
        assert "the text to look at is empty; write a sentence" in told(3, "look", tiny.trained(), text)


def test_an_attention_or_head_that_is_not_there(told: Told) -> None:
    run = tiny.trained()
    assert "did you mean 'decoder.0.cross'?" in told(2, "look", run, "five", "--attention", "decoder.0.cros")
    assert "decoder.0.cross has heads 0 to 1, but head 7 was asked for" in told(2, "look", run, "five", "--head", "7")


# ---- run folders


def damage(run: Path, kind: str) -> None:
    weights, recipe = run / "model.safetensors", run / "recipe.toml"
    match kind:
        case "version":
            recipe.write_text(recipe.read_text("utf-8").replace("format = 1", "format = 2"), "utf-8")
        case "no run":
            recipe.unlink()
        case "broken recipe":
            recipe.write_text("format = 1\nsystem = ", "utf-8")
        case "foreign setting":
            recipe.write_text(recipe.read_text("utf-8").replace("dropout", "dorpout", 1), "utf-8")
        case "unfinished":
            weights.unlink()
        case "cut":
            weights.write_bytes(weights.read_bytes()[:-100])
        case "cut, and no checkpoints":
            weights.write_bytes(weights.read_bytes()[:-100])
            shutil.rmtree(run / "checkpoints")
        case "bytes":
            weights.write_bytes(b"\xff" * 1000)
        case "pickle":
            torch.save({"a": torch.zeros(2)}, weights)
        case "other model":
            recipe.write_text(recipe.read_text("utf-8").replace("hidden = 64", "hidden = 32"), "utf-8")
        case "other vocabulary":
            words = [f"word{i}" for i in range(40)]
            Tokenizers.train(words, words, kind="word", size=30, joint=False).save(run)
        case "vocabulary of equal size":
            shutil.copy(run / "tokenizer.source.json", run / "tokenizer.json")
        case "lost source vocabulary":
            (run / "tokenizer.source.json").unlink()
        case "lost vocabulary":
            (run / "tokenizer.json").unlink()
        case "broken vocabulary":
            (run / "tokenizer.json").write_text("{}")
        case "other source vocabulary":
            path = run / "tokenizer.source.json"
            path.write_text((run / "tokenizer.json").read_text("utf-8"), "utf-8")
            recipe.write_text(recipe.read_text("utf-8").replace("source_vocab = 300", "source_vocab = 299"), "utf-8")


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("version", "has run format 2, but this Regard reads format 1; use the Regard that wrote it"),
        ("no run", "not a run folder: it has no recipe.toml; runs are made by: regard train RECIPE --out"),
        ("broken recipe", "has a recipe.toml that cannot be used"),
        ("foreign setting", "model.dorpout: no such setting; did you mean 'dropout'?"),
        ("unfinished", "has no model.safetensors yet; finish it with: regard resume"),
        ("cut", "its safetensors header is wrong"),
        ("cut", "; make it again with: regard resume "),
        ("cut, and no checkpoints", "; put a good copy back, or make the run anew"),
        ("bytes", "not a safetensors file, or cut short; Regard loads safetensors and never pickles"),
        ("pickle", "not a safetensors file, or cut short; Regard loads safetensors and never pickles"),
        ("other model", "they are of another model"),
        ("other vocabulary", "vocabulary of 300, but its tokenizer has 30 entries; they belong to different runs"),
        ("vocabulary of equal size", "tokenizer.json: not the file that the weights of this run were learnt with; put"),
        ("lost source vocabulary", "tokenizer.source.json: not the file that the weights of this run were learnt with"),
        ("lost vocabulary", "no such vocabulary; name a folder that `regard train` has made"),
        ("broken vocabulary", "cannot be read as a vocabulary"),
        ("other source vocabulary", "they belong to different runs"),
    ],
)
def test_a_run_folder_that_cannot_be_used(kind: str, sentence: str, told: Told, run: Path) -> None:
    damage(run, kind)
    assert sentence in told(4, "predict", run, "five")
    assert sentence in told(4, "doctor", run)
    assert sentence in told(4, "evaluate", run)


def test_neither_training_nor_beginning_goes_on_with_another_vocabulary(told: Told, run: Path, tmp_path: Path) -> None:
    damage(run, "vocabulary of equal size")
    path = tiny.write_recipe(tmp_path / "r.toml", tiny.recipe(train={"begin": str(run)}))
    for line in (["resume", run], ["train", path, "--out", tmp_path / "other"]):
        assert "tokenizer.json: not the file that the weights of this run were learnt with" in told(4, *line)
    assert not (tmp_path / "other").exists()
    (run / "model.safetensors").unlink()
    assert "its vocabulary is not the one that it was trained with; put that back" in told(4, "resume", run)


def test_an_older_run_whose_weights_do_not_tell_their_vocabulary_is_believed(run: Path) -> None:
    answer = regard.load(run)("five")
    disk.write(run / "model.safetensors", weights.encode(weights.load_weights(run / "model.safetensors")))
    assert regard.load(run)("five") == answer


def test_a_folder_that_does_not_exist(told: Told, tmp_path: Path) -> None:
    for verb in ("resume", "predict", "evaluate", "doctor"):
        assert "no such folder; runs are made by: regard train" in told(4, verb, tmp_path / "none")
    assert not list(tmp_path.iterdir())


def test_damaged_final_weights_are_made_again(said: Callable[..., str], told: Told, run: Path) -> None:
    before = tiny.weights_hash(run)
    damage(run, "cut")
    assert "; it was set aside as .corrupt-model.safetensors\n" in said("resume", run)
    assert tiny.weights_hash(run) == before
    damage(run, "cut, and no checkpoints")
    assert "no checkpoint is left to make it again from: put a good copy back" in told(4, "resume", run)


def test_a_run_whose_checkpoints_are_all_corrupt_is_not_begun_anew(told: Told, run: Path) -> None:
    (run / "model.safetensors").unlink()
    for path in (run / "checkpoints").glob("step-*"):
        (path / "manifest.json").write_text("{}")
    assert main(["resume", str(run)]) == 4
    assert "every checkpoint is corrupt and was set aside; put a good copy back" in told(4, "resume", run)


# ---- the machine


FULL = os.strerror(errno.ENOSPC)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """From now on no file of that name can be written."""
    honest = disk.write_through

    def fill(name: str) -> None:
        def write(path: Path, data: bytes) -> None:
            if name in path.name:
                path.write_bytes(data[: len(data) // 2])
                raise OSError(errno.ENOSPC, FULL)
            honest(path, data)

        monkeypatch.setattr(disk, "write_through", write)

    return fill


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_full_disk_before_training(full_disk: Callable[[str], None], told: Told, tmp_path: Path) -> None:
    full_disk("recipe.toml")
    path = tiny.write_recipe(tmp_path / "r.toml", tiny.RECIPE)
    sentence = told(1, "train", path, "--out", tmp_path / "run")
    assert "run: cannot be written: No space left on device; make room, or choose another folder" in sentence
    assert files(tmp_path) == {"r.toml"}


def test_a_full_disk_at_the_end_of_training(full_disk: Callable[[str], None], told: Told, tmp_path: Path) -> None:
    full_disk("model.safetensors")
    path = tiny.write_recipe(tmp_path / "r.toml", tiny.recipe(train={"steps": 2}))
    sentence = told(1, "train", path, "--out", tmp_path / "run")
    assert "model.safetensors could not be written: No space left on device" in sentence
    assert "make room and resume" in sentence
    assert not any(".tmp" in name for name in files(tmp_path))


def test_a_full_disk_while_evaluating(full_disk: Callable[[str], None], told: Told, run: Path) -> None:
    before = (run / "evaluation.json").read_bytes()
    full_disk("evaluation.json")
    assert "cannot be written: No space left on device" in told(1, "evaluate", run)
    assert (run / "evaluation.json").read_bytes() == before
    full_disk("look.html")
    sentence = told(1, "look", run, "five", "--html", run / "look.html")
    assert sentence == f"{run / 'look.html'}: cannot be written: {FULL}; make room, or choose another place"
    assert not any("look.html" in name for name in files(run))


def test_a_full_disk_while_a_recipe_is_copied(full_disk: Callable[[str], None], told: Told, tmp_path: Path) -> None:
    full_disk("mine.toml")
    mine = tmp_path / "mine.toml"
    sentence = told(1, "recipes", "copy", "demo", mine)
    assert sentence == f"{mine}: cannot be written: {FULL}; make room, or choose another place"
    assert not files(tmp_path)


def test_a_folder_where_nothing_can_be_written(told: Told, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("here")
    for place in (file / "run", Path("/proc/regard-run")):
        assert "cannot be written" in told(1, "train", "demo", "--out", place)
    assert "choose another place" in told(1, "look", tiny.trained(), "five", "--html", file / "look.html")
    assert "choose another place" in told(1, "recipes", "copy", "demo", file / "mine.toml")


def test_too_little_memory_on_the_gpu(told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(loop, "gradients", exhausted)
    path = tiny.write_recipe(tmp_path / "r.toml", tiny.RECIPE)
    sentence = told(1, "train", path, "--out", tmp_path / "run")
    assert "too little memory for train.tokens = 512" in sentence
    assert "--train.tokens 256 --train.accumulate 2" in sentence


def test_a_training_that_diverges(told: Told, tmp_path: Path) -> None:
    path = tiny.write_recipe(
        tmp_path / "r.toml", tiny.recipe(train={"rate": 1e30, "schedule": "constant", "clip": 0.0})
    )
    sentence = told(5, "train", path, "--out", tmp_path / "run")
    assert "step" in sentence
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_the_whole_trace_is_shown_when_asked_for() -> None:
    with pytest.raises(Exception, match="is no verb"):
        main(["trian", "--debug"])


def test_errors_never_spoil_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output holds answers and nothing else."""
    assert main(["predict", str(tiny.trained()), "five", "six " * 2000, "--json"]) == 3
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["source"] == "five"
