"""The page in a real browser: it opens, tells the truth, obeys the keyboard, and lets nothing in or out."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import tiny
from browsing import Tab, browsing
from standin import Standin, standing_in

from regard.pipeline import load
from regard.training.log import plain, read_metrics
from regard.view import contract
from regard.view.capture import Trace
from regard.view.contract import trace_of
from regard.view.html import page
from regard.view.notebook import Shown

VIEWS = ("overview", "head", "alignment", "search", "arithmetic", "positions", "training", "compare")
COLOURS = {  # what each view says of its colours
    "overview": ["weight 0"], "head": ["weight 0"], "alignment": ["weight 0"], "search": [], "arithmetic": ["negative"],
    "positions": ["negative"], "training": ["weight 0"], "compare": ["weight 0", "less weight"],
}  # fmt: skip
VIOLATIONS = {"resultTypes": ["violations"]}  # of all else axe need not tell every node
EVIL = "</script><img src=x onerror=document.title='owned'>"
HOSTILE = [EVIL, "<!--", "{{data}}", "]]>", "\u2028", "&lt;b&gt;", "\u202etxt", "__proto__", "=1+1", "<eos>"]
MIDDLES = """([rows, columns]) => {
  // the grid ends two pixels before the lower right corner, and its cells are squares
  const canvas = document.querySelector("#panel-alignment canvas");
  const { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  const light = (x, y) => [0, 1, 2].reduce((sum, i) => sum + data[4 * (y * width + x) + i], 0);
  let top = height - 3;
  while (top > 0 && data[4 * (top * width + width - 8) + 3]) top--;
  const side = Math.round((height - 3 - top) / rows);
  const middle = (end, count, i) => Math.round(end - 2 - (count - i - 0.5) * side);
  return Array.from({ length: rows }, (_, r) =>
    Array.from({ length: columns }, (_, c) => light(middle(width, columns, c), middle(height, rows, r))));
}"""
HURRY = "{ const real = window.setInterval; window.setInterval = (work, wait) => real(work, Math.min(wait, 200)); }"
Make = Callable[..., Trace]
Open = Callable[..., Tab]
CROSS = "decoder.0.cross"


@pytest.fixture(scope="module")
def pipeline() -> Any:
    return load(tiny.trained(), device="cpu")


@pytest.fixture(scope="module")
def trace(pipeline: Any) -> Trace:
    return trace_of(pipeline, "twenty-three", beam=3)


@pytest.fixture(scope="module")
def standin(pipeline: Any, trace: Trace) -> Standin:
    def make(body: dict[str, Any]) -> Trace:
        assert body.pop("model") == "tiny"
        return trace_of(pipeline, body.pop("input"), **body)

    return Standin(make, [{"id": "tiny"}], course(pipeline.folder))


def course(run: Path) -> dict[str, Any]:
    """The log and the looks of a run, as its training left them."""
    log, looks = (read_metrics(run / name) for name in ("metrics.jsonl", "looks.jsonl"))
    told = [{**look, "across": True, "caption": f"{look['text']} → {look['answer']}"} for look in looks]
    return {"metrics": [plain(line) for line in log], "text": looks[0]["text"], "checkpoints": told}


@pytest.fixture(scope="module")
def address(standin: Standin) -> Iterator[str]:
    with standing_in(standin) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsing() as found:
        yield found


@pytest.fixture(scope="module")
def opened(browser: Any) -> Iterator[Tab]:
    one = Tab(browser)
    yield one
    one.close()


@pytest.fixture
def reader(opened: Tab) -> Iterator[Tab]:
    """One page for all tests that open addresses and read, and touch nothing."""
    yield opened
    assert opened.trouble == []


@pytest.fixture
def tab(browser: Any) -> Iterator[Open]:
    opened: list[Tab] = []

    def new(**how: Any) -> Tab:
        opened.append(Tab(browser, **how))
        return opened[-1]

    yield new
    for one in opened:
        one.close()


def link(address: str, standin: Standin, trace: Trace, **at: Any) -> str:
    at = {"trace": standin.add(trace), **at}
    return f"{address}#{'&'.join(f'{name}={value}' for name, value in at.items())}"


def shown(value: float, digits: int = 4) -> str:
    return f"{value:.{digits}f}".replace("-", "−")


@pytest.mark.parametrize("name", ["encoder.0.attention", "decoder.0.attention", CROSS])
def test_the_number_shown_is_the_tensors(reader: Tab, address: str, standin: Standin, trace: Trace, name: str) -> None:
    heads, rows, columns = trace.maps[name].shape
    for head, query, key in ((-1, 0, 0), (0, rows - 1, columns - 1), (heads - 1, 1, 0)):
        reader.open(link(address, standin, trace, view="head", name=name, head=head, query=query, key=key), "head")
        row = trace.mean(name, None if head < 0 else [head])[query]
        assert reader.text("#cell output") == shown(row[key])
        told = [line.split("\t")[1] for line in reader.text("#inspector tbody").splitlines() if "\t" in line]
        assert told == [shown(weight) for weight in np.sort(row)[::-1][:10]]


def test_words_are_the_sum_of_their_pieces(tab: Open, address: str, standin: Standin, trace: Trace) -> None:
    """A word that asks is the mean of its pieces; marks can be left out."""
    one = tab()
    one.open(link(address, standin, trace, view="alignment", name=CROSS, head=0, merge=1, query=1, key=1), "alignment")
    assert trace.source[-1] == trace.target[-1] == "<eos>"
    read, written = len(trace.source) - 1, len(trace.target) - 1  # one word each, "twenty-three" and what it became
    assert one.text("#cell output") == shown(trace.maps[CROSS][0, :written, :read].sum(1).mean())
    one.page.get_by_label("hide marks").check()
    one.settle()
    assert "<eos>" not in one.text("#inspector")


def test_the_arithmetic_shown_is_the_tensors(reader: Tab, address: str, standin: Standin, trace: Trace) -> None:
    reader.open(link(address, standin, trace, view="arithmetic", name=CROSS, head=1, query=2), "arithmetic")
    it = contract.arithmetic(trace, CROSS, 1, 2)
    cells = [
        [cell.inner_text() for cell in row.locator("td.figure").all()]
        for row in reader.page.locator("#panel-arithmetic tbody tr").all()
    ]
    assert cells == [
        [shown(it["dots"][i]), shown(it["scores"][i]), "yes", shown(trace.maps[CROSS][1, 2, i])]
        for i in range(len(it["seen"]))
    ]


def test_the_search_shown_is_what_was_searched(reader: Tab, address: str, standin: Standin, trace: Trace) -> None:
    reader.open(link(address, standin, trace, view="search"), "search")
    tree = contract.search(trace)
    done = sorted((node for node in tree["nodes"] if node["fate"] == "finished"), key=lambda node: -node["score"])
    rows = reader.page.locator("#panel-search tbody tr").all()
    assert [row.locator("td").nth(1).inner_text() for row in rows] == [shown(node["total"]) for node in done[:16]]
    lost = next(i for i, node in enumerate(tree["nodes"]) if node["fate"] == "pruned")
    reader.open(link(address, standin, trace, view="search", node=lost), "search")
    assert reader.text("#cell output") == shown(np.exp(tree["nodes"][lost]["logprob"]))
    same = [node for node in tree["nodes"] if node["step"] == tree["nodes"][lost]["step"]]
    least = min(node["total"] for node in same if node["fate"] != "pruned")
    assert f"its sum was {shown(least - tree['nodes'][lost]['total'], 3)} below the last" in reader.text("#inspector")


def test_positions_training_and_comparison_tell_the_truth(
    reader: Tab, address: str, standin: Standin, trace: Trace
) -> None:
    reader.open(link(address, standin, trace, view="positions"), "positions")
    table = np.array(trace.positions[0]["table"])
    assert reader.text("#cell output") == shown(np.linalg.norm(table[0]))
    reader.open(link(address, standin, trace, view="training", query=2, key=1), "training")
    look = standin.training["checkpoints"][-1]  # type: ignore[index]
    assert reader.text("#cell output") == shown(look["weights"][2][1])
    reader.open(link(address, standin, trace, view="compare", name=CROSS, head=1), "compare")
    assert reader.text("#cell output") == shown(trace.maps[CROSS][1, 0, 0] - trace.mean(CROSS)[0, 0])


def test_darker_is_more(tab: Open, address: str, standin: Standin, trace: Trace) -> None:
    """Pixels in the middle of cells, row by row: their order is that of the weights."""
    one = tab()
    one.open(link(address, standin, trace, view="alignment", name=CROSS, head=0), "alignment")
    one.page.get_by_label("hard path").uncheck()
    one.settle()
    weights = trace.maps[CROSS][0]
    light = np.array(one.page.evaluate(MIDDLES, list(weights.shape)))
    row = 2  # not the selected one, which lines run through
    order = np.argsort(weights[row])
    assert (np.diff(light[row][order]) <= 3).all()
    assert light[row].max() - light[row].min() > 60


def test_a_walk_by_keys_alone(tab: Open, address: str, standin: Standin, trace: Trace) -> None:
    one = tab()
    one.open(link(address, standin, trace, name=CROSS, head=0), "overview")
    one.page.locator("#panel-overview canvas").focus()
    one.press("ArrowRight", "Enter")
    one.drawn("head")
    one.page.locator("#panel-head canvas").last.focus()
    one.press("ArrowDown", "ArrowDown", "Enter")
    row = trace.maps[CROSS][1, 2]
    assert one.text("#cell output") == shown(row.max())
    one.press("]")
    assert one.text("#cell output") == shown(trace.mean(CROSS)[2, row.argmax()])
    one.press("[", "{")
    assert "decoder.0.attention" in one.text("#inspector")
    one.press("3")
    assert one.page.locator("#panel-alignment").is_visible()
    one.press("t")
    assert one.page.evaluate("document.documentElement.dataset.theme") == "dark"
    one.press("?")
    assert one.page.locator("dialog").is_visible()
    one.press("Escape")
    for _ in range(40):  # every stop has a visible ring
        one.page.keyboard.press("Tab")
        ring = one.page.evaluate(
            "() => document.activeElement === document.body || getComputedStyle(document.activeElement).outlineStyle"
        )
        assert ring in (True, "solid", "auto")


def test_the_selection_lives_in_the_address(tab: Open, address: str, standin: Standin, trace: Trace) -> None:
    one = tab()
    one.open(link(address, standin, trace, view="head", name=CROSS, head=1, query=2, key=1), "head")
    said = one.text("#cell")
    one.press("3", "4")
    one.page.go_back()
    one.settle()
    assert one.page.locator("#panel-alignment").is_visible()
    one.page.go_back()
    one.settle()
    assert one.page.locator("#panel-head").is_visible()
    one.page.reload()
    one.drawn("head")
    assert one.text("#cell") == said
    one.open(f"{link(address, standin, trace)}&view=nonsense&head=99&query=-4&key=1e9&name=nobody&node=x", "overview")
    strange = {"heads": "-3,0.5,1", "query": 1.2, "vectors": -9, "leftHead": 7.7, "step": 3.3}
    for view, head in (("head", -5), ("alignment", 1.5), ("arithmetic", -5), ("compare", 1.5), ("positions", "1e9")):
        one.open(link(address, standin, trace, view=view, name=CROSS, head=head, **strange), view)
    # whatever is said there, only what exists is asked for: nothing was refused


def test_the_selection_is_one(tab: Open, address: str, standin: Standin, trace: Trace) -> None:
    """What is selected in a view is selected in all, and an address says it."""
    one = tab()
    one.open(link(address, standin, trace, view="compare", name=CROSS, head=0), "compare")
    one.page.locator("#panel-compare canvas >> nth=1").focus()
    one.press("ArrowDown", "ArrowRight")
    assert {"query=1", "key=1"} <= set(one.page.url.split("#")[1].split("&"))
    assert one.text("#cell output") == shown(trace.maps[CROSS][0, 1, 1] - trace.mean(CROSS)[1, 1])
    one.page.get_by_label("Head", exact=True).first.select_option("1")
    one.settle()
    assert "leftHead=1" in one.page.url
    assert one.text("#cell output") == shown(trace.maps[CROSS][0, 1, 1] - trace.maps[CROSS][1, 1, 1])
    one.page.evaluate("document.activeElement.blur()")
    one.press("2")
    assert one.text("#cell output") == shown(trace.maps[CROSS][0, 1, 1])
    one.press("6")
    one.drawn("positions")
    assert one.text("#cell").startswith("Position 1:")
    one.page.locator("#panel-positions canvas").focus()
    one.press("ArrowDown")
    assert "query=2" in one.page.url
    one.page.evaluate("document.activeElement.blur()")
    one.press("7")
    one.drawn("training")
    looks = standin.training["checkpoints"]  # type: ignore[index]
    assert one.text("#cell output") == shown(looks[-1]["weights"][2][1])
    one.page.get_by_label("After step").press("ArrowLeft")
    one.settle()
    assert f"step={looks[-2]['step']}" in one.page.url
    one.page.reload()
    one.drawn("training")
    assert one.text("#cell").startswith(f"After step {looks[-2]['step']}, ")
    assert one.text("#cell output") == shown(looks[-2]["weights"][2][1])


def test_another_checkpoint_is_not_taken_for_the_chosen_one(
    tab: Open, address: str, standin: Standin, trace: Trace
) -> None:
    """While a run trains, one look comes and another goes; as many as before, but others."""
    whole = standin.training
    assert whole is not None
    looks, log = whole["checkpoints"], whole["metrics"]
    one = tab()
    try:
        standin.training = {**whole, "checkpoints": looks[:3], "metrics": log[:3]}
        one.page.add_init_script(HURRY)
        one.open(link(address, standin, trace, view="training", step=looks[1]["step"], query=1), "training")
        assert one.text("#panel-training .slider output") == str(looks[1]["step"])
        standin.training = {**whole, "checkpoints": looks[1:4], "metrics": log[:3]}
        one.page.wait_for_function("() => document.querySelector('#panel-training input').value === '0'")
        one.settle()
        assert one.text("#panel-training .slider output") == str(looks[1]["step"])
        assert one.text("#cell").startswith(f"After step {looks[1]['step']}, ")
        assert one.text("#cell output") == shown(looks[1]["weights"][1][0])
    finally:
        standin.training = whole


def test_a_training_is_shown_before_anything_is_asked(tab: Open, address: str, standin: Standin) -> None:
    """With what was measured on held-out data, as the run's own log has it."""
    one = tab()
    one.open(f"{address}#view=training", "training")
    log = standin.training["metrics"]  # type: ignore[index]
    measured = next(line["valid"] for line in reversed(log) if "valid" in line)
    told = dict(line.split("\t") for line in one.text("#inspector tbody").splitlines())
    for name, value in measured.items():
        assert float(told[f"valid {name}"].replace("−", "-")) == pytest.approx(value, rel=0.01, abs=1e-4)
    drawn = ElementTree.fromstring(Path(one.saved("SVG").path()).read_bytes())
    words = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"loss", "BLEU", "perplexity"} <= set(words)
    table = [*csv.DictReader(io.StringIO(Path(one.saved("CSV").path()).read_text("utf-8-sig")))]
    assert [line["valid bleu"] for line in table if line["valid bleu"]] == [str(measured["bleu"]).removesuffix(".0")]
    assert not [cell for line in table for cell in line.values() if "object" in cell]
    one.press("2")
    assert "Write a text, and look." in one.text("#stage")


