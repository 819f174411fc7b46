"""Series of numbers, the whole way that a person goes: train, load, ask, evaluate, look, examine, serve; and what is
refused. For each kind of answer one system or more.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import regard
from regard import run
from regard.cli import main
from regard.config import make_recipe, merge
from regard.data.numbers import PIXELS, order_of
from regard.errors import CheckpointError, ConfigError, DataError
from regard.models import schema
from regard.pipeline import Pipeline, read_run
from regard.tasks.classify import Classified
from regard.tasks.series import Frame

QUIET = Console(quiet=True)
TRAIN = {"steps": 3, "tokens": 400, "rows": 4, "warmup": 1, "threads": 1, "evaluate_every": 3, "save_every": 3}
TCN = {"dim": 6, "levels": 2, "kernel": 3}
RECURRENT = {"dim": 6, "layers": 1, "cell": "gru"}
GPT = {"dim": 8, "heads": 2, "layers": 1, "context": 64}


@cache
def folder() -> Path:
    """Small files of every kind."""
    place, dice = Path(mkdtemp()), np.random.default_rng(0)
    x, names = dice.normal(size=(30, 12, 2)).astype(np.float32), np.array(["low", "high"])
    np.savez(place / "labels.npz", x=x, y=names[(x.mean((1, 2)) > 0).astype(int)], lengths=dice.integers(3, 13, 30))
    np.savez(place / "steps.npz", x=x, y=(x[..., 0] > 0).astype(int))
    np.savez(place / "keys.npz", x=dice.integers(0, 2, (30, 12, 5)))
    for split, count in (("train", 30), ("test", 10)):
        for name, array in (("images", dice.integers(0, 256, (count, 4, 4))), ("labels", np.arange(count) % 3)):
            sides = b"".join(side.to_bytes(4, "big") for side in array.shape)
            data = bytes([0, 0, 8, array.ndim]) + sides + array.astype(np.uint8).tobytes()
            (place / f"{split}-{name}").write_bytes(data)
    return place


def values(kind: str, system: str, model: dict[str, Any], **data: Any) -> dict[str, Any]:
    return {
        "system": system, "data": data, "task": {"name": "series", "kind": kind}, "model": model, "train": TRAIN
    }  # fmt: skip


def files(name: str) -> dict[str, list[str]]:
    return {split: [str(folder() / name)] for split in ("train", "valid", "test")}


def images() -> dict[str, Any]:
    named = {split: [str(folder() / f"{split}-{name}") for name in ("images", "labels")] for split in ("train", "test")}
    return {**named, "held": 0.2, "permute": 5}


RECIPES: dict[str, dict[str, Any]] = {
    "adding": values("number", "tcn", TCN, made="adding", length=9, count=40),
    "copy": values("labels", "recurrent", RECURRENT, made="copy", length=5, count=40),
    "order": values("label", "gpt", GPT, made="order", length=20, count=40),
    "label": values("label", "tcn", TCN, **files("labels.npz")),
    "images": values("label", "recurrent", {**RECURRENT, "cell": "lstm"}, **images()),
    "steps": values("labels", "gpt", GPT, **files("steps.npz")),
    "keys": values("keys", "tcn", TCN, **files("keys.npz")),
}
ASKED = {
    "adding": "[[0.5, 1], [0.25, 0], [0.125, 1]]",
    "copy": "[1, 2, 3, 0, 0, 9, 9]",
    "order": json.dumps(np.eye(8, dtype=int)[[6, 0, 4, 1, 5, 7]].tolist()),
    "label": "[[0.5, 1], [1e-3, -2]]",
    "images": json.dumps(list(range(16))),
    "steps": "[[0, 1], [1, 0], [1, 1]]",
    "keys": "[[0, 1, 0, 1, 1], [1, 0, 0, 1, 0]]",
}
every = pytest.mark.parametrize("name", RECIPES)


@cache
def trained(name: str) -> Path:
    place = Path(mkdtemp()) / name
    run.start(make_recipe(RECIPES[name], schema), place, QUIET)
    return place


@cache
def pipeline(name: str) -> Pipeline:
    return regard.load(trained(name))


# ---- the whole way


@every
def test_a_run_measures_its_test_split_as_it_is_measured_later(name: str) -> None:
    told = json.loads((trained(name) / "evaluation.json").read_text("utf-8"))
    again = run.evaluate(trained(name), QUIET)
    assert {key: row["value"] for key, row in told.items()} == pytest.approx(dict(again), rel=1e-5)
    assert all(row["definition"] for row in told.values())
    assert not (trained(name) / "tokenizer.json").exists()


@every
def test_in_bf16_it_is_asked_and_measured_nearly_alike(name: str) -> None:
    model = regard.load(trained(name), arithmetic="bf16")
    assert {weight.dtype for weight in model.model.parameters()} == {torch.bfloat16}
    assert json.dumps(model.ask([ASKED[name]])[0].json)
    found, exact = (run.evaluate(trained(name), QUIET, arithmetic=kind)["loss"] for kind in ("bf16", "fp32"))
    assert found == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize("name", ["label", "images", "steps", "keys"])
def test_other_files_are_measured_alike(name: str) -> None:
    found = run.evaluate(trained(name), QUIET, files=RECIPES[name]["data"]["test"])
    assert dict(found) == pytest.approx(dict(run.evaluate(trained(name), QUIET)), rel=1e-5)


@every
def test_a_question_is_answered_alone_as_in_company(name: str) -> None:
    model, text = pipeline(name), ASKED[name]
    longer = json.dumps(json.loads(text) * 2)
    together = model.ask([text, longer, text])
    assert [reply.text for reply in together[::2]] == [model.ask([text])[0].text] * 2
    assert together[1].text == model.ask([longer])[0].text
    assert all(json.dumps(reply.json) for reply in together)


def test_what_is_told_of_each_kind() -> None:
    assert isinstance(pipeline("adding")(ASKED["adding"]), float)
    label = pipeline("label")(ASKED["label"])
    assert isinstance(label, Classified)
    assert set(label.probabilities) == {"high", "low"}
    assert set(pipeline("order")(ASKED["order"]).probabilities) == {"XX", "XY", "YX", "YY"}
    steps = pipeline("copy")(ASKED["copy"])
    assert len(steps) == 7
    assert set(steps[0].probabilities) == set("0123456789")
    frame = pipeline("keys")(ASKED["keys"])
    assert isinstance(frame, Frame)
    assert frame.keys == tuple(key for key, share in frame.probabilities.items() if share > 0.5)
    assert set(frame.probabilities) == set("01234")
    for name, kind in (("adding", "number"), ("label", "label"), ("copy", "labels"), ("keys", "keys")):
        assert kind in pipeline(name).ask([ASKED[name]])[0].json
    (reply,) = pipeline("order").ask([ASKED["order"]], top=2)
    assert len(reply.json["probabilities"]) == 2
    assert reply.text.count("\t") == 2


def test_python_takes_arrays() -> None:
    model = pipeline("label")
    x = np.array([[0.5, 1], [1e-3, -2]])
    assert model([x, x]) == [model(ASKED["label"])] * 2


def test_what_is_asked_is_read_as_the_data_was() -> None:
    """Pixels are scaled, and put into the order of the training."""
    model = pipeline("images")
    x = model.read(ASKED["images"], 1)  # type: ignore[attr-defined]
    times, plus = PIXELS
    np.testing.assert_allclose(x[:, 0], order_of(16, 5) * times + plus, rtol=1e-5)
    stored = run.prepare(read_run(trained("images")), trained("images"))[1].held["test"].batch(np.arange(1))  # type: ignore[attr-defined]
    pixels = np.frombuffer((folder() / "test-images").read_bytes(), np.uint8)[16:32]
    np.testing.assert_allclose(stored.x[0], model.read(pixels.tolist(), 1), rtol=1e-5)  # type: ignore[attr-defined]


@every
def test_the_doctor_finds_nothing(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(trained(name)), "--json"]) == 0
    found = {row["law"]: row for row in json.loads(capsys.readouterr().out)}
    assert all(row["holds"] for row in found.values())
    assert "apart" in found["answers"]


@every
def test_what_was_looked_at_can_be_drawn_where_there_is_attention(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if RECIPES[name]["system"] != "gpt":
        sentence = "this model has no attention to watch; take one that has, such as a Transformer"
        with pytest.raises(ConfigError, match=f"^{sentence}$"):
            pipeline(name).look(ASKED[name])
        for given in ([], ["no JSON"], [ASKED[name]]):
            assert main(["look", str(trained(name)), *given]) == 2
            assert capsys.readouterr().err == f"regard: {sentence}\n"
        return
    trace = pipeline(name).look(ASKED[name])
    for weights in trace.maps.values():
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-4)
        assert weights.shape[-1] == len(json.loads(ASKED[name]))


@pytest.mark.parametrize("name", ["copy", "images", "keys"])
def test_resuming_ends_where_an_undisturbed_run_ends(name: str, tmp_path: Path) -> None:
    recipe = merge(RECIPES[name], {"train": {"steps": 4, "save_every": 1, "keep": 4, "final": "last"}})
    run.start(make_recipe(recipe, schema), tmp_path / "run", QUIET)
    whole = (tmp_path / "run" / "model.safetensors").read_bytes()
    (tmp_path / "run" / "model.safetensors").unlink()
    _, *later = sorted(place for place in (tmp_path / "run" / "checkpoints").iterdir() if place.is_dir())
    for place in later:
        shutil.rmtree(place)
    printed = io.StringIO()
    run.resume(tmp_path / "run", Console(file=printed, width=300))
    assert "going on from step 1" in printed.getvalue()
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == whole


def test_a_rehearsal_tells_the_form_of_a_batch() -> None:
    printed = io.StringIO()
    run.rehearse(make_recipe(RECIPES["copy"], schema), Console(file=printed, width=300))
    assert "x 4 × 25 × 1" in printed.getvalue()
    assert "100 to predict" in printed.getvalue()
    assert "vocabulary" not in printed.getvalue()


def test_a_run_begins_with_another(tmp_path: Path) -> None:
    recipe = merge(RECIPES["adding"], {"train": {"begin": str(trained("adding"))}, "data": {"length": 12}})
    run.start(make_recipe(recipe, schema), tmp_path / "run", QUIET)
    assert read_run(tmp_path / "run").model == read_run(trained("adding")).model


# ---- by commands


def test_predicting_by_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = str(trained("label"))
    assert main(["predict", place, ASKED["label"], "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"label", "probabilities"}
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{ASKED['label']}\n".encode())))
    assert main(["predict", place, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == told
    assert main(["predict", place, "--input", str(folder() / "labels.npz"), "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 30
    np.savez(tmp_path / "one.npz", x=np.array([json.loads(ASKED["label"])]))
    assert main(["predict", place, "--input", str(tmp_path / "one.npz"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["label"] == told["label"]
    assert main(["predict", str(trained("images")), "--input", str(folder() / "test-images")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 10
    assert main(["predict", place, ASKED["label"], "--input", "x.npz"]) == 2
    assert "inputs come from x.npz; leave out either" in capsys.readouterr().err


def test_evaluating_by_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(trained("adding"))]) == 0
    assert "1/6 = 0.1667" in " ".join(capsys.readouterr().out.split())
    assert main(["evaluate", str(trained("images")), "--split", "valid", "--json"]) == 0
    assert "of 6" in json.loads(capsys.readouterr().out)["accuracy"]["definition"], "a share of the training data"


def test_a_card_says_what_a_run_is() -> None:
    assert "Data: made (adding), 40 examples for training." in (trained("adding") / "README.md").read_text("utf-8")


# ---- what is refused


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("adding", "0.5, 1", r"input 1 is no JSON; write for example \[\[0, 0\], \[1, 1\]\]"),
        ("keys", "60 64", r"input 1 is no JSON; write for example \[\[0, 0, …\], \[1, 1, …\]\], 5 numbers a step$"),
        ("adding", "", "input 1 is no JSON; write for example"),
        ("copy", '["a"]', r"input 1 is no list of steps, each of equally many numbers; write for example \[0, 1\]"),
        ("copy", "[[1], [1, 2]]", "input 1 is no list of steps, each of equally many numbers"),
        ("copy", f"[{10**400}]", "input 1 is no list of steps, each of equally many numbers"),
        ("copy", "[1e300]", "input 1 has a number that is not finite"),
        ("copy", '{"x": 1}', "input 1 is no list of steps, each of equally many numbers"),
        ("copy", "3", r"input 1 has the shape \[\], where a list of steps was wanted, each a number"),
        ("copy", "[]", r"input 1 has the shape \[0, 1\], where a list of steps was wanted"),
        (
            "adding",
            "[1, 2]",
            r"input 1 has the shape \[2\], where a list of steps was wanted, each a list of 2 numbers",
        ),
        ("adding", "[[1, 2, 3]]", r"input 1 has the shape \[1, 3\], where a list of steps was wanted"),
        ("adding", "[[1, NaN]]", "input 1 has a number that is not finite; leave such steps out"),
        ("adding", "[[1, 1e999]]", "input 1 has a number that is not finite"),
        ("copy", "[" * 100_000, "input 1 is no JSON"),
        ("order", json.dumps([[0] * 8] * 65), "input 1 has 65 steps, but this model reads at most 64; cut it"),
    ],
)
def test_what_is_no_series(name: str, text: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        pipeline(name).ask([text])
    with pytest.raises(DataError, match=sentence.replace("input 1", "input 7")):
        pipeline(name).check(text, 7)


@every
def test_a_setting_without_effect_is_refused(name: str) -> None:
    for wrong in ({"beam": 3}, {"embed": True}):
        with pytest.raises(ConfigError, match="takes no such setting"):
            pipeline(name).ask([ASKED[name]], **wrong)
    with pytest.raises(ConfigError, match=r"beam: nothing is decoded to measure the task 'series'; leave it out"):
        run.evaluate(trained(name), QUIET, how={"beam": 3})


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        (
            "adding",
            {"task": {"kind": "label"}},
            'task.kind = "label": made = "adding" asks for another; write kind = "number"',
        ),
        ("copy", {"task": {"kind": "keys"}}, 'made = "copy" asks for another; write kind = "labels"'),
        ("adding", {"data": {"length": 1}}, 'data.length = 1 is too short for made = "adding"; write 2 or more'),
        (
            "adding",
            {"data": {"permute": 1}},
            "data.permute: a made series has no other order than its own; leave it out",
        ),
        ("adding", {"data": {"held": 0.1}}, "data.held: a made task has splits of its own; leave it out"),
        ("adding", {"data": {"labels": ["a"]}}, "data.labels: a made task has labels of its own; leave it out"),
        ("adding", {"train": {"metric": "accuracy"}}, "train.metric: the task measures no 'accuracy'; known: loss"),
        (
            "label",
            {"train": {"metric": "recalled"}},
            "train.metric: the task measures no 'recalled'; known: accuracy, loss",
        ),
        ("adding", {"train": {"tokens": 8}}, "train.tokens = 8 cannot hold the longest example of 9 tokens"),
        (
            "order",
            {"model": {"context": 19}},
            "model.context = 19 is shorter than the longest example of 20 steps; write",
        ),
        ("label", {"data": {"held": 0.99, "valid": []}}, "data.held = 0.99 leaves none of 30 examples to learn from"),
        ("label", {"task": {"kind": "keys"}}, "x has other numbers than 0 and 1"),
        ("label", {"task": {"kind": "number"}}, 'y has texts, where task.kind = "number" wants numbers'),
        ("label", {"data": {"permute": 1}}, "data.permute is for examples of equally many steps"),
        ("label", {"system": "transformer", "model": {}}, "a transformer cannot do the task 'series'; write system = "),
    ],
)
def test_a_recipe_that_does_not_fit(name: str, changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    values = {**merge(RECIPES[name], {k: v for k, v in changes.items() if k != "model"})}
    values["model"] = (
        changes["model"] if "system" in changes else {**RECIPES[name]["model"], **changes.get("model", {})}
    )
    with pytest.raises((ConfigError, DataError)) as told:
        run.start(make_recipe(values, schema), tmp_path / "run", QUIET)
    assert sentence in str(told.value)
    assert not (tmp_path / "run").exists()


def test_what_is_held_out_has_the_form_of_what_is_learnt_from(tmp_path: Path) -> None:
    wide = {**RECIPES["label"], "data": {**files("labels.npz"), "test": [str(tmp_path / "wide.npz")]}}
    np.savez(tmp_path / "wide.npz", x=np.zeros((2, 3, 5)), y=["low", "high"])
    with pytest.raises(ConfigError, match=r"data: 5 channels are held out, but 2 are learnt from; give files of one"):
        run.start(make_recipe(wide, schema), tmp_path / "run", QUIET)
    with pytest.raises(
        DataError, match=r"wide.npz: 5 channels, but this model reads 2; give files of the form that it"
    ):
        run.evaluate(trained("label"), QUIET, files=[str(tmp_path / "wide.npz")])


def test_bad_examples_are_told_of(tmp_path: Path) -> None:
    x = np.zeros((4, 3, 1))
    x[2, 1] = np.nan
    np.savez(tmp_path / "a.npz", x=x, y=[0, 1, 1, 0])
    printed = io.StringIO()
    recipe = values("label", "tcn", TCN, train=[str(tmp_path / "a.npz")])
    run.start(make_recipe(recipe, schema), tmp_path / "run", Console(file=printed, width=300))
    assert "train: 1 of 4 examples skipped: 1 with a number that is none (example 3)" in printed.getvalue()
    recipe["data"]["bad_lines"] = "refuse"
    with pytest.raises(DataError, match=r"a.npz, example 3: x has a number that is not finite; mend it, or set data"):
        run.start(make_recipe(recipe, schema), tmp_path / "other", QUIET)


def test_a_run_whose_data_is_gone_still_answers(tmp_path: Path) -> None:
    place = shutil.copytree(trained("label"), tmp_path / "run")
    shutil.rmtree(place / "data")
    assert regard.load(place)(ASKED["label"]) == pipeline("label")(ASKED["label"])


def test_a_damaged_store(tmp_path: Path) -> None:
    place = shutil.copytree(trained("label"), tmp_path / "run")
    (place / "data" / "test" / "x").write_bytes(b"short")
    with pytest.raises(DataError, match="cannot be read as encoded data"):
        run.evaluate(place, QUIET)


def test_numbers_are_not_exported(tmp_path: Path) -> None:
    for way in ("hf", "onnx", "ctranslate2"):
        for name in ("adding", "order"):
            assert main(["export", str(trained(name)), str(tmp_path / way), "--to", way]) == 2
            assert not (tmp_path / way).exists()


def test_text_is_no_file_of_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("the cat sat on the mat. " * 9, "utf-8")
    recipe = {
        "system": "tcn", "data": {"train": [str(tmp_path / "a.txt")], "longest": 16}, "task": {"name": "language"},
        "tokens": {"kind": "char"}, "model": {**TCN, "embedding": 6}, "train": {**TRAIN, "evaluate_every": 0},
    }  # fmt: skip
    run.start(make_recipe(recipe, schema), tmp_path / "run", QUIET)
    assert main(["predict", str(tmp_path / "run"), "--input", "a.npz"]) == 2
    said = "input: the task 'language' reads text; write its lines to standard input: < a.npz"
    assert said in capsys.readouterr().err


def test_a_run_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        regard.load(tmp_path / "nowhere")
