"""Entities from tags, right ones and broken ones, as seqeval's default mode has them."""

from __future__ import annotations

import importlib.util
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.metrics.entities import entities, entity_scores, tag_accuracy

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-A-B", "I-A-B", "B", "I"]
sentence = st.lists(st.sampled_from(TAGS), max_size=9)


def by_the_rules(tags: list[str]) -> set[tuple[str, int, int]]:
    """Every stretch of words is asked: does it begin as an entity does, go on as one, and not go on behind its end?

    seqeval: a chunk starts at B, at an I behind O, and wherever the type changes; it ends before B, before O, and
    wherever the type changes. A tag without a type has the type "_".
    """

    def kind(place: int) -> str:
        return tags[place][2:] or "_"

    def inside(place: int) -> bool:
        return 0 <= place < len(tags) and tags[place] != "O"

    def starts(place: int) -> bool:
        if not inside(place):
            return False
        return tags[place][0] == "B" or not inside(place - 1) or kind(place - 1) != kind(place)

    return {
        (kind(first), first, last)
        for first in range(len(tags))
        for last in range(first, len(tags))
        if starts(first)
        and all(inside(place) and not starts(place) for place in range(first + 1, last + 1))
        and (not inside(last + 1) or starts(last + 1))
    }


@given(sentence)
def test_entities_are_those_of_the_rules(tags: list[str]) -> None:
    found = entities(tags)
    assert set(found) == by_the_rules(tags)
    assert found == sorted(found, key=lambda entity: entity.first)


@given(st.lists(st.tuples(sentence, st.randoms(use_true_random=False)), max_size=5))
def test_scores_count_whole_entities_of_all_sentences_together(drawn: list[tuple[list[str], random.Random]]) -> None:
    wanted = [tags for tags, _ in drawn]
    told = [[chance.choice(TAGS) if chance.random() < 0.3 else tag for tag in tags] for tags, chance in drawn]
    ours = {(n, *entity) for n, tags in enumerate(told) for entity in by_the_rules(tags)}
    theirs = {(n, *entity) for n, tags in enumerate(wanted) for entity in by_the_rules(tags)}
    precision = len(ours & theirs) / len(ours) if ours else 0
    recall = len(ours & theirs) / len(theirs) if theirs else 0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0
    found = entity_scores(told, wanted)
    assert found == pytest.approx({"precision": 100 * precision, "recall": 100 * recall, "f1": 100 * f1})


@pytest.mark.skipif(
    importlib.util.find_spec("seqeval") is None, reason="seqeval is not installed; the rules are compared above"
)
def test_scores_are_seqevals() -> None:
    from seqeval import metrics

    chance = random.Random(0)
    for _ in range(200):
        wanted = [[chance.choice(TAGS[:7]) for _ in range(chance.randrange(1, 12))] for _ in range(4)]
        told = [[chance.choice(TAGS[:7]) if chance.random() < 0.4 else tag for tag in tags] for tags in wanted]
        found = entity_scores(told, wanted)
        assert found["f1"] == pytest.approx(100 * metrics.f1_score(wanted, told, zero_division=0))
        assert found["recall"] == pytest.approx(100 * metrics.recall_score(wanted, told, zero_division=0))


def test_each_measure_says_what_counts() -> None:
    found = entity_scores([["B-PER", "O"]], [["B-PER", "I-PER"]])
    assert found["f1"] == 0
    assert found["precision"].definition.startswith("0 of 1 predicted entities, in %: kind, first and last word right")
    accuracy = tag_accuracy([["B-PER", "O"]], [["B-PER", "I-PER"]])
    assert (accuracy, accuracy.definition) == (50, "words with the right tag, in % of 2")
