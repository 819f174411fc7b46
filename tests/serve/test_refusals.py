"""What cannot be answered is refused with a status, a code and one sentence; and no text comes back in it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from served import KEY, Served, folder, knock

from regard.serve.guard import Limits
from regard.serve.queue import Worker
from regard.serve.schema import MOST_INPUTS

HTML = {"content-type": "text/html"}
JSON = {"content-type": "application/json"}

BODIES: list[tuple[Any, str]] = [
    ({}, r"^input: missing; write it$"),
    ({"input": "a", "baem": 2}, r"^baem: no such setting; did you mean 'beam'\?$"),
    ({"input": "a", "coverage": 0.2}, r"^coverage: no such setting; "),
    ({"input": "a", "shots": "/etc/passwd"}, r"^shots: no such setting; "),
    ({"input": "a", "beam": 0}, r"^beam: must be greater than or equal to 1$"),
    ({"input": "a", "beam": "2"}, r"^beam: must be a valid integer$"),
    ({"input": "a", "beam": 1e9}, r"^beam: "),
    ({"input": "a", "beam": True}, r"^beam: must be a valid integer$"),
    ({"input": "a", "top_p": 0}, r"^top_p: must be greater than 0$"),
    ({"input": "a", "top_p": 0.5}, r"^top_p: only sampling uses it; add sample = true .*, or leave it out$"),
    (
        {"input": "a", "sample": True, "beam": 2},
        r"^beam: sampling has no use for it; add sample = false .*, or leave it out$",
    ),
    ({"input": "a", "top": 3}, r"^top: a transformer with the task 'rewrite' takes no such setting"),
    ({"input": "a", "seed": 1 << 53}, r"^seed: must be less than 9007199254740992$"),
    ({"input": "a", "sample": True, "temperature": 1e-9}, r"^temperature: must be greater than or equal to 0.01$"),
    ({"input": "a", "penalty": "hu"}, r"^penalty: must be 'wu', 'average' or 'none'$"),
    ({"input": "a", "shortest": 9, "longest": 3}, r"^shortest: 9 is more than longest = 3"),
    ({"input": []}, r"^input: list must have at least 1 item"),
    ({"input": ["a"] * (MOST_INPUTS + 1)}, rf"^input: list must have at most {MOST_INPUTS} items"),
    ({"input": ["a", None]}, r"^input\.1: must be a valid string$"),
    ({"input": "a" * 100_001}, r"^input: string must have at most 100000 characters$"),
    ({"input": 3}, r"^input: must be a valid string$"),
    ({"input": "two " * 400}, r"^input 1 has \d+ tokens with its end mark, but this model reads at most 256; split"),
    ({"input": ["five"] * 64, "beam": 64, "longest": 200}, r"^819,200 tokens might be written, .* or a smaller beam$"),
    ({"input": "a", "model": ""}, r"^model: string must have at least 1 character$"),
    ([], r"^the body: must be a valid dictionary"),
]


def refused(server: Served, status: int, method: str, path: str, **how: Any) -> str:
    reply = server.ask(method, path, **how)
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    assert set(reply.json()) == {"error"}
    problem = reply.json()["error"]
    assert set(problem) == {"message", "type", "code"}
    assert "\n" not in problem["message"]
    return problem["message"]


@pytest.mark.parametrize(("body", "sentence"), BODIES, ids=lambda value: str(value)[:60])
def test_what_is_wrong_is_said(server: Served, body: Any, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(refused(server, 422, "POST", "/v1/predict", json=body))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{", r"^the body is no JSON in UTF-8"),
        (b'{"input": "\xff"}', r"^the body is no JSON in UTF-8"),
        (b'{"input": "a", "alpha": NaN}', r"^NaN is no JSON; write a number, or null$"),
        (b'{"input": "a", "alpha": -Infinity}', r"^-Infinity is no JSON"),
        (b'{"input": "a", "beam": 1, "beam": 2}', r"^a name stands twice in one object of the body"),
        (b'{"input": ' + b"[" * 40 + b"]" * 40 + b"}", r"^the body is nested more than 32 deep; write it flat$"),
        (b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", r"^the body is nested more than 32 deep"),
        (b'{"input": "a", "seed": ' + b"9" * 10_000 + b"}", r"^the body is no JSON"),
        (b'{"input": "a \\ud800 b"}', r"^input: must be a valid string"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_json_is_strict(server: Served, content: bytes, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(refused(server, 422, "POST", "/v1/predict", content=content, headers=JSON))


def test_other_ways_to_be_refused(server: Served) -> None:
    body = {"input": "five"}
    assert "must be JSON" in refused(server, 415, "POST", "/v1/predict", content=b"{}", headers=HTML)
    assert "'nobody'" in refused(server, 404, "POST", "/v1/predict", json={**body, "model": "nobody"})
    assert "../../etc" in refused(server, 404, "POST", "/v1/predict", json={**body, "model": "../../etc"})
    assert "nothing at this address" in refused(server, 404, "GET", "/etc/passwd")
    assert "nothing at this address" in refused(server, 404, "GET", "/%2e%2e/%2e%2e/pyproject.toml")
    assert refused(server, 405, "GET", "/v1/predict") == "GET is not for this address; use POST"
    assert "is not kept" in refused(server, 404, "GET", f"/v1/trace/{'0' * 32}")
    assert "is not kept" in refused(server, 404, "GET", "/v1/trace/x")


def test_who_cannot_do_it_says_who_can(server: Served) -> None:
    rewriter = folder("rewrite").name
    said = refused(server, 422, "POST", "/v1/completions", json={"model": rewriter, "prompt": "a"})
    assert said == f"{rewriter} has the task 'rewrite' and does not go on with a text; ask it by /v1/predict"
    said = refused(server, 422, "POST", "/v1/embeddings", json={"model": rewriter, "input": "a"})
    assert said == "a transformer with the task 'rewrite' has no vector of a text; ask it by /v1/predict"
    said = refused(server, 422, "POST", "/v1/predict", json={"model": "masked", "input": "no mask"})
    assert said.startswith("input 1 has no mask; write <mask>")
    said = refused(server, 422, "POST", "/v1/embeddings", json={"model": "masked", "input": "cat " * 100})
    assert said == "input 1 has 102 tokens with its marks, but this model reads at most 48; split it"
    said = refused(server, 422, "POST", "/v1/predict", json={"model": "classify", "input": ["cat " * 20_000] * 2})
    assert said.startswith("the inputs have 40,004 tokens in all, and 32,768 may be read at once")
    said = refused(server, 422, "POST", "/v1/completions", json={"model": "language", "prompt": "cat " * 40})
    assert said.startswith("input 1 has 160 tokens, but this model reads at most 64")
    said = refused(server, 422, "POST", "/v1/completions", json={"model": "language", "prompt": ["a"] * 64, "n": 2})
    assert said == "128 answers were asked for at once; ask for at most 64"
    body = {"model": "language", "prompt": "a", "stream_options": {"include_usage": True}}
    assert "only a stream uses it" in refused(server, 422, "POST", "/v1/completions", json=body)


def test_a_stream_is_refused_before_it_begins(server: Served) -> None:
    body = {"model": "language", "prompt": "cat " * 40, "stream": True}
    assert "reads at most 64" in refused(server, 422, "POST", "/v1/completions", json=body)


def test_a_beam_wider_than_the_engine_is_refused_and_does_not_wait_for_ever() -> None:
    from served import serving

    with serving("rewrite", rows=4) as served:
        said = refused(served, 422, "POST", "/v1/predict", json={"input": "five", "beam": 5})
        assert said == "beam: 5 hypotheses, and this server carries 4; ask for fewer"
        assert served.ask("POST", "/v1/predict", json={"input": "five", "beam": 4}).status_code == 200


def test_no_text_comes_back_and_of_a_name_little(server: Served) -> None:
    secret = "a secret of mine"
    for body in ({"input": "a", "beam": secret}, {"input": "a", "penalty": secret}, {"input": {secret: 1}}):
        assert secret not in server.ask("POST", "/v1/predict", json=body).text
    for long in ({"x" * 100_000: 1}, {"model": "x" * 199}):
        assert "x" * 81 not in server.ask("POST", "/v1/predict", json={"input": "a", **long}).text
    assert "x" * 81 not in server.ask("GET", "/healthz", headers={"host": "x" * 200}).text


# ---- the door


def test_without_the_key_there_is_nothing(server: Served) -> None:
    for path in ("/", "/v1/models", "/metrics", "/openapi.json", "/v1/trace/x"):
        for header in ("", "Bearer", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Basic {KEY}"):
            said = refused(server, 401, "GET", path, headers={"authorization": header})
            assert said.startswith("the key is missing or wrong; open the address that was printed")
    assert server.ask("GET", f"/v1/models?token={KEY}", headers={"authorization": ""}).status_code == 200
    assert server.ask("GET", "/healthz", headers={"authorization": ""}).status_code == 200
    assert server.ask("GET", "/page.css", headers={"authorization": ""}).status_code == 200


ADDRESSES = ["/v1/models", "/v1/runs/masked/training", "/v1/trace/x", "/metrics", "/openapi.json", "/"]


@pytest.mark.parametrize("path", ADDRESSES)
@pytest.mark.parametrize("query", [b"token=%C3%A9", b"token=%ff", b"token=\xff", b"token=", b"a=1&" * 80, b"&=&;%"])
def test_what_is_no_key_is_no_key(server: Served, path: str, query: bytes) -> None:
    assert asyncio.run(knock(server.app, path, query)) == 401


@pytest.mark.parametrize(
    "others", [b"text=%C3%A9", b"text=%ff", b"text=\xc3\xa9", b"a=1&" * 80, b"text=" + b"%f" * 900]
)
def test_the_key_is_found_among_other_things(server: Served, others: bytes) -> None:
    for query in (b"token=" + KEY.encode() + b"&" + others, others + b"&token=" + KEY.encode()):
        assert asyncio.run(knock(server.app, "/v1/models", query)) == 200
        assert asyncio.run(knock(server.app, "/v1/runs/recurrent/training", query)) in (200, 422)


@given(
    st.sampled_from(ADDRESSES), st.lists(st.sampled_from([b"token=", b"text=", b"%", b"&", b"=", b";"]) | st.binary())
)
def test_nothing_in_an_address_opens_the_door_or_breaks_it(server: Served, path: str, query: list[bytes]) -> None:
    assert asyncio.run(knock(server.app, path, b"".join(query))) == 401


def test_a_name_is_listed_once() -> None:
    served = Served("rewrite", names=("127.0.0.1", "localhost", "127.0.0.1"))
    assert "call it by 127.0.0.1, localhost, or" in refused(served, 421, "GET", "/healthz", headers={"host": "other"})


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "[::2]:8000"])
def test_it_is_called_by_its_own_name(server: Served, host: str) -> None:
    said = refused(server, 421, "GET", "/healthz", headers={"host": host})
    assert "call it by 127.0.0.1, ::1, localhost, or start it with --names" in said


@pytest.mark.parametrize("host", ["127.0.0.1", "LOCALHOST:1", "[::1]:8000"])
def test_its_own_names(server: Served, host: str) -> None:
    assert server.ask("GET", "/healthz", headers={"host": host}).status_code == 200


def test_no_other_page_may_read_an_answer(server: Served) -> None:
    for method in ("GET", "OPTIONS"):
        origin = {"origin": "http://evil.example", "access-control-request-method": "POST"}
        reply = server.ask(method, "/v1/models", headers=origin)
        assert not [name for name in reply.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", ["/", "/v1/models", "/nowhere", "/page.css", "/healthz"])
def test_every_answer_is_sealed(server: Served, path: str) -> None:
    headers = server.ask("GET", path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert len(headers["x-request-id"]) == 16


def test_a_large_body_is_refused_whatever_it_says_of_itself(server: Served) -> None:
    most = Limits().body
    assert f"may have {most:,} bytes" in refused(server, 413, "POST", "/v1/predict", content=b"x" * (most + 1))

    async def chunks() -> Any:
        for _ in range(40):
            yield b"x" * 65_536

    assert f"may have {most:,} bytes" in refused(server, 413, "POST", "/v1/predict", content=chunks())


def test_a_place_is_given_back_whatever_happens(server: Served) -> None:
    for body in ({"input": "two " * 400}, {"input": "five"}, {"input": "a", "model": "nobody"}, {"input": ""}):
        server.ask("POST", "/v1/predict", json=body)
    workers: list[Worker] = server.models.workers
    assert all(worker.idle for worker in workers)


def test_what_was_answered_is_counted(server: Served) -> None:
    before = server.metrics.requests.total(route="/v1/predict", code="422")
    refused(server, 422, "POST", "/v1/predict", json={})
    assert server.metrics.requests.total(route="/v1/predict", code="422") == before + 1
    text = server.ask("GET", "/metrics").text
    assert f'regard_requests_total{{code="422",route="/v1/predict"}} {before + 1:g}' in text
    assert 'regard_request_seconds_bucket{route="/v1/predict",le="+Inf"}' in text
    assert 'regard_ready{model="masked"} 1' in text
    json.dumps(text)
