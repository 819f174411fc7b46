"""Alignment error rate is Och & Ney's, and how a text is cut into tokens does not change who looks at whom."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from regard.errors import ConfigError, DataError
from regard.metrics.alignment import Gold, Links, Span, alignment_error_rate, links

Pairs = set[tuple[int, int]]

SOME = st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4)))

SOURCE, TARGET = "three hundred and twenty-one", "dreihunderteinundzwanzig"
THREE: Gold = ((0, 5), (0, 4), True)
HUNDRED: Gold = ((6, 13), (4, 11), True)
TWENTY: Gold = ((18, 24), (17, 24), True)
ONE: Gold = ((25, 28), (11, 14), True)
GOLD = [THREE, HUNDRED, TWENTY, ONE]


def test_the_formula_by_hand() -> None:
    predicted, sure, possible = [{(1, 1), (2, 3), (3, 2)}], [{(1, 1)}], [{(2, 3)}]
    assert alignment_error_rate(predicted, sure, possible) == 1 - (1 + 2) / (3 + 1)
    assert alignment_error_rate(predicted, sure) == 1 - (1 + 1) / (3 + 1)


@given(SOME, SOME)
def test_right_is_zero_and_wrong_is_one(sure: Pairs, possible: Pairs) -> None:
    assume(sure)
    elsewhere = {(i + 5, j) for i, j in sure}
    assert alignment_error_rate([sure], [sure]) == 0
    assert alignment_error_rate([sure | possible], [sure], [possible]) == 0
    assert alignment_error_rate([elsewhere], [sure], [possible]) == 1


@given(st.lists(st.tuples(SOME, SOME, SOME), min_size=1, max_size=4))
def test_a_corpus_is_one_long_sentence(corpus: list[tuple[Pairs, Pairs, Pairs]]) -> None:
    predicted, sure, possible = ([sentence[i] for sentence in corpus] for i in range(3))
    assume(any(predicted) or any(sure))

    def joined(sentences: list[Pairs]) -> Pairs:
        return {(5 * n + i, 5 * n + j) for n, sentence in enumerate(sentences) for i, j in sentence}

    rate = alignment_error_rate(predicted, sure, possible)
    assert rate == alignment_error_rate([joined(predicted)], [joined(sure)], [joined(possible)])
    assert 0 <= rate <= 1


def test_the_measure_tells_its_definition() -> None:
    measure = alignment_error_rate([{(0, 0)}, set()], [{(0, 0)}, {(1, 1)}])
    assert measure.definition == "1 - (|A∩S| + |A∩P|) / (|A| + |S|), Och & Ney 2003, over 2 sentences"


def cut(text: str, places: set[int]) -> list[Span]:
    """Tokens that begin at these places."""
    edges = sorted({0, len(text)} | {place for place in places if place < len(text)})
    return list(pairwise(edges))


def attend(source: list[Span], target: list[Span], gold: list[Gold]) -> npt.NDArray[np.float64]:
    """Looks where the gold alignment says, at the last of the tokens there."""
    weights = np.zeros((len(target), len(source)))
    for (_, end), (start, stop), _ in gold:
        last = max(i for i, token in enumerate(source) if token[0] < end)
        weights[[j for j, token in enumerate(target) if token[0] < stop and start < token[1]], last] = 1
    return weights


def rate(found: Links) -> float:
    return alignment_error_rate([found.predicted], [found.sure], [found.possible])


@given(st.sets(st.integers(1, 40)), st.sets(st.integers(1, 40)))
def test_attention_to_the_gold_is_without_error_however_its_words_are_cut(left: set[int], right: set[int]) -> None:
    source = cut(SOURCE, left.union(*(one for one, _, _ in GOLD)))
    target = cut(TARGET, right.union(*(other for _, other, _ in GOLD)))
    found = links(attend(source, target, GOLD), source, target, GOLD)
    assert rate(found) == 0
    assert len(found.sure) == len(GOLD)
    turned = links(attend(source, target, GOLD)[::-1], source, target, GOLD)
    assert rate(turned) > 0.5


def test_one_token_for_two_parts_can_only_look_at_one_of_them() -> None:
    source, target = cut(SOURCE, {5, 6, 13, 14}), cut(TARGET, {4, 14, 17})  # hundertein, und, zwanzig
    assert [TARGET[slice(*token)] for token in target] == ["drei", "hundertein", "und", "zwanzig"]
    found = links(attend(source, target, [HUNDRED]), source, target, [HUNDRED, ONE])
    assert len(found.predicted) == 1
    assert len(found.sure) == 2
    assert rate(found) == 1 - (1 + 1) / (1 + 2)


def test_tokens_of_one_part_may_look_at_any_of_its_tokens_but_not_beside_it() -> None:
    source, target = cut(SOURCE, {2, 5}), cut(TARGET, {1, 2, 4})
    inside = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]])
    beside = np.array([[1, 0, 0], [0, 0, 1], [1, 0, 0], [0, 0, 1]])
    assert rate(links(inside, source, target, [THREE])) == 0
    assert rate(links(beside, source, target, [THREE])) == 1 - (1 + 1) / (2 + 1)


def test_of_whom_the_gold_says_nothing_nothing_is_asked() -> None:
    source, target = cut(SOURCE, {5}), cut(TARGET, {4})
    for weights in ([[1, 0], [0, 1]], [[1, 0], [1, 0]]):
        assert rate(links(np.array(weights), source, target, [THREE])) == 0


def test_a_token_without_letters_is_in_no_group() -> None:
    source, target = cut(SOURCE, {5}), [(0, 0), (0, 4), (4, 24)]
    found = links(np.array([[0, 1], [1, 0], [0, 1]]), source, target, [THREE])
    assert found == Links({(0, 1)}, {(0, 1)}, {(0, 1)})


def test_a_possible_link_is_not_missed_but_may_be_there() -> None:
    six, afternoon = ((0, 3), (0, 8), True), ((4, 8), (0, 8), False)
    source, target = cut("six p.m.", {4}), cut("achtzehn Uhr", {4, 8})
    at_six, at_both = (np.array([[1, 0], row, [0, 1]]) for row in ([1, 0], [0, 1]))
    for weights in (at_six, at_both):
        assert rate(links(weights, source, target, [six, afternoon])) == 0
    assert rate(links(at_both, source, target, [six])) > 0


def test_what_does_not_fit() -> None:
    with pytest.raises(
        ConfigError, match=r"weights of shape \(3, 2\) for 2 target and 3 source tokens; give a row for"
    ):
        links(np.zeros((3, 2)), cut(SOURCE, {5, 9}), cut(TARGET, {4}), GOLD)
    with pytest.raises(ConfigError, match="1 sentences predicted, 2 sure, 2 possible; give a set of pairs for each"):
        alignment_error_rate([set()], [set(), set()])
    with pytest.raises(DataError, match="2 sentences without a single link; give sentences of which an alignment is"):
        alignment_error_rate([set(), set()], [set(), set()])
