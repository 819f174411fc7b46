"""Answers are the best spans of all windows, by brute force; and what is learnt is what is measured."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from regard.data.pieces import pieces
from regard.data.squad import Answer, Question
from regard.data.tokenizer import Tokenizer
from regard.data.windows import Cut, Part, Window, Windows
from regard.errors import DataError
from regard.metrics.squad import exact
from regard.models.bert import Bert, Config
from regard.tasks.span import Span, SpanBatch, Spanned, answer, best_spans, choose, edges, measure, rank, search

NAMES = ["Ada", "Bob", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal"]
THINGS = ["a boat", "the red car", "an owl", "two cats", "a hat", "the drum", "nine figs", "a kite"]
CUT = Cut(longest=40, query=8, stride=9)


def settings(**changes: Any) -> Any:
    return SimpleNamespace(**{"question": 8, "stride": 9, "answer": 6, "nbest": 20, "impossible": False,
        "threshold": 0.0, **changes})  # fmt: skip


def questions(count: int, seed: int = 0, *, impossible: bool = False) -> list[Question]:
    """A passage tells what each of some people has; who is not told of has nothing."""
    chance = np.random.default_rng(seed)
    found = []
    for number in range(count):
        people, things = chance.permutation(NAMES), chance.permutation(THINGS)
        told = [f"{name} has {thing} ." for name, thing in zip(people[:7], things, strict=False)]
        passage = " ".join(told)
        absent = impossible and number % 3 == 0
        name = people[7] if absent else people[number % 7]
        thing = things[number % 7]
        start = passage.index(f"{name} has {thing}") + len(f"{name} has ") if not absent else 0
        answers = () if absent else (Answer(str(thing), start),)
        found.append(Question(str(number), f"what has {name} ?", passage, answers))
    return found


TOKENIZER = Tokenizer.train([f"{q.passage} {q.text}" for q in questions(40)], kind="wordpiece", size=120)


def bert(**changes: Any) -> Bert:
    size = {"dim": 32, "heads": 2, "layers": 2, "hidden": 64, "context": 64, "dropout": 0.0, "attention_dropout": 0.0}
    return Bert(Config(vocab=TOKENIZER.size, head="words", labels=2, **{**size, **changes}))


def task(folder: Path, held: list[Question], how: Any = None, train: list[Question] | None = None) -> Span:
    build = {"train": train or questions(30), "valid": held}
    stores = {name: Windows.build(folder / name, some, TOKENIZER, CUT) for name, some in build.items()}
    return Span(TOKENIZER, stores["train"], {"valid": stores["valid"]}, tokens=640, seed=0, settings=how or settings())


# ---- the search


def window(tokens: int, passage: int, part: Part) -> Window:
    return Window(np.zeros(tokens, np.int64), passage, part, 0, 0, 0)


@given(st.data())
def test_the_search_is_the_best_of_all_spans(data: st.DataObject) -> None:
    first, length, query = (data.draw(st.integers(*ends)) for ends in ((0, 5), (1, 12), (1, 4)))
    home = data.draw(st.integers(first, first + length))
    away = data.draw(st.integers(home, first + length))
    limit, passage = data.draw(st.integers(1, 8)), query + 2
    one = window(passage + length + 1, passage, Part(first, length, home, away))
    scores = torch.randn(1, len(one.tokens) + 2, 2)
    every = {
        (i, j): float(scores[0, passage + i - first, 0] + scores[0, passage + j - first, 1])
        for i in range(home, away)
        for j in range(i, min(first + length, i + limit))
    }
    wanted = sorted(every.items(), key=lambda pair: -pair[1])
    (found,) = best_spans(scores, [one], nbest=200, limit=limit)
    assert [(span.first, span.last) for span in found] == [pair for pair, _ in wanted]
    assert [span.score for span in found] == pytest.approx([score for _, score in wanted])
    (few,) = best_spans(scores, [one], nbest=3, limit=limit)
    assert all(any(span == other for other in found) for span in few)
    assert len(few) <= 3


class Loud(nn.Module):
    """Says of each token a number that depends on it and on its place alone, and nothing of its neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(TOKENIZER.size, 64, 2))
        self.labels = nn.Identity()

    def forward(self, words: Tensor, real: Tensor, segments: Tensor) -> Tensor:
        return self.table[words, torch.arange(words.shape[1])] + segments[..., None]


