"""The verbs as a person types them."""

from __future__ import annotations

import gzip
import io
import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
from interop.made import made

import regard
from regard import doctor
from regard.cli import VERBS, main
from regard.config import make_recipe, read_toml, section, write_toml
from regard.interop.hf import export_folder
from regard.laws import Law
from regard.models import schema
from regard.recipes import find_recipe, list_recipes
from regard.view.capture import Trace

Said = Callable[..., str]


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def put(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    return put


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the trained run as runs/demo."""
    shutil.copytree(tiny.trained(), tmp_path / "runs" / "demo")
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ---- help


def test_help_is_answered_without_torch(tmp_path: Path) -> None:
    copied = ["recipes", "copy", "demo", str(tmp_path / "mine.toml")]
    lines = [["--help"], ["--version"], ["recipes"], copied, *([verb, "--help"] for verb in VERBS)]
    code = f"""
import sys
from regard.cli import main
for line in {lines!r}:
    assert main(line) == 0
    assert "torch" not in sys.modules, line
    assert "tokenizers" not in sys.modules, line
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, stdout=subprocess.DEVNULL)


def test_no_word_at_all_gets_the_list_of_verbs_and_a_failure() -> None:
    found = tiny.command()
    assert found.returncode == 2
    assert all(verb.encode() in found.stdout for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_help_says_how_and_shows_an_example(verb: str, said: Said) -> None:
    text = said(verb, "--help")
    assert f"usage: regard {verb}" in text
    assert f"example:\n  {VERBS[verb].example}" in text
    for field in VERBS[verb].options.model_fields:
        assert f"--{field.rstrip('_').replace('_', '-')}" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("demo", "train", "serve", "fetch")])
def test_the_example_of_help_works(verb: str, said: Said, home: Path) -> None:
    """But for what takes minutes, has no end, or needs the net (data/test_fetch.py has a server for it)."""
    if verb == "import":
        export_folder(made("gpt", context=64), home / "distilbert-tiny")
    first, *words = shlex.split(VERBS[verb].example)
    assert first == "regard"
    assert said(*words)


@pytest.mark.parametrize("verb", ["demo", "train"])
def test_the_longer_examples_are_understood(verb: str, said: Said, home: Path) -> None:
    """They train for minutes, so they are parsed and their recipe is resolved, no more."""
    _, name, *words = shlex.split(VERBS[verb].example)
    assert name == verb
    if verb == "demo":
        assert words == ["--target", "fr"]
        words = ["demo", "--data.languages", "en", "fr"]
    assert "system" in said("train", *words, "--print-config")


def test_every_setting_of_a_recipe_is_in_its_help(said: Said) -> None:
    text = said("train", "demo", "--help")
    recipe = make_recipe(read_toml(find_recipe("demo")), schema)
    for part in type(recipe).model_fields:
        inner = section(type(recipe), part)
        for key in inner.model_fields if inner else ():
            assert f"--{part}.{key.replace('_', '-')}" in text
    assert "(1500)" in text or f"({recipe.train.steps})" in text, "the recipe's own values are shown"
    assert f"({recipe.model.dim})" in text  # type: ignore[attr-defined]
    assert "bpe | unigram | wordpiece | word | char" in text


# ---- recipes


def test_recipes_are_listed_with_their_measured_results(said: Said) -> None:
    text = said("recipes")
    assert text == said("recipes", "ls")
    for name in list_recipes():
        head = read_toml(find_recipe(name))
        assert name in text
        assert head["machine"] in text
        assert head["result"].split()[0] in text
    assert ", 1 minute\n" in text
    assert " 1 minutes" not in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("name", list_recipes())
def test_every_shipped_recipe_says_what_it_is_and_reads_back(name: str) -> None:
    lines = find_recipe(name).read_text("utf-8").splitlines()
    assert [line.split(" = ")[0] for line in lines[:6]] == [
        "title",
        "command",
        "machine",
        "minutes",
        "result",
        "system",
    ]
    recipe = make_recipe(read_toml(find_recipe(name)), schema)
    assert all((recipe.title, recipe.command, recipe.machine, recipe.minutes, recipe.result))
    assert f"regard train {name}" in recipe.command or recipe.command == f"regard {name}"
    assert make_recipe(tomllib.loads(write_toml(recipe)), schema) == recipe


def test_a_recipe_is_shown_and_copied_word_for_word(said: Said, home: Path) -> None:
    text = find_recipe("demo").read_text("utf-8")
    assert said("recipes", "show", "demo") == text
    assert "train it with: regard train demo.toml" in said("recipes", "copy", "demo")
    assert (home / "demo.toml").read_text("utf-8") == text
    said("recipes", "copy", "demo", "mine.toml")
    assert said("train", "mine.toml", "--print-config") == said("train", "demo", "--print-config")


