"""A run that reads numbers is served as any other; what it cannot do is refused in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import served
from rich.console import Console
from served import Served, serving

import regard
from regard import run
from regard.config import make_recipe
from regard.models import schema


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    values: dict[str, Any] = {
        "system": "tcn", "task": {"name": "series", "kind": "number"}, "model": {"dim": 4, "levels": 2},
        "data": {"made": "adding", "length": 8, "count": 20}, "train": {**served.TRAIN, "steps": 2, "save_every": 2},
    }  # fmt: skip
    found = tmp_path_factory.mktemp("runs") / "adding"
    run.start(make_recipe(values, schema), found, Console(quiet=True))
    return found


@pytest.fixture
def numbers(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(served, "folder", lambda name: place)
    with serving("adding") as server:
        yield server


def test_numbers_are_answered_as_the_pipeline_does(numbers: Served, place: Path) -> None:
    texts = ["[[0.5, 1], [0.25, 0], [0.125, 1]]", "[[0.5, 1]]"]
    reply = numbers.ask("POST", "/v1/predict", json={"input": texts}).json()
    expected = [answer.json["number"] for answer in regard.load(place).ask(texts)]
    assert [answer["number"] for answer in reply["answers"]] == pytest.approx(expected, abs=1e-5)
    (about,) = numbers.ask("GET", "/v1/models").json()["data"]
    assert about["task"] == "series"
    assert about["settings"] == ["top"]


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        ("predict", {"input": "0.5, 1"}, "input 1 is no JSON; write for example [[0, 0], [1, 1]]"),
        ("predict", {"input": ["[[1, 1]]", "[1]"]}, "input 2 has the shape [1], where a list of steps was wanted"),
        ("predict", {"input": str([[0, 1]] * 33_000)[:90_000]}, "is no JSON"),
        (
            "predict",
            {"input": ["[" + "[0,1]," * 15_000 + "[0,1]]"] * 3},
            "have 45,003 tokens in all, and 32,768 may be",
        ),
        ("predict", {"input": "[[1, 1]]", "beam": 2}, "a tcn with the task 'series' takes no such setting"),
        (
            "embeddings",
            {"input": "[[1, 1]]"},
            "a tcn with the task 'series' has no vector of a text; ask it by /v1/pred",
        ),
        ("completions", {"prompt": "[[1, 1]]"}, "adding has the task 'series' and does not go on with a text"),
        ("trace", {"input": "[[1, 1]]"}, "this model has no attention to watch; take one that has"),
    ],
)
def test_what_it_cannot_do_is_refused(numbers: Served, path: str, body: dict[str, Any], sentence: str) -> None:
    reply = numbers.ask("POST", f"/v1/{path}", json=body)
    assert 400 <= reply.status_code < 500
    assert sentence in reply.json()["error"]["message"]


def test_its_training_can_be_followed(numbers: Served) -> None:
    """Its log, that is: there is nothing that it looked at."""
    course = numbers.ask("GET", "/v1/runs/adding/training").json()
    assert course["metrics"]
    assert course["checkpoints"] == []