def test_what_if(tab: Open, address: str, standin: Standin, pipeline: Any, trace: Trace) -> None:
    """A head is silenced and a word is forced; the answer before stays at hand, and the difference can be seen."""
    one = tab()
    one.open(link(address, standin, trace, view="head", name=CROSS, head=0), "head")
    one.page.get_by_role("button", name="Silence this head").click()
    one.page.wait_for_selector("text=Answered now")
    one.settle()
    quiet = trace_of(pipeline, "twenty-three", beam=3, silence={CROSS: [0]})
    assert one.text("#cell output") == "0.0000"
    assert quiet.caption.split(" → ")[1] in one.text("#ask")
    one.page.get_by_role("button", name="See the difference").click()
    one.drawn("compare")
    assert one.text("#cell output") == shown(-trace.maps[CROSS][0, 0, 0])
    one.page.get_by_text("What if …").click()
    one.page.get_by_label("The answer begins with").fill("acht")
    one.page.get_by_role("button", name="Look", exact=True).click()
    one.page.wait_for_function("() => document.querySelector('.said').innerText.startsWith('acht')")
    one.settle()
    one.page.get_by_label("The answer begins with").fill("")
    one.page.get_by_role("tab", name="Alignment").click()
    one.page.locator("#panel-alignment canvas").focus()
    for key in ("]", "ArrowDown", "Home"):  # of the other head, which still speaks
        one.press(key)
    one.page.evaluate("document.activeElement.blur()")
    one.press("f")
    one.page.wait_for_selector(".wish >> nth=1")
    one.settle()
    assert one.text("#cell output") == "1.0000"
    first = trace.source[0].replace("▁", "␣")
    assert one.text(".wish >> nth=1") == f"token 2 → {first} ×", "not by what the new answer has there"
    one.page.get_by_label("Text", exact=True).fill("twenty-four")
    one.page.get_by_role("button", name="Look", exact=True).click()
    one.page.wait_for_selector(".wish >> nth=1", state="detached")
    one.settle()
    assert "silent" in one.text(".wishes"), "a head stays silent; a word that was forced was one of another text"


