"""SQuAD's exact match and F1, against the definition written out again."""

from __future__ import annotations

import collections
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.metrics.squad import best_threshold, exact, overlap, plain, squad

WORDS = ["The", "a", "An", "cat", "Cat.", "dog", "dog's", "the-cat", "…", "!", "  ", "1,000", "theatre", "U.N."]
answers = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)
questions = st.lists(st.tuples(answers, st.lists(answers, max_size=3)), min_size=1, max_size=8)


def official_plain(s: str) -> str:
    """Lower case, then punctuation, then articles, then white space."""
    s = "".join(ch for ch in s.lower() if ch not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", s).split())


def official_f1(gold: str, said: str) -> float:
    """Of 2.0: precision and recall of the bag of words; all or nothing where one of the two has none."""
    gold_words, said_words = official_plain(gold).split(), official_plain(said).split()
    if not gold_words or not said_words:
        return float(gold_words == said_words)
    same = sum((collections.Counter(gold_words) & collections.Counter(said_words)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(said_words), same / len(gold_words)
    return 2 * precision * recall / (precision + recall)


@given(answers, st.lists(answers, max_size=3))
def test_a_question_scores_as_in_the_official_definition(said: str, golds: list[str]) -> None:
    wanted = [gold for gold in golds if official_plain(gold)] or [""]
    assert plain(said) == official_plain(said)
    assert exact(said, golds) == max(official_plain(gold) == official_plain(said) for gold in wanted)
    assert overlap(said, golds) == pytest.approx(max(official_f1(gold, said) for gold in wanted))


@given(questions)
def test_the_measures_are_means_over_questions_in_percent(asked: list[tuple[str, list[str]]]) -> None:
    said, golds = [list(side) for side in zip(*asked, strict=True)]
    found = squad(said, golds)
    assert found["exact"] == pytest.approx(100 * sum(map(exact, said, golds)) / len(asked))
    assert found["f1"] == pytest.approx(100 * sum(map(overlap, said, golds)) / len(asked))
    assert found["exact"] <= found["f1"] + 1e-9
    kinds = {any(map(official_plain, some)) for some in golds}
    assert ("exact_with" in found) == ("f1_without" in found) == (len(kinds) == 2)
    if len(kinds) == 2:
        held = sum(any(map(official_plain, some)) for some in golds)
        both = held * found["f1_with"] + (len(asked) - held) * found["f1_without"]
        assert found["f1"] == pytest.approx(both / len(asked))


def test_a_measure_says_how_it_was_counted() -> None:
    found = squad(["the cat", "dog"], [["Cat!", "a dog"], ["dogs"]])
    assert found["exact"] == 50
    assert "in % of 2 questions" in found["exact"].definition
    assert "without punctuation and articles" in found["f1"].definition


@given(questions, st.data())
def test_the_best_threshold_is_the_best_of_all_cuts(asked: list[tuple[str, list[str]]], data: st.DataObject) -> None:
    said, golds = [list(side) for side in zip(*asked, strict=True)]
    doubts = data.draw(st.lists(st.sampled_from([-2.0, -0.5, 0.0, 1.5]), min_size=len(said), max_size=len(said)))

    def at(threshold: float) -> float:
        given = ["" if doubt > threshold else one for doubt, one in zip(doubts, said, strict=True)]
        return float(squad(given, golds)["f1"])

    threshold, value = best_threshold(doubts, said, golds, overlap)
    assert value == pytest.approx(at(threshold))
    assert value == pytest.approx(max(map(at, [-9.0, *doubts])))