def test_windows_are_searched_together(tmp_path: Path) -> None:
    """Of all windows of a question the best span whose first token counts there; of "no answer" the least score."""
    model, how = Loud(), settings(nbest=500)
    held = Windows.build(tmp_path / "w", questions(6), TOKENIZER, CUT)
    for tokens in (40, 4096):
        found, _ = search(model, held, held.lengths, TOKENIZER.marks, how, tokens=tokens)
        for number in range(6):
            mine = [held[place] for place in range(len(held)) if held[place].question == number]
            assert len(mine) > 1
            every, nothing = [], []
            for one in mine:
                scores = model.table[torch.from_numpy(one.tokens), torch.arange(len(one.tokens))].detach()
                nothing.append(float(scores[0].sum()))
                for i in range(one.part.home, one.part.away):
                    for j in range(i, min(one.part.first + one.part.length, i + how.answer)):
                        shift = one.passage - one.part.first
                        every.append((float(scores[i + shift, 0] + scores[j + shift, 1]) + 2, i, j))
            assert found[number].spans[0] == pytest.approx(max(every))
            assert found[number].nothing == pytest.approx(min(nothing))


@pytest.mark.parametrize(
    ("nothing", "best", "threshold", "silent"),
    [
        (1.0, 2.0, 0.0, False),
        (2.0, 1.0, 0.0, True),
        (2.0, 1.0, 1.0, False),
        (2.0, 0.9, 1.0, True),
        (1.0, 2.0, -2.0, True),
    ],
)
def test_no_answer_is_given_where_it_wins_by_more_than_the_threshold(
    nothing: float, best: float, threshold: float, silent: bool
) -> None:
    text = "Ada has a boat ."
    spans = [Spanned(best, 0, 0), Spanned(best - 1, 0, 1), Spanned(best - 2, 0, 0)]
    answers = rank(text, pieces(TOKENIZER, [text])[0], spans)
    chosen = choose(answers, nothing, settings(impossible=True, threshold=threshold))
    assert (chosen.text == "") == silent
    assert sum(one.probability for one in (chosen, *chosen.others)) == pytest.approx(1)
    always = choose(answers, nothing, settings(threshold=threshold))
    assert (always.text, always.start, always.end, always.score) == ("Ada", 0, 3, best)
    assert [one.text for one in always.others] == ["Ada has"]


def test_white_space_is_no_answer() -> None:
    text = "Ada  has a boat "
    letters = Tokenizer.train([text], kind="char", size=30)
    spans = [Spanned(4.0, 3, 3), Spanned(3.0, 3, 4), Spanned(2.0, 0, 4), Spanned(1.0, 4, 7)]
    assert [one.text for one in rank(text, pieces(letters, [text])[0], spans)] == ["Ada", "has"]
    nothing = choose([], 1.0, settings())
    assert (nothing.text, nothing.score, nothing.probability, nothing.others) == ("", 1.0, 1.0, ())


# ---- the loss


@torch.inference_mode()
def test_the_loss_is_half_the_surprise_of_each_edge(tmp_path: Path) -> None:
    span, model = task(tmp_path, questions(3)), bert().eval()
    batch = span.batch("train", 0)
    assert batch.ids
    assert int(batch.real.sum()) == batch.tokens
    total = 0.0
    for row in range(len(batch.words)):
        size = int(batch.real[row].sum())
        hidden = model(batch.words[row : row + 1, :size], None, batch.segments[row : row + 1, :size])
        told = model.labels(hidden)[0].log_softmax(0)  # question and marks too, padding not
        total -= float(told[batch.spans[row, 0], 0] + told[batch.spans[row, 1], 1]) / 2
    loss = span.loss(model, batch, None)
    assert float(loss.total) == pytest.approx(total, rel=1e-5)
    assert loss.count == len(batch.words)