def test_a_silent_head_is_said_to_be_silent(reader: Tab, address: str, standin: Standin, pipeline: Any) -> None:
    """Its weights are no softmax of its scores, and it has no path."""
    quiet = trace_of(pipeline, "twenty-three", silence={CROSS: [0]})
    reader.open(link(address, standin, quiet, view="arithmetic", name=CROSS, head=0), "arithmetic")
    assert "this head is silent" in reader.text("#panel-arithmetic .formula")
    reader.open(link(address, standin, quiet, view="arithmetic", name=CROSS, head=1), "arithmetic")
    assert "silent" not in reader.text("#panel-arithmetic .formula")
    path = """async (values) =>
        (await import("/views/alignment.js")).hard({ rows: ["a", "b"], columns: ["x", "y"], values })"""
    assert reader.page.evaluate(path, [0, 0, 0.25, 0.75]) == [-1, 1]


def test_two_texts_and_two_runs_are_compared(
    tab: Open, address: str, standin: Standin, pipeline: Any, trace: Trace
) -> None:
    """The answer before stays, whatever is asked next; what both have is compared, and the rest is shown."""
    one = tab()
    one.open(link(address, standin, trace, name=CROSS, head=0), "overview")
    one.page.get_by_label("Text", exact=True).fill("twenty-nine euros")
    one.page.get_by_role("button", name="Look", exact=True).click()
    one.page.wait_for_selector("text=See the difference")
    one.page.get_by_role("button", name="See the difference").click()
    one.drawn("compare")
    other = trace_of(pipeline, "twenty-nine euros", beam=3)
    titles = [one.text(f"#panel-compare h2 >> nth={i}") for i in range(2)]
    assert titles == ["First: twenty-three", "Second: twenty-nine euros"]
    assert f"the second {len(other.target)} × {len(other.source)}" in one.text("#panel-compare")
    assert trace.source[0] == other.source[0]
    assert one.text("#cell output") == shown(other.maps[CROSS][0, 0, 0] - trace.maps[CROSS][0, 0, 0])
    own = next(place for place, word in enumerate(other.source) if word not in trace.source)
    one.open(f"{one.page.url}&key={own}", "compare")
    assert "which only the second has" in one.text("#cell")
    assert one.text("#cell output") == shown(other.maps[CROSS][0, 0, own])
    elsewhere = standin.add(replace(trace, title="the other", model="00"))
    one.open(link(address, standin, trace, view="compare", name=CROSS, base=elsewhere), "compare")
    titles = [one.text(f"#panel-compare h2 >> nth={i}") for i in range(2)]
    assert titles == ["First: the other", "Second: tiny"]
    assert "Before, by the other" in one.text("#ask")


