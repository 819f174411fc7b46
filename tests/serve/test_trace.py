"""What the page asks for is what the tensors are."""

from __future__ import annotations

import gzip
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import Served, folder, pipeline, serving

from regard.errors import CheckpointError
from regard.serve.metrics import Metrics
from regard.serve.models import Models
from regard.serve.trace import Traces, size_of
from regard.view import contract
from regard.view.capture import Trace

TEXT = "two hundred and five"


@pytest.fixture(scope="module")
def made(server: Served) -> dict[str, Any]:
    reply = server.ask("POST", "/v1/trace", json={"input": TEXT, "beam": 3})
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.fixture(scope="module")
def trace() -> Trace:
    return contract.trace_of(pipeline("rewrite"), TEXT, beam=3)


def test_the_header_is_the_contracts(server: Served, made: dict[str, Any], trace: Trace) -> None:
    assert made["tokens"]["source"] == list(trace.source)
    assert made["name"] == folder("rewrite").name
    assert server.ask("GET", f"/v1/trace/{made['id']}").json() == made


def test_bytes_are_the_tensors(server: Served, made: dict[str, Any], trace: Trace) -> None:
    place = f"/v1/trace/{made['id']}"
    for name, weights in trace.maps.items():
        row = server.ask("GET", f"{place}/row/{name}/1/0").content
        np.testing.assert_array_equal(np.frombuffer(row, "<f4"), weights[1, 0])
        head = np.frombuffer(server.ask("GET", f"{place}/head/{name}/1").content, np.uint8)
        np.testing.assert_array_equal(head, np.rint(255 * np.sqrt(weights[1])).astype(np.uint8).ravel())
    assert server.ask("GET", f"{place}/thumbs").content == contract.thumbs(trace)
    assert server.ask("GET", f"{place}/search").json() == contract.search(trace)
    name = made["main"]
    found = server.ask("GET", f"{place}/arithmetic/{name}/0/0").json()
    np.testing.assert_allclose(found["softmax"], trace.maps[name][0, 0], atol=1e-5)
    assert server.ask("GET", f"{place}/positions").json()["positions"] == trace.positions


def test_what_never_changes_is_sent_once(server: Served, made: dict[str, Any]) -> None:
    place = f"/v1/trace/{made['id']}/thumbs"
    first = server.ask("GET", place, headers={"accept-encoding": "gzip"})
    assert first.headers["content-encoding"] == "gzip"
    assert "immutable" in first.headers["cache-control"]
    plain = server.ask("GET", place, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == first.content
    assert len(gzip.compress(plain.content)) < len(plain.content)
    again = server.ask("GET", place, headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_page_comes_packed(server: Served) -> None:
    """To whoever can unpack it; the others get the same."""
    largest = max(contract.page_files().items(), key=lambda file: len(file[1]))[0]
    small, plain = (server.ask("GET", f"/{largest}", headers={"accept-encoding": how}) for how in ("gzip", "identity"))
    assert small.content == plain.content == contract.page_files()[largest]
    assert int(small.headers["content-length"]) < int(plain.headers["content-length"]) / 2


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("head/decoder.9.cross/0", "no attention is named 'decoder.9.cross' in this trace"),
        ("head/decoder.0.cross/99", "decoder.0.cross has heads 0 to 1, but head 99"),
        ("row/decoder.0.cross/0/9999", "decoder.0.cross has queries 0 to"),
        ("head/decoder.0.cross/x", "h: must be a valid integer"),
    ],
)
def test_what_is_not_in_it_is_refused(server: Served, made: dict[str, Any], path: str, sentence: str) -> None:
    reply = server.ask("GET", f"/v1/trace/{made['id']}/{path}")
    assert reply.status_code == 422
    assert sentence in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (
            {"beam": 16, "shortest": 4000, "longest": 4000},
            r"^[\d,]+ weights and words might have to be kept, and there is room for ",
        ),
        ({"beam": 8, "expand": 200, "longest": 180}, r"^[\d,]+ weights and words might have to be kept"),
        ({"beam": 64, "longest": 60_000}, r"^[\d,]+ tokens might be written, over all inputs and hypotheses, and "),
        ({"input": "two " * 400}, r"^input 1 has \d+ tokens with its end mark, but this model reads at most 256"),
        ({"model": "language", "input": "cat " * 40}, r"^input 1 has 160 tokens, but this model reads at most 64"),
        ({"sample": True}, r"^sample: what is looked at is searched for, and not drawn; leave it out$"),
        ({"sample": True, "beam": 2}, r"^beam: sampling has no use for it; add sample = false .*, or leave it out$"),
        ({"model": "classify", "beam": 2}, r"^beam: "),
        (
            {"force": {"look": {"0": 999}}},
            r"^force.look: position 0 cannot look at 999 in a text of 4 tokens; name one ",
        ),
        ({"force": {"look": {"0": 4}}}, r"in a text of 4 tokens; name one from 0 to 3$"),
        ({"force": {"look": {"99": 1}}}, r"^force.look: the answer has no position 99; name one from 0 to 23$"),
        ({"force": {"look": {"20": 1}}}, r"^force.look: the answer has no position 20; name one from 0 to \d$"),
        ({"force": {"look": {"a": 1}}}, r"^force.look.a: positions are numbers of at most five digits; write one$"),
        ({"model": "language", "force": {"look": {"0": 0}}}, r"^force: this model has no attention from target to sou"),
    ],
    ids=str,
)
def test_what_cannot_be_looked_at_is_refused(server: Served, body: dict[str, Any], sentence: str) -> None:
    reply = server.ask("POST", "/v1/trace", json={"input": "five", **body})
    assert reply.status_code == 422, reply.text
    assert re.search(sentence, reply.json()["error"]["message"]), reply.text


