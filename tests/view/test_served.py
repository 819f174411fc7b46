"""The page on the server that `regard serve` runs: its policy, its key, its compression, its refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import urlopen

import pytest
import tiny
from browsing import Tab, browsing

pytest.importorskip("fastapi", reason="no FastAPI: the page was NOT tried on its own server")

KEY = "a-key"
VIEWS = ("overview", "head", "alignment", "search", "arithmetic", "positions", "training", "compare")
TEXT = "the cat sat on the mat . a dog ran in the park . birds fly over the old house . "
READS = "This model has no attention from what it writes to what it has read; see Head."
ONCE = "Nothing was searched for here: this model reads, and answers at once."


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of several systems, each as small as can be."""
    home = tmp_path_factory.mktemp("runs")
    (home / "stream.txt").write_text(TEXT * 20, "utf-8")
    lines = [f"{part}\t{'good' if i % 2 else 'bad'}" for i, part in enumerate(TEXT.split(" . ")[:3] * 4)]
    (home / "labelled.tsv").write_text("\n".join(lines), "utf-8")
    train = {"steps": 4, "tokens": 256, "warmup": 1, "threads": 1, "evaluate_every": 0, "save_every": 2, "log_every": 2}
    model = {"dim": 16, "heads": 2, "layers": 1, "context": 64}
    small = {"train": train, "decode": {"longest": 12}}
    recurrent = {"dim": 16, "embedding": 16, "decoder": "bahdanau", "score": "additive", "tied": "target"}
    data = {"made": "spoken", "count": 200, "held": 8}
    tiny.train(home / "recurrent", {
        "system": "seq2seq", "model": recurrent, "data": data, "tokens": {"size": 270, "joint": False}, **small,
    })  # fmt: skip
    tiny.train(home / "writer", {
        "system": "gpt", "task": {"name": "language"}, "model": model, "tokens": {"kind": "char"},
        "data": {"train": [str(home / "stream.txt")], "held": 0.1, "longest": 48}, **small,
    })  # fmt: skip
    tiny.train(home / "labels", {
        "system": "bert", "task": {"name": "classify"}, "model": {**model, "hidden": 32},
        "tokens": {"kind": "wordpiece", "size": 120}, "train": train,
        "data": {"train": [str(home / "labelled.tsv")], "valid": [str(home / "labelled.tsv")], "longest": 48},
    })  # fmt: skip
    shutil.copytree(tiny.trained(), home / "older")
    (home / "older" / "looks.jsonl").unlink()
    return home


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    from regard.serve.address import bind
    from regard.serve.app import application
    from regard.serve.metrics import Metrics
    from regard.serve.models import Models
    from regard.serve.server import Serving

    metrics = Metrics()
    folders = [tiny.trained(), *(home / name for name in ("recurrent", "writer", "labels", "older"))]
    models = Models(folders, metrics=metrics, device="cpu")
    models.load()
    assert models.trouble is None
    with bind("127.0.0.1", 0, exactly=False) as listener:
        server = Serving(application(models, metrics, key=KEY), models, say=lambda text: None)
        thread = Thread(target=server.listen, args=([listener],), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/?token={KEY}"
        server.should_exit = True
        thread.join(10)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsing() as found:
        yield found


def course_of(address: str, run: str) -> dict[str, Any]:
    with urlopen(address.replace("?", f"v1/runs/{run}/training?")) as reply:
        found: dict[str, Any] = json.load(reply)
    return found


def test_a_model_is_asked_and_every_view_opens(browser: Any, address: str) -> None:
    one = Tab(browser)
    one.open(address, "overview")
    assert one.text(".said"), "it opens with a text that was held out, and its answer"
    one.page.evaluate("() => performance.clearMarks()")
    one.page.get_by_label("Text", exact=True).fill("twenty-three")
    one.page.get_by_role("button", name="Look", exact=True).click()
    one.drawn("overview")
    one.page.evaluate("document.activeElement.blur()")
    for number, view in enumerate(VIEWS, 1):
        one.press(str(number))
        one.drawn(view)
        assert one.page.locator(f"#panel-{view}").is_visible()
    one.press("2", "]")
    one.page.get_by_role("button", name="Silence this head").click()
    one.page.wait_for_selector("text=Answered now")
    one.close()


def test_every_view_opens_for_other_systems(browser: Any, address: str) -> None:
    one = Tab(browser)
    one.open(address, "overview")
    before = "tiny"
    for run, text, missing in (
        ("recurrent", "five", {"positions": "This model adds no positions"}),
        ("writer", "the cat\nsat", {"alignment": READS}),
        ("labels", "the cat sat on the mat", {"alignment": READS, "search": ONCE}),
    ):
        one.page.get_by_label("Model", exact=True).select_option(run)
        one.page.get_by_label("Text", exact=True).fill(text)
        one.page.get_by_role("button", name="Look", exact=True).click()
        one.page.wait_for_function("run => document.querySelector('#title').innerText === run", arg=run)
        one.page.evaluate("() => { document.activeElement.blur(); performance.clearMarks(); }")
        for number, view in enumerate(VIEWS, 1):
            one.press(str(number))
            if view in missing:
                assert missing[view] in one.text(f"#panel-{view}")
            else:
                one.drawn(view)
        first = one.text("#panel-compare h2 >> nth=0")
        assert first.startswith(f"First: {before}: "), "another run is called by its name"
        one.press("5")
        assert ("q · k" in one.text("#panel-arithmetic .steps")) == (run != "recurrent")
        assert "–" not in one.text("#panel-arithmetic table")
        if run == "writer":
            assert one.text("#ask .prose >> nth=0") == text, "its lines stay lines"
            one.press("2")
            assert one.text("#cell").startswith("While it read")
            one.page.locator("#panel-head canvas").last.focus()
            one.press(*["ArrowDown"] * len(text))
            assert one.text("#cell").startswith("While it wrote")
        before = run
    assert one.text(".said") in ("good", "bad")
    one.close()


def test_words_are_drawn_by_lot_when_it_is_asked_for(browser: Any, address: str) -> None:
    one = Tab(browser)
    one.open(address, "overview")
    one.page.get_by_text("What if …").click()
    assert not one.page.get_by_label("Sample").is_visible(), "what rewrites is always searched for"
    one.page.get_by_label("Model", exact=True).select_option("writer")
    one.page.get_by_label("Text", exact=True).fill("the cat")
    one.page.get_by_label("Beam").fill("3")
    one.page.get_by_role("button", name="Look", exact=True).click()
    one.page.wait_for_function("() => document.querySelector('#title').innerText === 'writer'")
    one.press("4")
    one.drawn("search")
    one.page.get_by_label("Sample").check()
    one.page.get_by_label("Seed").fill("5")
    assert one.page.get_by_label("Beam").is_disabled()
    one.page.get_by_role("button", name="Look", exact=True).click()
    one.page.wait_for_selector("text=the words were drawn by lot")
    one.close()


def test_a_training_is_told_as_it_was_noted(address: str) -> None:
    noted = [json.loads(line) for line in (tiny.trained() / "looks.jsonl").read_text("utf-8").splitlines()]
    course = course_of(address, "tiny")
    assert [look["step"] for look in course["checkpoints"]] == [line["step"] for line in noted] == [*range(0, 260, 10)]
    for look, line in zip(course["checkpoints"], noted, strict=True):
        assert look["weights"] == line["weights"]
        assert look["caption"] == f"{course['text']} → {line['answer']}"


def test_without_notes_checkpoints_are_asked_and_remembered(address: str, home: Path) -> None:
    """They write the same words, and one that has been tidied away stays known."""
    before = course_of(address, "older")["checkpoints"]
    after = [look for look in course_of(address, "tiny")["checkpoints"] if look["step"] in (0, 250)]
    assert [(look["step"], look["rows"]) for look in before] == [(look["step"], look["rows"]) for look in after]
    shutil.rmtree(home / "older" / "checkpoints" / "step-00000000")
    assert course_of(address, "older")["checkpoints"] == before


def test_a_writer_is_looked_at_in_a_text_that_was_held_out_and_draws_no_lots(address: str) -> None:
    course = course_of(address, "writer")
    looks = course["checkpoints"]
    assert course["text"] in TEXT * 2
    assert len(course["text"]) > 10
    assert {look["step"] for look in looks} >= {2, 4}
    assert {tuple(look["rows"][:-1]) for look in looks} == {tuple(looks[0]["rows"][:-1])}
    assert course_of(address, "writer")["checkpoints"] == looks