def test_an_answer_is_told_without_marks_of_its_form(reader: Tab, address: str, standin: Standin, trace: Trace) -> None:
    """A label alone, and lines as lines."""
    asked = {"text": "a text\tand another"}
    labelled = replace(trace, caption="a text\tand another → good\tgood 0.900\tbad 0.100", asked=asked)
    reader.open(link(address, standin, labelled), "overview")
    assert reader.text(".said") == "good"
    assert "a text\nand another" in reader.text("#ask")
    assert "good 0.900\nbad 0.100" in reader.text("#ask")
    reader.open(link(address, standin, replace(trace, caption="good", asked=asked)), "overview")
    assert reader.text(".said") == "good"
    reader.open(link(address, standin, replace(trace, caption="a → two\nlines", asked={"text": "a"})), "overview")
    assert reader.text(".said") == "two\nlines"
    assert not re.search("[\u2400-\u2421]", reader.text("#ask"))


def test_a_server_that_is_gone_is_said_to_be_gone(tab: Open, address: str, standin: Standin, trace: Trace) -> None:
    one = tab()
    one.open(link(address, standin, trace), "overview")
    one.context.route("**/v1/**", lambda route: route.abort("connectionrefused"))
    one.page.get_by_label("Text", exact=True).fill("two")
    one.page.get_by_role("button", name="Look", exact=True).click()
    one.page.wait_for_selector(".trouble:not(:empty)")
    assert "The server does not answer any more. Start it again with: regard serve" in one.text(".trouble")
    one.trouble.clear()  # the browser's own note of it


