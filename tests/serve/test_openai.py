"""The client that everybody has, against our server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from served import KEY, listening, pipeline, serving

openai = pytest.importorskip("openai", reason="the openai client is not installed, and was not tried; it is in [dev]")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with serving("language", "masked") as served, listening(served) as server:
        url = f"http://127.0.0.1:{server.port}/v1"  # type: ignore[attr-defined]
        with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0) as asking:
            yield asking


def test_it_lists_models(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["language", "masked"]
    assert client.models.retrieve("masked").owned_by == "regard"


def test_it_completes(client: Any) -> None:
    reply = client.completions.create(model="language", prompt="the cat", max_tokens=12, temperature=0)
    (answer,) = pipeline("language").answer(["the cat"], beam=1, longest=12)  # type: ignore[attr-defined]
    assert reply.choices[0].text == answer.texts[0]
    assert reply.usage.completion_tokens == 12
    how = {"model": "language", "prompt": "the", "max_tokens": 9, "seed": 3, "n": 2, "top_p": 0.9, "temperature": 0.8}
    first, again = (client.completions.create(**how) for _ in range(2))
    assert [choice.text for choice in first.choices] == [choice.text for choice in again.choices]


def test_what_changes_nothing_may_be_said(client: Any) -> None:
    how = {"model": "language", "prompt": "the cat", "max_tokens": 5, "temperature": 0}
    neutral = {
        "best_of": 1, "echo": False, "frequency_penalty": 0, "logit_bias": {}, "logprobs": None, "n": 1,
        "presence_penalty": 0.0, "stop": None, "stream": False, "suffix": "", "top_p": 1, "user": "me",
    }  # fmt: skip
    plain, said = client.completions.create(**how), client.completions.create(**how, **neutral)
    assert said.choices == plain.choices
    nothing = {"best_of": None, "echo": None, "frequency_penalty": None, "logit_bias": None, "suffix": None}
    assert client.completions.create(**how, **nothing).choices == plain.choices


def test_it_streams(client: Any) -> None:
    how = {"model": "language", "prompt": "the cat", "max_tokens": 12, "temperature": 0, "stop": ["zz"]}
    whole = client.completions.create(**how)
    events = list(client.completions.create(**how, stream=True, stream_options={"include_usage": True}))
    assert "".join(choice.text for event in events for choice in event.choices) == whole.choices[0].text
    assert events[-1].usage == whole.usage
    assert len(events) > 5


def test_it_embeds(client: Any) -> None:
    """It asks for base64 of its own accord."""
    reply = client.embeddings.create(model="masked", input=["the cat", "a dog"])
    expected = pipeline("masked").embed(["the cat", "a dog"]).tolist()  # type: ignore[attr-defined]
    assert [row.embedding for row in reply.data] == [pytest.approx(row, abs=1e-5) for row in expected]


def test_it_understands_our_refusals(client: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="no model is called 'gpt-4'"):
        client.completions.create(model="gpt-4", prompt="a")
    with pytest.raises(openai.UnprocessableEntityError, match="max_tokens: must be greater than or equal to 1"):
        client.completions.create(model="language", prompt="a", max_tokens=0)
    for name, value, wanted in (
        ("echo", True, "must be false"),
        ("logprobs", 3, "must be null"),
        ("best_of", 2, "must be less than or equal to 1"),
        ("suffix", "b", "string must have at most 0 characters"),
        ("presence_penalty", 0.5, "must be less than or equal to 0"),
        ("logit_bias", {"5": 1}, "dictionary must have at most 0 items"),
    ):
        with pytest.raises(openai.UnprocessableEntityError, match=f"{name}: {wanted}"):
            client.completions.create(model="language", prompt="a", **{name: value})
    with pytest.raises(openai.AuthenticationError, match="the key is missing or wrong"):
        client.with_options(api_key="another").models.list()
