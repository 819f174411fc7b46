"""Rewriting: what is learnt is what is scored, and what is written is what is measured."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.data.batch import Batch
from regard.data.tokenizer import BOS, EOS, Marks, Tokenizer, Tokenizers
from regard.metrics.translation import BLEU
from regard.pipeline.rewrite import Rewriter
from regard.prepare.rewrite import hold, prepare
from regard.tasks.rewrite import Held, Rewrite, by_length, measure, rewrite, score_pairs, surprise
from regard.tasks.searching import seed_of

PAIRS = tiny.pairs(6)


@pytest.fixture(scope="module")
def model() -> Rewriter:
    return regard.load(tiny.trained())


@pytest.fixture(scope="module")
def task(model: Rewriter) -> Rewrite:
    return prepare(model.recipe, tiny.trained())[1]


@pytest.fixture(scope="module")
def held(model: Rewriter) -> Held:
    return hold(model.recipe, tiny.trained(), "test", model.tokenizers, lambda text: None)


def batch_of(model: Rewriter, pairs: list[tuple[str, str]]) -> Batch:
    sources = [[*model.tokenizers.source.encode(source), EOS] for source, _ in pairs]
    targets = [[BOS, *model.tokenizers.target.encode(target), EOS] for _, target in pairs]
    return Batch.of(sources, targets, range(len(pairs)))


@torch.inference_mode()
def test_the_loss_is_the_summed_score_of_the_targets(model: Rewriter, task: Rewrite) -> None:
    batch, scores = batch_of(model, PAIRS), model.score(PAIRS)
    loss = task.loss(model.model, batch, None)
    assert loss.parts["nll"].item() == pytest.approx(-sum(map(sum, scores)), rel=1e-5)
    assert surprise(model.model, batch).sum().item() == pytest.approx(-sum(map(sum, scores)), rel=1e-5)
    assert loss.count == sum(map(len, scores))


@torch.inference_mode()
def test_the_loss_of_a_batch_is_the_sum_of_its_rows(model: Rewriter, task: Rewrite) -> None:
    whole = task.loss(model.model, batch_of(model, PAIRS), None)
    alone = [task.loss(model.model, batch_of(model, [pair]), None) for pair in PAIRS]
    assert whole.total.item() == pytest.approx(sum(loss.total.item() for loss in alone), rel=1e-5)


def test_measures_of_what_the_model_itself_would_write_are_perfect(model: Rewriter, held: Held) -> None:
    answers = model(held.sources)
    found = measure(model.model, model.tokenizers, replace(held, references=answers), model.decoding(), BLEU())
    assert found["exact"] == 100
    assert found["chrf"] == pytest.approx(100)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))


def test_an_evaluation_is_the_same_in_any_batches_and_tells_its_progress(model: Rewriter, held: Held) -> None:
    told: list[tuple[int, int]] = []
    how = model.decoding()
    small, large = (
        measure(model.model, model.tokenizers, held, how, BLEU(), tokens=tokens, progress=lambda *p: told.append(p))
        for tokens in (64, 4096)
    )
    assert small == pytest.approx(large, rel=1e-5)
    assert told[-1] == (len(held.sources), len(held.sources))
    assert [done for done, _ in told] != sorted({done for done, _ in told}), "two evaluations, each from the start"


def test_a_split_that_is_not_there_measures_nothing(model: Rewriter, task: Rewrite) -> None:
    assert task.evaluate(model.model, "nowhere") == {}
    assert set(task.evaluate(model.model, "valid")) >= {"loss", "bleu"}


def test_batches_are_for_training_alone(task: Rewrite) -> None:
    first = task.batch("train", 3)
    assert torch.equal(first.source, task.batch("train", 3).source)
    with pytest.raises(ValueError, match="only training draws batches by step; 'valid' is read in order"):
        task.batch("valid", 0)


def test_coverage_can_only_lower_a_score(model: Rewriter) -> None:
    sources = [source for source, _ in PAIRS]
    plain = rewrite(model.model, model.tokenizers, sources, model.decoding(beam=4))
    covered = rewrite(model.model, model.tokenizers, sources, model.decoding(beam=4, coverage=0.5))
    for one, other in zip(plain, covered, strict=True):
        same = [h for h in other.hypotheses if h.tokens == one.hypotheses[0].tokens and h.finished]
        assert all(h.score < one.hypotheses[0].score for h in same)
    assert any(o.hypotheses[0].score != p.hypotheses[0].score for o, p in zip(covered, plain, strict=True))


@given(lengths=st.dictionaries(st.integers(0, 99), st.integers(1, 40)), tokens=st.integers(0, 200))
def test_batches_by_length_hold_everything_once_and_keep_the_budget(lengths: dict[int, int], tokens: int) -> None:
    batches = list(by_length(lengths, tokens))
    assert sorted(i for rows in batches for i in rows) == sorted(lengths)
    for rows in batches:
        assert len(rows) == 1 or len(rows) * max(lengths[i] for i in rows) <= tokens


def test_random_numbers_belong_to_a_sentence_and_a_draw() -> None:
    seeds = {seed_of(seed, draw, ids) for seed in range(3) for draw in range(3) for ids in ((4, 5), (5, 4), (45,))}
    assert len(seeds) == 27
    assert seed_of(1, 2, (3, 4)) == seed_of(1, 2, [3, 4])


def remarked(model: Rewriter, source: Marks, target: Marks) -> Tokenizers:
    """The same vocabularies, with other marks."""
    return Tokenizers(
        Tokenizer(model.tokenizers.source.inner, source), Tokenizer(model.tokenizers.target.inner, target)
    )


@pytest.mark.parametrize("beam", [1, 3])
@torch.inference_mode()
def test_an_answer_opens_with_what_every_target_opens_with(model: Rewriter, beam: int) -> None:
    both = remarked(model, Marks(0, 1, 2, 3, before=(1,)), Marks(0, 2, 2, 3, opening=(1,)))
    how = model.decoding(beam=beam, longest=8)
    for prefixes in (None, ["zwei"]):
        (answer,) = rewrite(model.model, both, ["twenty-three"], how, prefixes=prefixes)
        best = answer.hypotheses[0]
        begun = both.target.encode("zwei") if prefixes else []
        assert best.tokens[: 1 + len(begun)] == (1, *begun)
        assert len(best.tokens) <= 1 + 8
        assert answer.texts[0] == both.target.decode(best.tokens[1:])
        source = torch.tensor([both.source.marks.source(both.source.encode("twenty-three"))])
        told = [2, *best.tokens, *([2] if best.finished else [])]
        hidden, _ = model.model(source, torch.ones_like(source, dtype=torch.bool), torch.tensor([told[:-1]]))
        likely = model.model.head.logprobs(hidden, torch.tensor([told[1:]]))
        assert likely.sum().item() == pytest.approx(best.logprob, rel=1e-4)


@torch.inference_mode()
def test_where_an_end_pads_it_is_learnt_all_the_same(model: Rewriter, task: Rewrite) -> None:
    both = remarked(model, Marks(0, 1, 0, 3), Marks(0, 1, 0, 3))
    scores = score_pairs(model.model, both, PAIRS)
    sources = [both.source.marks.source(both.source.encode(source)) for source, _ in PAIRS]
    targets = [both.target.marks.target(both.target.encode(target)) for _, target in PAIRS]
    loss = task.loss(model.model, Batch.of(sources, targets, range(len(PAIRS))), None)
    assert loss.count == sum(len(target) - 1 for target in targets) == sum(map(len, scores))
    assert loss.parts["nll"].item() == pytest.approx(-sum(map(sum, scores)), rel=1e-5)


def test_nothing_answers_nothing_whatever_frames_it(model: Rewriter) -> None:
    both = remarked(model, Marks(0, 1, 2, 3, before=(1,)), Marks(0, 2, 2, 3, opening=(1,)))
    assert rewrite(model.model, both, ["", "two"], model.decoding())[0].texts == ("",)
