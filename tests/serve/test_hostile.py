"""Texts that were never meant well: each is answered or refused, and none is anything but text."""

from __future__ import annotations

import json
import random
import time
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from served import Served, folder, pipeline

JSON = {"content-type": "application/json"}
MARKUP = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</script><svg/onload=1>", "{{7*7}} ${7*7}"]
STRINGS = [
    "",
    " \t\n ",
    "a\tb\tc",
    "nul \x00 nul",
    "\u202eright to left\u202c",
    "e" + "\u0301" * 500,
    "👩‍👩‍👧‍👦" * 20,
    "\u2028\u2029\x85\ufeff",
    "<eos> <bos> <pad> <unk> <mask>",
    "<pad>" * 20,
    "[CLS] [SEP] [MASK]",
    "а\u0441\u0435 homoglyphs",
    "\ufffd\ufffe\uffff\ufdd0",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢" * 4,
    "../../../etc/passwd",
    "'; DROP TABLE runs; --",
    "-- --help",
    "%s%n%x{0}",
    "\x1b[2J\x1b]0;owned\x07",
    "http://169.254.169.254/latest/meta-data",
    *MARKUP,
]


ALIKE = str.maketrans({"a": "а", "c": "ϲ", "e": "е", "f": "ｆ", "i": "і", "n": "ո", "o": "ο", "t": "𝐭", "v": "ν"})
TURNS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"
NAMES = [
    "<pad>",
    "<bos>",
    "<eos>",
    "<unk>",
    "<mask>",
    "[CLS]",
    "[SEP]",
    "[PAD]",
    "[MASK]",
    "<|endoftext|>",
    "</s>",
    "##",
]


def words(dice: random.Random, most: int = 8) -> str:
    return " ".join(
        dice.choices(["five", "two hundred", "the cat", "twenty-three", "ß", "ﬁve"], k=dice.randint(1, most))
    )


def sprinkled(dice: random.Random, letters: str) -> str:
    """Words with foreign letters at random places between them."""
    return "".join(letter + dice.choice(letters) * (dice.random() < 0.4) for letter in words(dice))


FAMILIES: list[Callable[[random.Random], str]] = [
    lambda dice: "".join(chr(dice.randrange(0x110000)) for _ in range(dice.randint(1, 60))),  # halves of pairs, too
    lambda dice: words(dice) + chr(dice.randrange(0xD800, 0xE000)) * dice.randint(1, 3),
    lambda dice: "".join(letter + "\u0301\u0336\u20e3" * dice.randint(0, 99) for letter in words(dice, 3)),
    lambda dice: "e" + "\u0301" * dice.randint(5000, 10_000),
    lambda dice: "\u200d".join(dice.choices("👩👨👧👦🏽🏳🌈❤", k=dice.randint(2, 300))),
    lambda dice: sprinkled(dice, TURNS),
    lambda dice: sprinkled(dice, "".join(map(chr, [*range(32), *range(0x7F, 0xA0)]))),
    lambda dice: "".join(dice.choice(NAMES) + " " * (dice.random() < 0.5) for _ in range(dice.randint(1, 40))),
    lambda dice: words(dice).translate(ALIKE),
    lambda dice: words(dice) * dice.choice([300, 3000, 30_000]),
]  # fmt: skip


def hostile(count: int) -> list[str]:
    """As many of each family."""
    return [FAMILIES[i % len(FAMILIES)](random.Random(i)) for i in range(count)]


def noise(count: int) -> list[str]:
    dice = random.Random(0)
    letters = [chr(i) for i in range(1, 0x3000) if unicodedata.category(chr(i)) != "Cs"]
    return ["".join(dice.choices(letters, k=dice.randrange(1, 20))) for _ in range(count)]


def bodies(text: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        ("/v1/predict", {"model": folder("rewrite").name, "input": text, "longest": 6}),
        ("/v1/predict", {"model": folder("rewrite").name, "input": "five", "prefix": text, "longest": 6}),
        ("/v1/predict", {"model": "recurrent", "input": text, "longest": 6}),
        ("/v1/predict", {"model": "language", "input": text, "longest": 4, "beam": 1}),
        ("/v1/predict", {"model": "classify", "input": text}),
        ("/v1/predict", {"model": "masked", "input": f"{text} <mask>"}),
        ("/v1/completions", {"model": "language", "prompt": text, "max_tokens": 4, "stop": text[:60] or None}),
        ("/v1/embeddings", {"model": "masked", "input": text}),
        ("/v1/trace", {"model": folder("rewrite").name, "input": text, "longest": 6}),
        ("/v1/predict", {"model": text or "x", "input": "five"}),
    ]


def check_answered(server: Served, text: str) -> None:
    """Each task answers it or refuses it, as JSON and never as markup."""
    for path, body in bodies(text):
        reply = server.ask("POST", path, content=json.dumps(body).encode(), headers=JSON)
        assert reply.status_code in (200, 404, 413, 422), (path, text[:100], reply.text[:300])
        assert reply.headers["content-type"].startswith("application/json")
        reply.json()
    assert all(worker.idle for worker in server.models.workers)


@pytest.mark.parametrize("text", [*STRINGS, *hostile(len(FAMILIES))], ids=lambda text: ascii(text)[:30])
def test_any_text_is_answered_or_refused(server: Served, text: str) -> None:
    check_answered(server, text)


@pytest.mark.storm
def test_four_hundred_more(server: Served) -> None:
    texts = hostile(400)
    assert len({*texts}) > 390
    for text in texts:
        check_answered(server, text)


def test_noise_is_answered_as_the_pipeline_answers_it(server: Served) -> None:
    texts = noise(40)
    reply = server.ask("POST", "/v1/predict", json={"model": folder("rewrite").name, "input": texts, "longest": 5})
    expected = [answer.json["answers"][0]["text"] for answer in pipeline("rewrite").ask(texts, longest=5)]
    assert [answer["answers"][0]["text"] for answer in reply.json()["answers"]] == expected


def test_a_name_of_a_model_is_no_markup(server: Served) -> None:
    reply = server.ask("GET", "/v1/models/" + "%3Cscript%3E")
    assert reply.status_code == 404
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-content-type-options"] == "nosniff"


def test_long_texts_take_time_in_proportion(server: Served) -> None:
    """Four times the text takes about four times the time: nothing on the way to an answer is quadratic."""

    def took(letters: int) -> float:
        text = ("e\u0301 <mask> \ufffd" * letters)[:letters]
        times = []
        for _ in range(3):
            began = time.perf_counter()
            server.ask("POST", "/v1/predict", json={"model": "classify", "input": text})
            times.append(time.perf_counter() - began)
        return min(times)

    took(24_000)
    assert took(96_000) < 12 * took(24_000)
