"""A trained run, asked in every way there is."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

import regard
from regard.data.batch import pad
from regard.data.tokenizer import BOS, EOS, Tokenizer
from regard.errors import ConfigError
from regard.pipeline.rewrite import Rewriter

TEXTS = [source for source, _ in tiny.pairs(8)] + ["one", "two hundred", "", "the year nineteen eighty-four"]
SEARCHES: list[dict[str, Any]] = [
    {"beam": 1},
    {"beam": 4},
    {"beam": 3, "nbest": 3, "penalty": "average", "alpha": 1.0},
    {"beam": 4, "coverage": 0.4},
    {"sample": True, "temperature": 1.3, "seed": 5},
    {"sample": True, "top_k": 5, "nbest": 2},
]


@pytest.fixture(scope="module")
def model() -> Rewriter:
    return regard.load(tiny.trained())


def test_a_text_gives_a_text_and_a_list_a_list(model: Rewriter) -> None:
    one = model("twenty-three")
    assert isinstance(one, str)
    assert model(["twenty-three", "five"]) == [one, model("five")]
    assert model([]) == []


@pytest.mark.parametrize("how", SEARCHES, ids=str)
def test_batch_size_order_and_padding_do_not_change_an_answer(model: Rewriter, how: dict[str, Any]) -> None:
    together = model.answer(TEXTS, **how)
    backwards = model.answer(TEXTS[::-1], **how)[::-1]
    beside_a_long_one = model.answer([TEXTS[0], " and ".join(TEXTS[:4])], **how)[0]
    alone = [answer for text in TEXTS for answer in model.answer([text], **how)]
    assert [a.texts for a in together] == [a.texts for a in backwards] == [a.texts for a in alone]
    assert beside_a_long_one.texts == together[0].texts


def test_nothing_answers_nothing(model: Rewriter) -> None:
    assert model(["", "five", " \t "]) == ["", model("five"), ""]


def test_outer_white_space_says_nothing(model: Rewriter) -> None:
    assert model("  two hundred \t") == model("two hundred")


@pytest.mark.parametrize(
    "how", [{"beam": 4, "nbest": 4}, {"sample": True, "nbest": 4}, {"beam": 1, "nbest": 3}], ids=str
)
def test_n_best_lists_are_sorted(model: Rewriter, how: dict[str, Any]) -> None:
    for answer in model.answer(TEXTS[:4], **how):
        scores = [h.score for h in answer.hypotheses if h.finished]
        assert scores == sorted(scores, reverse=True)
        assert len(answer.texts) == how["nbest"]


class Initial(Tokenizer):
    """In which many tokens read alike."""

    def decode(self, ids: Iterable[int]) -> str:
        return super().decode(ids)[:1]


def test_answers_that_read_alike_are_told_once_the_best_of_them(model: Rewriter) -> None:
    brief = replace(model, tokenizers=replace(model.tokenizers, target=Initial(model.tokenizers.target.inner)))
    how = {"beam": 1, "nbest": 16}
    found, told = brief.answer(TEXTS, **how), brief.ask(TEXTS, **how)
    for answer, reply in zip(found, told, strict=True):
        first = [answer.texts.index(text) for text in dict.fromkeys(answer.texts)]
        assert [one["text"] for one in reply.json["answers"]] == [answer.texts[i] for i in first]
        assert [one["score"] for one in reply.json["answers"]] == [answer.hypotheses[i].score for i in first]
        assert [line.split("\t")[1] for line in reply.text.split("\n")] == [answer.texts[i] for i in first]
    assert [len(answer.texts) for answer in found] != [len(reply.json["answers"]) for reply in told]


def test_what_is_drawn_is_told_as_often_as_it_was(model: Rewriter) -> None:
    (reply,) = model.ask(["five"], sample=True, top_k=1, nbest=3)
    assert len({one["text"] for one in reply.json["answers"]}) == 1
    assert len(reply.json["answers"]) == len(reply.text.split("\n")) == 3


def test_a_wider_beam_finds_what_is_at_least_as_likely(model: Rewriter) -> None:
    greedy, wide = (model.answer(TEXTS[:6], penalty="none", beam=beam) for beam in (1, 16))
    likelier = [w.hypotheses[0].logprob >= g.hypotheses[0].logprob - 1e-6 for g, w in zip(greedy, wide, strict=True)]
    assert sum(likelier) >= 5, "beam search is no proof of optimality, but it rarely loses to greedy"


def test_the_same_seed_draws_the_same(model: Rewriter) -> None:
    def drawn(seed: int) -> list[str]:
        return model(TEXTS, sample=True, temperature=2.0, seed=seed)

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


@pytest.mark.parametrize("how", [{"beam": 1}, {"beam": 4}, {"sample": True}], ids=str)
def test_a_forced_prefix_begins_every_answer(model: Rewriter, how: dict[str, Any]) -> None:
    for answer in model.answer(TEXTS[:4], prefixes=["drei"] * 4, **how):
        assert answer.texts[0].startswith("drei")


@pytest.mark.parametrize("how", [{"beam": 1}, {"beam": 3}, {"sample": True}], ids=str)
def test_the_score_of_an_answer_is_its_log_probability(model: Rewriter, how: dict[str, Any]) -> None:
    found = [(text, a.texts[0], a.hypotheses[0]) for text, a in zip(TEXTS, model.answer(TEXTS, **how), strict=True)]
    own = [
        (text, answer, h)
        for text, answer, h in found
        if text and h.finished and tuple(model.tokenizers.target.encode(answer)) == h.tokens
    ]
    assert len(own) >= 3
    for (_, _, h), line in zip(own, model.score([(text, answer) for text, answer, _ in own]), strict=True):
        assert len(line) == len(h.tokens) + 1, "a number for each token, the end mark too"
        assert sum(line) == pytest.approx(h.logprob, abs=1e-4)


def test_lengths_are_honoured(model: Rewriter) -> None:
    for beam in (1, 3):
        short = model.answer(TEXTS[:3], beam=beam, longest=4)
        long = model.answer(TEXTS[:3], beam=beam, shortest=18, longest=24)
        assert all(len(a.hypotheses[0].tokens) <= 4 for a in short)
        assert all(18 <= len(a.hypotheses[0].tokens) <= 24 for a in long)


def test_no_n_gram_is_said_twice(model: Rewriter) -> None:
    for beam in (1, 3):
        for answer in model.answer(TEXTS[:4], beam=beam, block_ngram=2, shortest=16, longest=24):
            tokens = answer.hypotheses[0].tokens
            grams = list(itertools.pairwise(tokens))
            assert len(grams) == len(set(grams))


def test_a_wrong_way_to_search_is_refused(model: Rewriter) -> None:
    with pytest.raises(ConfigError, match="baem: no such setting; did you mean 'beam'"):
        model("five", baem=3)


@pytest.mark.parametrize("how", [{"beam": 1}, {"beam": 4}, {"beam": 4, "coverage": 0.3}], ids=str)
def test_look_follows_the_winning_beam(model: Rewriter, how: dict[str, Any]) -> None:
    """What it shows is what the model looks at when it is handed the same answer word by word."""
    text = "three hundred and twenty-one"
    trace = model.look(text, **how)
    (best,) = model.answer([text], **how)[0].hypotheses
    source, real = pad([[*model.tokenizers.source.encode(text), EOS]])
    told = torch.tensor([[BOS, *best.tokens][: len(trace.target)]])
    with regard.watch(model.model) as seen, torch.inference_mode():
        model.model(source, real, told)
    for name, weights in trace.maps.items():
        expected = seen[name][0][0].numpy()
        np.testing.assert_allclose(weights, expected, atol=1e-5, err_msg=name)


def test_every_row_of_every_map_sums_to_one(model: Rewriter) -> None:
    trace = model.look("two hundred and five", beam=3)
    assert {"encoder.0.attention", "decoder.0.attention", "decoder.0.cross"} <= set(trace.maps)
    for name, weights in trace.maps.items():
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5, err_msg=name)
    assert trace.alignment().shape == (len(trace.target), len(trace.source))
    assert trace.source[-1] == "<eos>"
    assert trace.caption.startswith("two hundred and five → ")


def test_looking_changes_no_answer(model: Rewriter) -> None:
    text = TEXTS[0]
    before = model(text, beam=3)
    assert model.look(text, beam=3).caption == f"{text} → {before}"
    assert model(text, beam=3) == before


def test_what_is_told_of_a_model_is_what_was_trained(model: Rewriter) -> None:
    assert model.recipe.model.vocab == model.tokenizers.target.size  # type: ignore[attr-defined]
    assert model.recipe.model.source_vocab == model.tokenizers.source.size  # type: ignore[attr-defined]
    assert not model.model.training


HOSTILE = [
    "a\tb",
    "nul \x00 nul",
    "half \ud800 character",
    "<eos> <bos> <pad> <unk>",
    "\u202eright to left",
    "e" + "\u0301" * 50,
    "👩‍👩‍👧‍👦" * 5,
    "\u2028\u2029\x85",
    "-- --help",
]


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_any_text_has_an_answer(model: Rewriter, text: str) -> None:
    answer = model(text)
    answer.encode("utf-8")
    assert model([text, "five"]) == [answer, model("five")]


def test_training_from_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"data": {"count": 300, "held": 8}, "model": {"dim": 16, "layers": 1, "hidden": 16}}
    model = regard.train(
        "demo", tmp_path / "run", **settings, train={"steps": 3, "tokens": 256, "warmup": 1}, decode={"longest": 5}
    )
    assert isinstance(model("five"), str)
    assert model.recipe.train.steps == 3
    again = regard.train(model.recipe, tmp_path / "again")
    assert tiny.weights_hash(tmp_path / "again") == tiny.weights_hash(tmp_path / "run")
    assert again("five") == model("five")
    assert not capsys.readouterr().out, "what Python code prints is its own affair"


def test_a_setting_without_effect_is_refused() -> None:
    pipeline = regard.load(tiny.trained())
    with pytest.raises(ConfigError, match=r"^top_p: only sampling uses it; add sample = true \(on a command line --sa"):
        pipeline("twenty-three", top_p=0.9)
    with pytest.raises(ConfigError, match=r"^beam: sampling .*; add sample = false \(on a command line --sample false"):
        pipeline("twenty-three", beam=2, sample=True)
    assert pipeline("twenty-three", top_p=0.9, sample=True, seed=1) == pipeline(
        "twenty-three", top_p=0.9, sample=True, seed=1
    )
