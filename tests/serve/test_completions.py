"""Going on with a text in OpenAI's shape: whole and piece by piece are one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from served import Served, pipeline

from regard.serve.spelling import Spelling, Until, added

GREEDY = {"model": "language", "prompt": "the cat", "temperature": 0, "max_tokens": 20}
DRAWN = {"model": "language", "prompt": ["the cat", "a dog"], "seed": 7, "max_tokens": 12, "n": 2}


def complete(server: Served, body: dict[str, Any]) -> dict[str, Any]:
    reply = server.ask("POST", "/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def streamed(server: Served, body: dict[str, Any]) -> list[Any]:
    reply = server.ask("POST", "/v1/completions", json={**body, "stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_the_text_is_the_pipelines(server: Served) -> None:
    reply = complete(server, GREEDY)
    (answer,) = pipeline("language").answer(["the cat"], beam=1, longest=20)  # type: ignore[attr-defined]
    (choice,) = reply["choices"]
    assert choice["text"] == answer.texts[0]
    assert choice["finish_reason"] == "length"
    before = len(pipeline("language").tokenizers.target.encode("the cat")) + len(pipeline("language").before)  # type: ignore[attr-defined]
    assert reply["usage"] == {"prompt_tokens": before, "completion_tokens": 20, "total_tokens": before + 20}
    assert reply["object"] == "text_completion"


def test_draws_are_numbered_prompt_by_prompt_and_depend_on_the_seed(server: Served) -> None:
    texts = [choice["text"] for choice in complete(server, DRAWN)["choices"]]
    assert texts == [choice["text"] for choice in complete(server, DRAWN)["choices"]]
    assert texts != [choice["text"] for choice in complete(server, {**DRAWN, "seed": 8})["choices"]]
    how = {"sample": True, "seed": 7, "nbest": 2, "longest": 12}
    for prompt, some in zip(DRAWN["prompt"], (texts[:2], texts[2:]), strict=True):
        (answer,) = pipeline("language").answer([prompt], **how)  # type: ignore[attr-defined]
        assert sorted(answer.texts) == sorted(some), "the same draws; the pipeline sorts them by likelihood"
    unseeded = {**DRAWN, "seed": None, "temperature": 2.0}
    assert complete(server, unseeded)["choices"] != complete(server, unseeded)["choices"]


@pytest.mark.parametrize("body", [GREEDY, DRAWN, {**GREEDY, "stop": ["at", "zz"]}, {**DRAWN, "stop": "e"}], ids=str)
def test_a_stream_joined_is_the_whole(server: Served, body: dict[str, Any]) -> None:
    whole = complete(server, body)
    *events, last = streamed(server, {**body, "stream_options": {"include_usage": True}})
    for choice in whole["choices"]:
        mine = [one for event in events for one in event["choices"] if one["index"] == choice["index"]]
        assert "".join(one["text"] for one in mine) == choice["text"]
        assert [one["finish_reason"] for one in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1]["finish_reason"] == choice["finish_reason"]
    assert last["usage"] == whole["usage"]
    assert len({event["id"] for event in events}) == 1


def test_a_stop_ends_the_text_before_it_and_the_decoding_with_it(server: Served) -> None:
    text = complete(server, {**GREEDY, "max_tokens": 50})["choices"][0]["text"]
    stop = text[5:8]
    before = server.metrics.tokens.total(model="language")
    cut = complete(server, {**GREEDY, "max_tokens": 50, "stop": stop})
    assert cut["choices"][0]["text"] == text[: text.index(stop)]
    assert cut["choices"][0]["finish_reason"] == "stop"
    wrote = server.metrics.tokens.total(model="language") - before
    assert wrote == cut["usage"]["completion_tokens"] == text.index(stop) + 3 < 50, "a letter is a token here"


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_text_is_passed_on_up_to_the_stop_that_is_whole_first(text: str, stops: list[str]) -> None:
    until, said = Until(stops), ""
    for letter in text:
        said += until.pass_on(letter)
        if until.over:
            break
    said += "" if until.over else until.rest()
    found = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]
    assert until.over == bool(found)
    assert said == text[: min(found)[1] if found else None]


@given(st.text(max_size=40), st.integers(0, 20))
def test_pieces_joined_are_the_text(text: str, split: int) -> None:
    tokenizer = pipeline("rewrite").tokenizers.target
    ids = tokenizer.encode(text)
    before, ids = ids[:split], ids[split:]
    spelling = Spelling(tokenizer, before)
    assert "".join([spelling.add([token]) for token in ids]) + spelling.rest() == added(tokenizer, before, ids)
