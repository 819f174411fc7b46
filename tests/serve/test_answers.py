"""A server answers as the pipeline does, whoever else asks."""

from __future__ import annotations

import asyncio
import base64
import random
from dataclasses import replace
from typing import Any

import httpx2 as httpx
import numpy as np
import pytest
import tiny
from served import TEXT, Served, folder, pipeline

from regard.config import DecodeConfig
from regard.decode import Hypothesis
from regard.serve import schema
from regard.serve.writing import question

PHRASES = [source for source, _ in tiny.pairs(8)] + ["five", "", "two hundred", "the year nineteen eighty-four"]
SEARCHES: list[dict[str, Any]] = [
    {},
    {"beam": 4},
    {"beam": 3, "nbest": 3, "penalty": "average", "alpha": 1.0},
    {"sample": True, "temperature": 1.3, "seed": 5},
    {"sample": True, "top_k": 5, "nbest": 2, "seed": 1},
    {"longest": 6, "block_ngram": 2},
    {"shortest": 10, "longest": 14, "beam": 2},
    {"prefix": "drei", "beam": 2},
]
ASKED: list[tuple[str, list[str], dict[str, Any]]] = [
    *(("rewrite", PHRASES, how) for how in SEARCHES),
    ("rewrite", ["five"], {"sample": True, "top_k": 1, "nbest": 3}),
    ("recurrent", PHRASES, {}),
    ("recurrent", PHRASES, {"beam": 3, "nbest": 2}),
    ("recurrent", PHRASES, {"sample": True, "seed": 2}),
    ("language", ["the cat", "", "a dog ran"], {"beam": 1, "longest": 12}),
    ("language", ["the cat", "birds"], {"sample": True, "seed": 3, "nbest": 2, "longest": 9}),
    ("language", ["the cat sat"], {"beam": 3, "nbest": 2, "longest": 7}),
    ("language", ["the "], {"choices": ["cat", "zebra"]}),
    ("language", ["the cat", "a dog"], {"embed": True}),
    ("classify", ["the cat sat", "birds"], {}),
    ("classify", ["the cat sat"], {"top": 1}),
    ("classify", ["the cat sat"], {"embed": True, "pooling": "first"}),
    ("masked", ["the <mask> sat", "a <mask> ran in the <mask>"], {"top": 3}),
]


def near(found: Any, expected: Any) -> bool:
    """Equal, but for rounding: a batch of another size adds up in another order."""
    if isinstance(expected, float):
        return bool(found == pytest.approx(expected, abs=1e-4))
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(near(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(near, found, expected))
    return bool(found == expected)


@pytest.mark.parametrize(("name", "texts", "how"), ASKED, ids=lambda value: str(value)[:60])
def test_predict_is_what_the_pipeline_says(server: Served, name: str, texts: list[str], how: dict[str, Any]) -> None:
    model = folder(name).name
    expected = [reply.json for reply in pipeline(name).ask(texts, **how)]
    reply = server.ask("POST", "/v1/predict", json={"model": model, "input": texts, **how}).json()
    assert near(reply["answers"], expected)
    assert reply["model"] == model
    assert reply["task"] == pipeline(name).recipe.task.name


def test_answers_that_read_alike_are_told_once_but_for_draws() -> None:
    asked = question(pipeline("rewrite"), "five", DecodeConfig(beam=2, nbest=2))
    found = [Hypothesis(tokens, -score, -score, True, (0,)) for score, tokens in enumerate([(5, 6), (7,)])]
    alike = replace(asked, spell=lambda tokens: "fünf")
    assert alike.json([found])["answers"] == [{"text": "fünf", "score": 0.0, "logprob": 0.0, "finished": True}]
    drawn = replace(alike, how=DecodeConfig(sample=True, nbest=2))
    assert len(drawn.json([[one] for one in found])["answers"]) == 2


def test_one_text_and_the_first_model_are_the_default(server: Served) -> None:
    reply = server.ask("POST", "/v1/predict", json={"input": "five"}).json()
    assert reply["answers"] == server.ask("POST", "/v1/predict", json={"input": ["five"]}).json()["answers"]
    assert reply["model"] == server.ask("GET", "/v1/models").json()["data"][0]["id"]


def test_nobody_changes_the_answer_of_another(server: Served) -> None:
    """Eighty requests of every kind at once, in random order and at random moments: each gets its own answer."""
    dice = random.Random(0)
    asked = [
        {"model": folder(name).name, "input": dice.choice(texts), **how}
        for name, texts, how in dice.choices([one for one in ASKED if one[0] != "masked"], k=80)
    ]

    async def ask(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(dice.random() / 4)
        return (await client.post("/v1/predict", json=body)).json()

    async def together(client: httpx.AsyncClient) -> list[dict[str, Any]]:
        return await asyncio.gather(*(ask(client, body) for body in asked))

    for body, reply in zip(asked, server.run(together), strict=True):
        how = {name: value for name, value in body.items() if name not in ("model", "input")}
        name = next(
            one for one in ("rewrite", "recurrent", "language", "classify") if folder(one).name == body["model"]
        )
        assert near(reply["answers"], [one.json for one in pipeline(name).ask([body["input"]], **how)])


def test_models_are_listed_with_what_they_take(server: Served) -> None:
    listed = {model["id"]: model for model in server.ask("GET", "/v1/models").json()["data"]}
    assert list(listed) == [folder(name).name for name in ("rewrite", "language", "classify", "masked", "recurrent")]
    assert listed["language"]["task"] == "language"
    assert all(model["ready"] for model in listed.values())
    assert "shots" not in listed["language"]["settings"], "a client names no file of the server"
    one = server.ask("GET", "/v1/models/masked").json()
    assert one == listed["masked"]
    assert listed["language"]["example"].startswith("the cat sat on the mat")
    assert listed["classify"]["example"] in TEXT
    assert listed["masked"]["example"] == "", "nothing is kept as it was read"
    for name in ("rewrite", "recurrent", "language", "classify"):
        model = folder(name).name
        asked = {"model": model, "input": listed[model]["example"]}
        assert server.ask("POST", "/v1/predict", json=asked).status_code == 200


def test_a_client_may_set_what_a_recipe_may() -> None:
    """But for coverage, which watches a model alone."""
    assert set(schema.Decoding.model_fields) == set(DecodeConfig.model_fields) - {"coverage"}


@pytest.mark.parametrize("name", ["language", "classify", "masked"])
@pytest.mark.parametrize("form", ["float", "base64"])
def test_embeddings_are_those_of_the_pipeline(server: Served, name: str, form: str) -> None:
    texts = ["the cat sat", "birds fly over the old house"]
    expected = pipeline(name).embed(texts).numpy()  # type: ignore[attr-defined]
    body = {"model": name, "input": texts, "encoding_format": form}
    reply = server.ask("POST", "/v1/embeddings", json=body).json()
    rows = [row["embedding"] for row in reply["data"]]
    found = [np.frombuffer(base64.b64decode(row), "<f4") if form == "base64" else row for row in rows]
    np.testing.assert_allclose(np.stack(found), expected, atol=1e-5)
    assert [row["index"] for row in reply["data"]] == [0, 1]
    assert reply["usage"]["prompt_tokens"] == sum(len(pipeline(name).tokenizers.source.encode(t)) + 2 for t in texts)


def test_whoever_asks_sees_when_it_is_ready(server: Served) -> None:
    assert server.ask("GET", "/healthz").json() == {"status": "alive"}
    assert server.ask("GET", "/readyz").json() == {"status": "ready"}
