from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny

from regard.errors import ConfigError
from regard.pipeline import load
from regard.view import contract
from regard.view.capture import Trace
from regard.view.contract import MEAN, trace_of

Make = Callable[..., Trace]
D3 = "CjloA8y00+1SDAUkjs099PVfnY2KmDC2BZnws9kh8D/lX1s46w6EPhpXdqMfjK6i"  # of the file as it came from its makers


@pytest.fixture(scope="module")
def pipeline() -> Any:
    return load(tiny.trained(), device="cpu")


@pytest.fixture(scope="module")
def trace(pipeline: Any) -> Trace:
    return trace_of(pipeline, "twenty-three", beam=3)


def test_a_header_is_json_and_knows_every_map(make: Make) -> None:
    trace = make(["<b>", "\ud800", "<eos>"])
    told = json.loads(json.dumps(contract.header(trace), allow_nan=False))
    assert [one["name"] for one in told["maps"]] == list(trace.maps)
    for one in told["maps"]:
        weights = trace.maps[one["name"]]
        assert [one["heads"], *one["shape"]] == list(weights.shape)
        assert one["most"] == pytest.approx([float(head.max()) for head in weights], abs=1e-6)
        assert (one["queries"], one["keys"]) == (
            ("target", "source") if one["name"].endswith("cross") else (one["queries"], one["keys"])
        )
    assert told["main"] == "decoder.1.cross"


def test_figures_say_what_they_say() -> None:
    """One head looks straight along the diagonal, the other everywhere alike."""
    n = 5
    weights = np.stack([np.eye(n), np.full((n, n), 1 / n)]).astype(np.float32)
    trace = Trace(("a", "b", "c", "d", "<eos>"), ("v", "w", "x", "y", "<eos>"), {"decoder.0.cross": weights})
    (about,) = contract.header(trace)["maps"]
    assert about["entropy"] == pytest.approx([0, np.log2(n)], abs=1e-5)
    assert about["distance"] == pytest.approx([0, 1.6], abs=1e-5)  # the mean of |i - j|
    assert about["diagonal"] == pytest.approx([1, 13 / 25], abs=1e-5)
    assert about["marks"] == pytest.approx([1 / n, 1 / n], abs=1e-5)


@pytest.mark.parametrize("length", [1, 5, 64, 65, 200])
def test_no_weight_is_lost_from_a_thumbnail(make: Make, length: int) -> None:
    """The largest weight of each patch is there; what is small enough is there whole."""
    trace = make(["a"] * length, ["b"] * 7, heads=2)
    side = contract.SIDE
    found = np.frombuffer(contract.thumbs(trace), np.uint8).reshape(len(trace.maps), 2, side, side)
    for place, (name, weights) in enumerate(trace.maps.items()):
        rows, columns = contract.header(trace)["maps"][place]["thumb"]
        assert found[place, :, rows:].max(initial=0) == found[place, :, :, columns:].max(initial=0) == 0
        seen = (found[place, :, :rows, :columns] / 255.0) ** 2
        assert seen.max() == pytest.approx(float(weights.max()), abs=0.005), name
        if max(weights.shape[1:]) <= side:
            assert np.abs(seen - weights).max() < 0.004


def test_bytes_are_near_the_weights_and_rows_are_the_weights(make: Make) -> None:
    trace = make()
    for name, weights in trace.maps.items():
        for h in (MEAN, 0, 2):
            exact = weights.mean(0) if h == MEAN else weights[h]
            near = np.frombuffer(contract.head(trace, name, h), np.uint8).reshape(exact.shape) / 255.0
            assert np.abs(near**2 - exact).max() < 0.004
            for q in range(len(exact)):
                found = np.frombuffer(contract.row(trace, name, h, q), "<f4")
                assert np.array_equal(found, exact[q])


def test_arithmetic_leads_to_the_weights(trace: Trace) -> None:
    """Scaled products, softmax over what is seen, and the mixture of the values."""
    assert list(trace.parts) == list(trace.maps)
    for name, weights in trace.maps.items():
        for h in range(len(weights)):
            for q in (0, len(weights[h]) - 1):
                it = contract.arithmetic(trace, name, h, q)
                dots, seen = np.array(it["k"]) @ it["q"], np.array(it["seen"])
                assert np.allclose(it["dots"], dots, atol=1e-4)
                assert np.allclose(it["scores"], dots * it["scale"], atol=1e-4)
                shares = np.exp(it["scores"]) * seen
                assert np.allclose(it["softmax"], shares / shares.sum(), atol=1e-5)
                assert np.allclose(it["softmax"], weights[h, q], atol=1e-5)
                assert np.allclose(it["weights"], weights[h, q], atol=1e-6)
                assert np.allclose(it["mix"], weights[h, q] @ np.array(it["v"]), atol=1e-4)
    causal = contract.arithmetic(trace, "decoder.0.attention", 0, 1)["seen"]
    assert causal == [i <= 1 for i in range(len(causal))]


