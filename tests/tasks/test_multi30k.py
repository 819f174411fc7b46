"""The recipes of Multi30k on the real files: they load, their references are the published ones, and they learn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console

from regard import run
from regard.config import Recipe, make_recipe, merge, read_toml
from regard.data.text import BadLines
from regard.data.tokenizer import join
from regard.metrics.translation import bleu
from regard.models import schema
from regard.prepare.rewrite import bleu_of, examples, prepare
from regard.recipes import find_recipe
from regard.training import loop

pytestmark = pytest.mark.data("multi30k")
SMALL = {"dim": 32, "heads": 2, "layers": 1, "hidden": 64}


@pytest.fixture
def data(data_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = data_dir("multi30k")
    monkeypatch.setenv("REGARD_DATA", str(folder.parent))
    return folder


def recipe(name: str, data: Path, home: Path) -> Recipe:
    """A shipped recipe, its model and its training made small; of its training text only the first thousand lines."""
    values = read_toml(find_recipe(name))
    short = []
    for path in values["data"]["train"]:
        lines = (data.parent / path).read_text("utf-8").split("\n")[:1000]
        short.append(home / Path(path).name)
        short[-1].write_text("\n".join(lines) + "\n", "utf-8")
    model = {key: value for key, value in values["model"].items() if key != "size"} | SMALL
    train = {"steps": 12, "tokens": 1024, "warmup": 4, "rate": 0.01, "threads": 1, "save_every": 12, "log_every": 1}
    changes = {"data": {"train": [str(path) for path in short]}, "train": {**train, "final": "last"}}
    return make_recipe(merge({**values, "model": model}, changes), schema)


@pytest.mark.parametrize("name", ["multi30k-en-de", "multi30k-en-de-cased"])
def test_every_split_of_the_recipe_is_whole(name: str, data: Path) -> None:
    config = make_recipe(read_toml(find_recipe(name)), schema).data
    for split, wanted in (("train", 29_000), ("valid", 1_014), ("test", 1_000)):
        bad = BadLines()
        assert sum(1 for _ in examples(config, split, bad)) + len(bad) == wanted  # type: ignore[arg-type]
        assert len(bad) == 0


@pytest.mark.parametrize(("split", "tok"), [("valid", "val"), ("test", "test_2016_flickr")])
def test_references_are_the_published_ones(split: str, tok: str, data: Path) -> None:
    """The words whole again are the tokenised text, so BLEU is counted on what everybody else counted on."""
    config = make_recipe(read_toml(find_recipe("multi30k-en-de")), schema)
    found = [join(target, "@@") for _, _, target in examples(config.data, split, BadLines())]  # type: ignore[arg-type]
    published = (data / "tok" / f"{tok}.de").read_text("utf-8").lower().rstrip("\n").split("\n")
    assert found == [line.strip() for line in published]
    assert "tok:none" in bleu(found[:9], found[:9], bleu_of(config)).definition


@pytest.mark.parametrize("name", ["multi30k-en-de", "multi30k-en-de-cased"])
def test_a_few_steps_lower_the_loss(name: str, data: Path, tmp_path: Path) -> None:
    small, task = prepare(recipe(name, data, tmp_path), tmp_path)
    training = run._begin(small, tmp_path)
    assert len(task.held["test"].references) == 1000
    feed, losses = loop.Feed(training, task), []
    for _ in range(small.train.steps):
        sums, _, _ = loop.gradients(training, task, small.train, feed)
        sums["norm"] = loop.scale(training, sums["count"], small.train.clip)
        losses.append(float(sums["loss"]) / float(sums["count"]))
        loop.update(training, small.train)
        training.model.zero_grad()
        training.step += 1
    assert losses[-1] < losses[0] - 0.5
    assert all(torch.tensor(losses).isfinite())


def test_text_that_was_split_beforehand_comes_out_whole(data: Path, tmp_path: Path) -> None:
    values = recipe("multi30k-en-de", data, tmp_path).model_dump(mode="json", exclude_none=True)
    held = {"valid": [], "test": []}
    run.start(
        make_recipe(merge(values, {"data": held, "train": {"steps": 2}}), schema), tmp_path / "run", Console(quiet=True)
    )
    model = run.load(tmp_path / "run")
    answers = model(["a man in an orange hat star@@ ring at something ."], longest=12, beam=2)
    assert all("@@" not in answer for answer in answers)