def test_a_refusal_is_told_in_its_own_words(tab: Open, address: str, standin: Standin, trace: Trace) -> None:
    one = tab()
    one.open(link(address, standin, trace), "overview")
    one.page.get_by_label("Text", exact=True).fill("x " * 400)
    one.page.get_by_role("button", name="Look", exact=True).click()
    one.page.wait_for_selector(".trouble:not(:empty)")
    assert "this model reads at most" in one.text(".trouble")
    one.trouble = [said for said in one.trouble if "422" not in said]  # the browser's own note of the status


def test_a_trace_that_is_gone_can_be_asked_for_again(tab: Open, address: str, standin: Standin) -> None:
    one = tab()
    one.open(f"{address}#trace=00&view=head")
    one.page.wait_for_selector(".trouble:not(:empty)")
    one.trouble.clear()  # the browser's own note of the status
    one.page.get_by_label("Text", exact=True).fill("two")
    one.page.get_by_role("button", name="Look", exact=True).click()
    one.drawn("head")


@pytest.mark.parametrize("served", [True, False])
def test_markup_is_inert(tab: Open, address: str, standin: Standin, make: Make, tmp_path: Path, served: bool) -> None:
    one = tab()
    trace = make(HOSTILE, HOSTILE, title=EVIL)
    (tmp_path / "page.html").write_text(page(trace), "utf-8")
    start = link(address, standin, trace) if served else (tmp_path / "page.html").as_uri() + "#x=1"
    for view in ("overview", "head", "alignment", "compare"):
        one.open(f"{start}&view={view}&query=0&key=0", view)
        assert one.page.evaluate("document.querySelectorAll('img, b > *, iframe').length") == 0
        assert one.page.title() == f"{EVIL} – Regard"
    assert EVIL in one.text("#cell")


