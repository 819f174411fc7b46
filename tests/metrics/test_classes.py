"""GLUE's measures against their textbook definitions, counted one by one, and where they have nothing to say."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from regard.metrics.classes import accuracy, f1, matthews, pearson, spearman

TWO = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40)
MANY = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40)
SOME = st.integers(-20, 20).map(lambda number: number / 4)
NUMBERS = st.lists(st.tuples(SOME, SOME), min_size=2, max_size=40)
Pairs = list[tuple[int, int]]
Points = list[tuple[float, float]]


def sides(pairs: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [told for told, _ in pairs], [wanted for _, wanted in pairs]


def covariance(x: list[float], y: list[float]) -> float:
    """Without a mean: half the mean product of all differences."""
    return math.fsum((a - c) * (b - d) for a, b in zip(x, y, strict=True) for c, d in zip(x, y, strict=True))


def correlation(x: list[float], y: list[float]) -> float:
    spread = math.sqrt(covariance(x, x) * covariance(y, y))
    return 100 * covariance(x, y) / spread if spread else 0.0


def rank(x: list[float]) -> list[float]:
    """How many are smaller, and half of how many are as large."""
    return [sum(b < a for b in x) + sum(b == a for b in x) / 2 for a in x]


@given(TWO)
def test_two_labels_by_counting(pairs: Pairs) -> None:
    told, wanted = sides(pairs)
    tp, tn, fp, fn = (pairs.count(pair) for pair in ((1, 1), (0, 0), (1, 0), (0, 1)))
    assert accuracy(told, wanted) == pytest.approx(100 * (tp + tn) / len(pairs))
    if tp:
        precision, recall = tp / (tp + fp), tp / (tp + fn)
        assert f1(told, wanted) == pytest.approx(100 * 2 / (1 / precision + 1 / recall))
    else:
        assert f1(told, wanted) == 0
    spread = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert matthews(told, wanted) == pytest.approx(100 * (tp * tn - fp * fn) / spread if spread else 0)


@given(TWO)
def test_matthews_is_pearson_of_two_labels(pairs: Pairs) -> None:
    assert matthews(*sides(pairs)) == pytest.approx(pearson(*sides(pairs)), abs=1e-9)


@given(MANY)
def test_matthews_of_many_labels_is_the_correlation_of_their_indicators(pairs: Pairs) -> None:
    told, wanted = ([[float(label == k) for label in side] for k in range(5)] for side in sides(pairs))
    across, own, theirs = (
        math.fsum(covariance(a, b) for a, b in zip(x, y, strict=True))
        for x, y in ((told, wanted), (told, told), (wanted, wanted))
    )
    found = matthews(*sides(pairs))
    assert found == pytest.approx(100 * across / math.sqrt(own * theirs) if own and theirs else 0)
    assert -100 <= found <= 100


@given(NUMBERS)
@example([(0.1, 1.0), (0.1, 2.0), (0.1, 4.0)])  # their mean is not 0.1
def test_correlations_by_definition(pairs: Points) -> None:
    told, wanted = sides(pairs)
    assert pearson(told, wanted) == pytest.approx(correlation(told, wanted), abs=1e-9)
    assert spearman(told, wanted) == pytest.approx(correlation(rank(told), rank(wanted)), abs=1e-9)


@given(NUMBERS, st.sampled_from([1e-200, 0.5, 3.0, 1e200]), SOME)
def test_units_do_not_matter_and_order_is_all_that_spearman_sees(pairs: Points, unit: float, zero: float) -> None:
    told, wanted = sides(pairs)
    assert pearson([unit * number for number in told], wanted) == pytest.approx(pearson(told, wanted), abs=1e-9)
    assert pearson([number + zero for number in told], wanted) == pytest.approx(pearson(told, wanted), abs=1e-9)
    assert spearman([number**3 for number in told], wanted) == pytest.approx(spearman(told, wanted), abs=1e-9)


@given(NUMBERS)
def test_oneself_is_right_and_the_opposite_wrong(pairs: Points) -> None:
    _, wanted = sides(pairs)
    assume(len(set(wanted)) > 1)
    for measure in (pearson, spearman):
        assert measure(wanted, wanted) == pytest.approx(100)
        assert measure([-number for number in wanted], wanted) == pytest.approx(-100)


def test_what_does_not_vary_says_nothing_and_says_so() -> None:
    assert matthews([1, 1, 1], [0, 1, 1]) == pearson([2, 2], [1, 5]) == spearman([1, 5], [2, 2]) == 0
    assert f1([0, 0], [0, 0]) == 0
    assert matthews([1, 1], [0, 1]).definition.endswith(
        "over 2 examples; 0, since all told or all wanted labels are the same"
    )
    assert pearson([1, 1], [0, 1]).definition.endswith("; 0, since all told or all wanted numbers are the same")
    assert f1([0], [0]).definition.endswith("; 0, since it was neither told nor wanted")


def test_a_measure_tells_its_definition() -> None:
    assert accuracy([1, 0], [1, 1]).definition == "labels told right, in % of 2"
    assert "of the label 'yes', over 2 examples" in f1([1, 0], [1, 1], 1, "yes").definition
    assert spearman([1, 2], [1, 2]).definition.startswith(
        "100 · Spearman correlation (Pearson's of ranks, ties averaged)"
    )


def test_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="2 told and 1 wanted; give as many of one as of the other"):
        accuracy([1, 0], [1])
    with pytest.raises(ValueError, match="0 told and 0 wanted; give as many of one as of the other, one or more"):
        pearson([], [])