def test_a_batch_is_laid_out_as_bert_reads(tmp_path: Path) -> None:
    span = task(tmp_path, questions(3))
    batch = span.batch("train", 1)
    marks = TOKENIZER.marks
    for words, real, segments, (start, end) in zip(
        batch.words.tolist(), batch.real.tolist(), batch.segments.tolist(), batch.spans.tolist(), strict=True
    ):
        size = sum(real)
        assert words[0] == marks.begin
        assert words[size - 1] == marks.end
        assert set(words[size:]) <= {marks.pad}
        first = words.index(marks.end) + 1
        assert segments == [0] * first + [1] * (size - first) + [0] * (len(words) - size)
        assert (start, end) == (0, 0) or first <= start <= end < size - 1
    again = span.batch("train", 1)
    assert torch.equal(batch.words, again.words)
    with pytest.raises(ValueError, match="only training draws batches by step; 'valid' is read in order"):
        span.batch("valid", 0)


def test_padding_does_not_change_the_scores(tmp_path: Path) -> None:
    model = bert().eval()
    held = Windows.build(tmp_path / "w", questions(4), TOKENIZER, CUT)
    some = [held[place] for place in range(len(held))]
    together = edges(model, SpanBatch.of(some, TOKENIZER.marks))
    for row, one in enumerate(some):
        alone = edges(model, SpanBatch.of([one], TOKENIZER.marks))[0]
        torch.testing.assert_close(together[row, : len(alone)], alone, atol=1e-5, rtol=1e-5)
        assert (together[row, len(alone) :] == -math.inf).all()


# ---- measuring and asking


def test_measures_do_not_depend_on_the_batches_and_know_their_split(tmp_path: Path) -> None:
    span, model = task(tmp_path, questions(8, seed=3)), bert().eval()
    found = span.evaluate(model, "valid")
    assert set(found) == {"loss", "exact", "f1"}
    told: list[tuple[int, int]] = []
    again = measure(model, span.held["valid"], span.settings, tokens=40, progress=lambda *p: told.append(p))
    assert again == pytest.approx(found, rel=1e-4)
    assert told[-1] == (len(span.held["valid"]),) * 2
    assert span.evaluate(model, "test") == {}
    assert span.epoch(len(span.batches)) == 1
    assert span.fingerprint == span.train.fingerprint


def learnt(span: Span, steps: int) -> Bert:
    model = bert()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    for step in range(steps):
        loss = span.loss(model, span.batch("train", step), None)
        (loss.total / loss.count).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def test_a_small_model_learns_its_questions_by_heart_and_answers_them(tmp_path: Path) -> None:
    asked = questions(6, impossible=True)
    how = settings(impossible=True)
    span = task(tmp_path, asked, how, asked)
    model = learnt(span, 60)
    found = span.evaluate(model, "valid")
    assert found["f1"] > 85
    assert found["best_f1"] >= found["f1"]
    assert set(found) == {"loss", "exact", "f1", "exact_with", "f1_with", "exact_without", "f1_without", "best_exact",
        "best_f1", "threshold"}  # fmt: skip
    at_best = measure(model, span.held["valid"], settings(impossible=True, threshold=float(found["threshold"])))
    assert at_best["f1"] == pytest.approx(found["best_f1"])
    given_ = answer(model, TOKENIZER, [(q.text, q.passage) for q in asked], how, longest=CUT.longest)
    hits = [exact(one.text, [a.text for a in q.answers]) for one, q in zip(given_, asked, strict=True)]
    assert 100 * np.mean(hits) == pytest.approx(found["exact"])
    for one, question in zip(given_, asked, strict=True):
        for other in (one, *one.others):
            assert question.passage[other.start : other.end] == other.text
        assert len({other.text for other in (one, *one.others)}) == 1 + len(one.others)
        assert sum(other.probability for other in (one, *one.others)) == pytest.approx(1)


def test_a_question_about_nothing_is_refused() -> None:
    model = bert().eval()
    with pytest.raises(DataError, match="input 2 is no question with a passage; give both, with a tab"):
        answer(model, TOKENIZER, [("who ?", "Ada"), ("who ?", " ")], settings(), longest=40)
    assert answer(model, TOKENIZER, [], settings(), longest=40) == []