# ---- train


def test_what_is_printed_trains_the_same(said: Said, tmp_path: Path) -> None:
    recipe = tiny.write_recipe(tmp_path / "r.toml", tiny.RECIPE)
    flags = ["--train.steps", "7", "--model.dropout", "0.2", "--tokens.kind=char"]
    (tmp_path / "printed.toml").write_text(said("train", *flags, recipe, "--print-config"), "utf-8")
    said("train", recipe, *flags, "--out", tmp_path / "flags")
    said("train", tmp_path / "printed.toml", "--out", tmp_path / "printed")
    assert tiny.weights_hash(tmp_path / "flags") == tiny.weights_hash(tmp_path / "printed")


def test_a_rehearsal_tells_size_memory_and_time(said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny.write_recipe(tmp_path / "r.toml", tiny.RECIPE)
    monkeypatch.chdir(tmp_path)
    text = said("train", recipe, "--dry-run")
    for word in ("parameters", "vocabulary", "first batch", "epochs", "MiB at the peak", "ms a step"):
        assert word in text
    assert list(tmp_path.iterdir()) == [recipe]


def test_a_run_without_a_name_never_overwrites_another(
    said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny.write_recipe(tmp_path / "mine.toml", tiny.recipe(train={"steps": 1}))
    assert "runs/mine is ready" in said("train", "mine.toml")
    text = said("train", "mine.toml")
    assert "step 1/1" in text, "plain lines where there is no terminal"
    assert "regard evaluate runs/mine-2" in text
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["mine", "mine-2"]


# ---- evaluate


def test_evaluate_prints_a_table_with_definitions(said: Said) -> None:
    text = said("evaluate", tiny.trained())
    for word in ("loss", "perplexity", "bleu", "chrf", "exact", "tok:13a", "negative log-likelihood", "in % of 24"):
        assert word in text


def test_evaluate_prints_json_alone(said: Said, tmp_path: Path) -> None:
    found = json.loads(said("evaluate", tiny.trained(), "--json", "--beam", "2"))
    assert set(found["bleu"]) == {"value", "definition"}
    files = tiny.write_pairs(tmp_path, tiny.pairs(5))
    other = json.loads(said("evaluate", tiny.trained(), "--json", "--data", *files))
    assert "% of 5" in other["exact"]["definition"]
    packed = tmp_path / "text.tsv.gz"
    packed.write_bytes(gzip.compress("".join(f"{s}\t{t}\n" for s, t in tiny.pairs(5)).encode()))
    assert json.loads(said("evaluate", tiny.trained(), "--json", "--data", packed)) == other
    valid = json.loads(said("evaluate", "--json", "--split", "valid", tiny.trained()))
    assert valid["loss"] != found["loss"]


# ---- predict


def test_answers_stand_line_by_line(said: Said, stdin: Callable[[str], None]) -> None:
    texts = ["twenty-three", "", "five euros", "  ", "six"]
    expected = regard.load(tiny.trained())(texts)
    assert said("predict", tiny.trained(), *texts).splitlines() == expected
    for more in ([], ["--stream"]):
        stdin("\n".join(texts) + "\n")
        assert said("predict", tiny.trained(), *more).splitlines() == expected
    assert expected[1] == expected[3] == ""


def test_windows_line_ends_and_a_missing_last_one_are_no_matter(said: Said, stdin: Callable[[str], None]) -> None:
    stdin("five\r\nsix")
    assert said("predict", tiny.trained()).splitlines() == regard.load(tiny.trained())(["five", "six"])


def test_answers_as_json(said: Said) -> None:
    lines = said("predict", "--json", tiny.trained(), "five", "", "--beam", "3", "--nbest", "2").splitlines()
    first, nothing = map(json.loads, lines)
    assert first["source"] == "five"
    assert [set(answer) for answer in first["answers"]] == [{"text", "score", "logprob", "finished"}] * 2
    assert nothing["answers"][0]["text"] == ""


def test_n_best_answers_come_with_their_scores(said: Said) -> None:
    lines = [line.split("\t") for line in said("predict", tiny.trained(), "five", "--nbest", "3").splitlines()]
    assert len(lines) == 3
    scores = [float(score) for score, _ in lines]
    assert scores == sorted(scores, reverse=True)


def test_given_answers_are_scored(said: Said) -> None:
    model = regard.load(tiny.trained())
    whole, tokens = said("predict", tiny.trained(), "--score", "five\tfünf").split("\t")
    expected = model.score([("five", "fünf")])[0]
    assert float(whole) == pytest.approx(sum(expected), abs=1e-3)
    assert [float(value) for value in tokens.split()] == pytest.approx(expected, abs=1e-3)


def test_given_answers_are_scored_as_json(said: Said) -> None:
    pairs = [("five", "fünf"), ("six", "sieben")]
    lines = said("predict", tiny.trained(), "--score", "--json", *map("\t".join, pairs)).splitlines()
    for line, pair, tokens in zip(lines, pairs, regard.load(tiny.trained()).score(pairs), strict=True):
        found = json.loads(line)
        assert (found["source"], found["target"]) == pair
        assert found["tokens"] == pytest.approx(tokens, abs=1e-5)
        assert found["logprob"] == pytest.approx(sum(tokens), abs=1e-5)


def test_sampling_prefixes_and_texts_with_dashes(said: Said) -> None:
    run = tiny.trained()
    sampled = ["predict", run, "twenty-three", "--sample", "--top-p", "0.9", "--temperature", "2", "--seed"]
    assert said(*sampled, "1") == said(*sampled, "1")
    assert said("predict", run, "five", "--prefix", "drei").startswith("drei")
    assert said("predict", run, "--", "--beam") == regard.load(run)("--beam") + "\n"
    assert said("predict", run, "--", "--help", "--debug", "--json").count("\n") == 3


def test_hostile_texts_are_answered(said: Said) -> None:
    texts = ["a\tb", "nul \x00", "half \udcff", "<eos>", "\u202e", "e" + "\u0301" * 40]
    lines = said("predict", tiny.trained(), *texts, "--json").splitlines()
    assert len(lines) == len(texts)
    assert all(json.loads(line)["answers"] for line in lines)


def test_answers_are_printed_while_lines_are_still_coming() -> None:
    """With --stream nothing that was answered is lost, whatever comes next."""
    command = [sys.executable, "-m", "regard", "predict", tiny.trained(), "--stream"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as talk:
        assert talk.stdin is not None
        assert talk.stdout is not None
        talk.stdin.write(b"five\n")
        talk.stdin.flush()
        first = talk.stdout.readline().decode().rstrip("\n")
        talk.send_signal(signal.SIGINT)
        _, said = talk.communicate(timeout=30)
    assert first == regard.load(tiny.trained())("five")
    assert talk.returncode == 130
    assert said.decode().splitlines() == ["regard: interrupted"]


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "many").write_text("five\n" * 600)
    with (tmp_path / "many").open() as file:
        command = [sys.executable, "-m", "regard", "predict", tiny.trained()]
        with subprocess.Popen(command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as talk:
            assert talk.stdout is not None
            talk.stdout.readline()
            talk.stdout.close()
            assert talk.stderr is not None
            assert talk.stderr.read() == b""
            assert talk.wait(30) == 0


# ---- look, doctor


def test_look_draws_writes_and_prints_what_was_seen(said: Said, home: Path) -> None:
    run = "runs/demo"
    drawn = said("look", run, "twenty-three")
    assert "decoder.0.cross, mean of 2 heads" in drawn
    assert "decoder.0.attention, head 1" in said(
        "look", run, "five", "--attention", "decoder.0.attention", "--head", "1"
    )
    trace = Trace.from_json(json.loads(said("look", run, "twenty-three", "--json")))
    assert trace.alignment().shape == (len(trace.target), len(trace.source))
    assert "map.html written" in said("look", run, "twenty-three", "--html", "map.html")
    assert "<script" in (home / "map.html").read_text("utf-8")
    for flag, name in (("--png", "a.png"), ("--svg", "b"), ("--png", "v1.5")):
        said("look", run, "twenty-three", flag, name)
    assert {"a.png", "a.svg", "b.png", "b.svg", "v1.5.png", "v1.5.svg"} <= {path.name for path in home.iterdir()}


def test_the_doctor_finds_a_run_in_health(said: Said) -> None:
    rows = json.loads(said("doctor", tiny.trained(), "--json"))
    assert all(row["holds"] for row in rows), [row for row in rows if not row["holds"]]
    text = said("doctor", tiny.trained())
    assert "broken" not in text
    assert text.count("holds") >= len(rows)
    assert "torch" in text


def test_the_doctor_finds_a_run_that_is_ill(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "laws_of", lambda case: {"no": Law("what cannot be", lambda case: 1.0)})
    assert main(["doctor", str(tiny.trained())]) == 1
    assert "broken" in capsys.readouterr().out


# ---- the whole way, as a person goes it


def test_exit_codes_reach_the_shell(tmp_path: Path) -> None:
    started = time.monotonic()
    assert tiny.command("--version").stdout == f"regard {regard.__version__}\n".encode()
    assert time.monotonic() - started < 10
    found = tiny.command("train", "missing.toml", cwd=tmp_path)
    assert found.returncode == 2
    assert found.stderr.decode().splitlines() == ["regard: missing.toml: no such recipe file"]
    assert not found.stdout