@pytest.mark.parametrize(("theme", "rules"), [("light", {}), ("dark", {"runOnly": ["color-contrast"]})])
def test_it_can_be_read_by_everybody(
    tab: Open, address: str, standin: Standin, trace: Trace, theme: str, rules: dict[str, Any]
) -> None:
    """No serious finding of axe in any view, and no colour that is not explained. Only colours differ in the dark."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    one = tab(theme=theme)
    one.open(link(address, standin, trace, name=CROSS, head=0), "overview")
    one.page.evaluate(axe.axe_script)
    for number, view in enumerate(VIEWS, 1):
        one.page.evaluate("document.activeElement.blur()")
        one.press(str(number))
        one.drawn(view)
        assert one.page.locator(f"#panel-{view}").is_visible()
        assert one.page.evaluate("document.documentElement.dataset.theme") == theme
        assert one.text("#cell")
        assert one.text("#foot").count("by its root") == len(COLOURS[view])
        assert all(word in one.text("#foot") for word in COLOURS[view])
        found = one.page.evaluate("how => axe.run(how).then((told) => told.violations)", VIOLATIONS | rules)
        serious = [
            (rule["id"], [node["html"][:90] for node in rule["nodes"]])
            for rule in found
            if rule["impact"] in ("serious", "critical")
        ]
        assert serious == [], view


def test_it_fits_a_telephone(tab: Open, address: str, standin: Standin, trace: Trace) -> None:
    one = tab(width=400)
    for view in VIEWS:
        one.open(link(address, standin, trace, view=view), view)
        assert one.page.evaluate("document.documentElement.scrollWidth") <= 400, view


def test_views_are_saved_as_pictures_and_tables(tab: Open, address: str, standin: Standin, trace: Trace) -> None:
    one = tab()
    one.open(link(address, standin, trace, view="alignment", name=CROSS, head=0), "alignment")

    def saved(kind: str) -> bytes:
        file = one.saved(kind)
        assert file.suggested_filename == f"tiny-alignment.{kind.lower()}"
        return Path(file.path()).read_bytes()

    assert saved("PNG")[:8] == b"\x89PNG\r\n\x1a\n"
    drawn = ElementTree.fromstring(saved("SVG"))
    words = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert trace.model in words[-1]
    table = list(csv.reader(io.StringIO(saved("CSV").decode("utf-8-sig"))))
    assert len(table) == len(trace.target) + 1
    assert np.allclose(numbers(table), trace.maps[CROSS][0], rtol=0, atol=1e-6)
    for view in VIEWS:
        one.open(link(address, standin, trace, view=view), view)
        assert one.saved("SVG").suggested_filename == f"tiny-{view}.svg"


def numbers(table: list[list[str]]) -> np.ndarray:
    return np.array([row[1:] for row in table[1:]], float)


def test_what_is_saved_as_a_table_is_exact(tab: Open, address: str, standin: Standin, trace: Trace) -> None:
    one = tab()

    def table(view: str, **at: Any) -> list[list[str]]:
        one.open(link(address, standin, trace, view=view, name=CROSS, **at), view)
        file = one.saved("CSV")
        assert file.suggested_filename == f"tiny-{view}.csv"
        return list(csv.reader(io.StringIO(Path(file.path()).read_text("utf-8-sig"))))

    weights, exact = trace.maps[CROSS], {"rtol": 0, "atol": 1e-6}
    np.testing.assert_allclose(numbers(table("head", head=1, turn=1)), weights[1].T, **exact)
    whole = weights[0, :-1, :-1].sum(1).mean()  # of the words' pieces
    np.testing.assert_allclose(numbers(table("alignment", head=0, merge=1, hide=1)), [[whole]], **exact)
    np.testing.assert_allclose(numbers(table("compare", head=1)), weights[1] - weights.mean(0), **exact)
    figures = table("overview")
    assert figures[0] == ["attention", "head", "spread", "distance", "diagonal", "marks"]
    row = contract.arithmetic(trace, CROSS, 1, 2)
    found = table("arithmetic", head=1, query=2)
    np.testing.assert_allclose([float(line[4]) for line in found[1:-1]], weights[1, 2], **exact)
    np.testing.assert_allclose([float(line[2]) for line in found[1:-1]], row["scores"], **exact)
    np.testing.assert_allclose(numbers(table("positions")), trace.positions[0]["table"], **exact)
    nodes = [*csv.DictReader(io.StringIO("\n".join(",".join(f'"{c}"' for c in line) for line in table("search"))))]
    assert [float(node["sum"]) for node in nodes] == [node["total"] for node in contract.search(trace)["nodes"]]


def test_there_is_room_for_what_is_drawn(tab: Open, address: str, standin: Standin, trace: Trace) -> None:
    def drawn(one: Tab, view: str) -> dict[str, tuple[float, float]]:
        one.open(link(address, standin, trace, view=view, name=CROSS), view)
        picture = ElementTree.fromstring(Path(one.saved("SVG").path()).read_bytes())
        texts = picture.iter("{http://www.w3.org/2000/svg}text")
        return {text.text or "": (float(text.attrib["x"]), float(text.attrib["y"])) for text in texts}

    small, large = tab(width=400), tab(width=1920, height=1080)
    charts = [place for text, place in drawn(small, "positions").items() if text.startswith("likeness")]
    assert abs(charts[0][1] - charts[1][1]) > 100, "two charts stand below each other"
    words = drawn(large, "search")
    best = [node["token"] for i, node in enumerate(trace.tree["nodes"]) if i in trace.tree["best"]]  # type: ignore[index]
    assert {word.replace("▁", "␣") for word in best} <= words.keys(), "no word is cut"
    assert "tokens" in large.text("#panel-search thead").split()
    drawn(large, "alignment")
    wide, high = (
        large.page.evaluate(f"document.querySelector('#panel-alignment canvas').client{side}")
        for side in ("Width", "Height")
    )
    assert max(wide, high) > 600, "a map grows with its room"
    assert high < 900


def test_a_saved_page_tells_the_same_from_disk(tab: Open, trace: Trace, tmp_path: Path) -> None:
    (tmp_path / "look.html").write_text(page(trace), "utf-8")
    one = tab()
    start = (tmp_path / "look.html").as_uri()
    for head in (-1, 0):
        one.open(f"{start}#view=alignment&name={CROSS}&head={head}&query=2&key=1", "alignment")
        assert one.text("#cell output") == shown(trace.mean(CROSS, None if head < 0 else [head])[2, 1])
    for name in trace.maps:
        one.open(f"{start}#view=arithmetic&name={name}&head=1&query=1&key=0", "arithmetic")
        it = contract.arithmetic(trace, name, 1, 1)
        assert one.text("#cell output") == shown(it["scores"][0])
        rows = one.page.locator("#panel-arithmetic tbody tr").all()
        told = [[row.locator("td.figure").nth(column).inner_text() for column in (2, 3)] for row in rows]
        seen = ["yes" if may else "no" for may in it["seen"]]
        assert told == [[may, shown(weight)] for may, weight in zip(seen, trace.maps[name][1, 1], strict=True)]
    for view in VIEWS:
        one.open(f"{start}#view={view}", "" if view == "training" else view)
    one.press("7")
    assert "regard serve RUN" in one.text("#stage")


def test_a_notebook_shows_it_in_a_frame_that_reaches_nothing(tab: Open, trace: Trace, tmp_path: Path) -> None:
    (tmp_path / "notebook.html").write_text(f"<!doctype html>{Shown(page(trace), 700)._repr_html_()}", "utf-8")
    one = tab()
    one.open((tmp_path / "notebook.html").as_uri())
    inside = one.page.frame_locator("iframe")
    inside.get_by_role("tab", name="Alignment").click()
    inside.locator("#panel-alignment canvas").click(position={"x": 150, "y": 120})
    assert "looked at" in inside.locator("#cell").inner_text()