def test_a_beam_wider_than_the_engine_is_refused_as_by_predict() -> None:
    with serving("rewrite", rows=4) as served:
        said = [served.ask("POST", path, json={"input": "five", "beam": 5}) for path in ("/v1/trace", "/v1/predict")]
    assert {reply.json()["error"]["message"] for reply in said} == {
        "beam: 5 hypotheses, and this server carries 4; ask for fewer"
    }


@pytest.mark.parametrize("name", ["rewrite", "recurrent"])
def test_where_it_is_told_to_look_it_looks(server: Served, name: str) -> None:
    model, last = folder(name).name, len(pipeline(name).tokenizers.source.encode("five"))
    body = {"model": model, "input": "five", "force": {"look": {"0": last}}}
    made = server.ask("POST", "/v1/trace", json=body).json()
    row = server.ask("GET", f"/v1/trace/{made['id']}/row/{made['main']}/-1/0").content
    assert np.frombuffer(row, "<f4").argmax() == last
    assert np.frombuffer(row, "<f4")[last] == pytest.approx(1)


def test_a_recurrent_run_is_looked_at(server: Served) -> None:
    made = server.ask("POST", "/v1/trace", json={"model": "recurrent", "input": TEXT, "beam": 2}).json()
    expected = contract.trace_of(pipeline("recurrent"), TEXT, beam=2)
    assert made["tokens"]["target"] == list(expected.target)
    for name, weights in expected.maps.items():
        row = server.ask("GET", f"/v1/trace/{made['id']}/row/{name}/0/1").content
        np.testing.assert_allclose(np.frombuffer(row, "<f4"), weights[0, 1], atol=1e-6)


def test_what_if(server: Served, made: dict[str, Any]) -> None:
    body = {"input": TEXT, "silence": {"decoder.0.cross": [0]}, "force": {"prefix": "drei"}, "beam": 1}
    other = server.ask("POST", "/v1/trace", json=body).json()
    assert other["caption"].startswith(f"{TEXT} → drei")
    assert other["id"] != made["id"]
    weights = server.ask("GET", f"/v1/trace/{other['id']}/row/decoder.0.cross/0/0").content
    assert not np.frombuffer(weights, "<f4").any(), "a silent head looks nowhere"
    answer = server.ask("POST", "/v1/predict", json={"input": TEXT, "beam": 1}).json()["answers"][0]["answers"][0]
    assert answer["text"] == pipeline("rewrite")(TEXT, beam=1), "and speaks again for everybody else"


def test_the_course_of_a_training(server: Served) -> None:
    course = server.ask("GET", f"/v1/runs/{folder('rewrite').name}/training?text=five").json()
    assert [line["step"] for line in course["metrics"] if "loss" in line][-1] == 250
    checkpoint = course["checkpoints"][-1]
    assert checkpoint["step"] == 250
    expected = pipeline("rewrite").look("five").alignment()
    np.testing.assert_allclose(checkpoint["weights"], expected, atol=1e-3)
    held = server.ask("GET", f"/v1/runs/{folder('rewrite').name}/training").json()
    assert held["text"]
    assert held["text"] != "five"


def test_only_so_much_is_kept(trace: Trace) -> None:
    traces = Traces(room=2 * size_of(trace))
    for name in "abc":
        traces.put(name, trace, "m")
    assert list(traces.kept) == ["b", "c"]
    traces.get("b")
    traces.put("d", trace, "m")
    assert list(traces.kept) == ["b", "d"], "what was looked at last stays"
    Traces(room=1).put("e", trace, "m")
    assert size_of(trace) > size_of(replace(trace, tree=None)), "what a search weighed takes room as well"
    hurried = Traces(seconds=-1)
    hurried.put("a", trace, "m")
    hurried.put("b", trace, "m")
    assert list(hurried.kept) == ["b"]


def test_a_run_that_is_being_trained_is_served_as_its_last_checkpoint_has_it(tmp_path: Path) -> None:
    run = Path(shutil.copytree(folder("rewrite"), tmp_path / "unfinished"))
    (run / "model.safetensors").unlink()
    models = Models([run], device="cpu", metrics=Metrics())
    models.load()
    assert models.trouble is None
    found, _ = models.find("unfinished").asked()
    assert found("five") == pipeline("rewrite")("five")
    models.stop()
    shutil.rmtree(run / "checkpoints")
    models = Models([run], device="cpu", metrics=Metrics())
    models.load()
    with pytest.raises(CheckpointError, match=r"has no model\.safetensors yet; finish it with: regard resume"):
        raise models.trouble or AssertionError("it was served without weights")