def test_the_search_ends_in_the_answer(trace: Trace) -> None:
    tree = contract.search(trace)
    path = [tree["nodes"][i] for i in tree["best"]]
    assert tuple(node["token"] for node in path) == trace.target
    assert path[-1]["score"] == pytest.approx(trace.score)
    assert trace.caption.endswith(path[-1]["text"])
    json.dumps(tree, allow_nan=False)


def test_a_greedy_answer_is_the_same_whether_it_is_watched_or_not(pipeline: Any) -> None:
    for text in ("twenty-three", "four hundred and five"):
        trace = trace_of(pipeline, text, beam=1)
        (answer,) = pipeline.answer([text], beam=1)
        assert trace.caption == f"{text} → {answer.texts[0]}"
        assert trace.score == pytest.approx(answer.hypotheses[0].score)


def test_what_if_changes_the_model_for_one_answer_alone(pipeline: Any, trace: Trace) -> None:
    quiet = trace_of(pipeline, "twenty-three", beam=3, silence={"decoder.0.cross": [0]})
    assert not quiet.maps["decoder.0.cross"][0].any()
    assert quiet.asked["silence"] == {"decoder.0.cross": [0]}
    begun = trace_of(pipeline, "twenty-three", beam=3, force={"prefix": "acht"})
    assert begun.caption.split(" → ")[1].startswith("acht")
    steered = trace_of(pipeline, "twenty-three", beam=3, force={"look": {"1": 0}})
    for name in ("decoder.0.cross",):
        assert np.allclose(steered.maps[name][:, 1, 0], 1)
    again = trace_of(pipeline, "twenty-three", beam=3)
    assert contract.digest(again) == contract.digest(trace)
    assert len({contract.digest(one) for one in (trace, quiet, begun, steered)}) == 4


def test_a_digest_is_of_the_contents(make: Make) -> None:
    one, other = make(), make()
    assert contract.digest(one) == contract.digest(other)
    maps = {name: weights.copy() for name, weights in one.maps.items()}
    maps["decoder.0.cross"][0, 0, 0] += 1e-6
    assert contract.digest(replace(one, maps=maps)) != contract.digest(one)


def test_what_is_not_there_is_refused(make: Make, pipeline: Any) -> None:
    trace = make()
    with pytest.raises(ConfigError, match=r"decoder.0.cross has queries 0 to 4, but 5 was asked for"):
        contract.row(trace, "decoder.0.cross", 0, 5)
    with pytest.raises(ConfigError, match=r"decoder.0.cross has heads 0 to 2, but head 3 was asked for"):
        contract.head(trace, "decoder.0.cross", 3)
    with pytest.raises(ConfigError, match=r"queries, keys and values of decoder.0.cross were not kept; choose a head"):
        contract.arithmetic(trace, "decoder.0.cross", 0, 0)
    with pytest.raises(ConfigError, match=r"nothing was searched for in this trace"):
        contract.search(trace)
    with pytest.raises(ConfigError, match=r"the page has no file 'app.jss'; did you mean 'app.js'\?"):
        contract.page_file("app.jss")
    with pytest.raises(ConfigError, match=r"force: 'looks' cannot be forced; did you mean 'look'\?"):
        trace_of(pipeline, "two", force={"looks": {}})


def test_positions_are_those_of_the_model(trace: Trace, pipeline: Any) -> None:
    (one,) = trace.positions
    assert one["kind"] == "sinusoidal"
    table = pipeline.model.positions(0, one["rows"]).numpy()
    assert np.allclose(one["table"], table, atol=1e-5)


# ---- the page's own files


def test_the_page_is_served_from_a_closed_list() -> None:
    for name in contract.page_files():
        data, kind = contract.page_file(name)
        assert data
        assert kind.split(";")[0] in {"text/html", "text/javascript", "text/css", "text/plain"}
    for name in ("../html.py", "/etc/passwd", "views", ""):
        with pytest.raises(ConfigError, match=r"the page has no file"):
            contract.page_file(name)


def test_d3_is_as_its_makers_left_it() -> None:
    data, _ = contract.page_file("vendor/d3.min.js")
    assert base64.b64encode(hashlib.sha384(data).digest()).decode() == D3
    assert b"Mike Bostock" in contract.page_file("vendor/d3.LICENSE.txt")[0]


@pytest.mark.parametrize(
    "name", [name for name in contract.page_files() if name.endswith(".js") and "/d3." not in name]
)
def test_modules_keep_the_house_rules(name: str) -> None:
    """Types are checked, files stay short, text enters by textContent, imports have one form, which html.py reads."""
    source = contract.page_file(name)[0].decode()
    assert source.startswith("// @ts-check\n// ")
    assert source.count("\n") <= 400
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|https?://(?!www\.w3\.org/2000/svg)",
        source,
    )
    form = re.compile(r'^import (\{ [\w ,]+ \} from )?"\.{1,2}/[\w./]+\.js";$')
    for line in source.splitlines():
        assert not line.startswith("import") or form.match(line), line
        assert not line.startswith("export default")


def test_the_page_names_nothing_from_outside() -> None:
    for name in ("index.html", "page.css"):
        text = contract.page_file(name)[0].decode()
        assert not re.search(r"https?:|//[a-z]|@import|url\(|<script>|style=|\bon\w+=", text), name
