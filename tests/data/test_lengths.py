"""Batches by length: every example once an epoch, within the budget, and the same ones whenever they are asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.lengths import Lengths, in_order
from regard.errors import ConfigError

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=80).map(np.array)


@given(lengths, st.integers(40, 200), st.integers(0, 5), st.integers(0, 3))
def test_an_epoch_shows_every_example_once_within_the_budget(
    sizes: np.ndarray, tokens: int, rows: int, seed: int
) -> None:
    batches = Lengths(sizes, tokens=tokens, rows=rows, seed=seed)
    for epoch in (0, 1):
        places = [batches.batch(epoch * len(batches) + turn) for turn in range(len(batches))]
        assert sorted(np.concatenate(places).tolist()) == list(range(len(sizes)))
        assert all(len(some) * sizes[some].max() <= tokens for some in places)
        assert all(len(some) <= (rows or len(sizes)) for some in places)
    assert batches.epoch(len(batches)) == 1


@given(lengths, st.integers(1, 4))
def test_processes_share_the_batches_of_an_epoch(sizes: np.ndarray, world: int) -> None:
    batches = Lengths(sizes, tokens=80)
    steps = -(-len(batches) // world)
    shown = np.concatenate([batches.batch(step, rank, world) for step in range(steps) for rank in range(world)])
    assert set(shown.tolist()) == set(range(len(sizes)))
    assert batches.epoch(steps, world) == 1


def test_epochs_and_seeds_differ_and_a_batch_does_not() -> None:
    sizes = np.arange(300) % 40 + 1
    one, other = Lengths(sizes, tokens=200), Lengths(sizes, tokens=200, seed=1)
    assert one.batch(3).tolist() == Lengths(sizes, tokens=200).batch(3).tolist()
    assert one.batch(3).tolist() != other.batch(3).tolist()
    assert one.batch(3).tolist() != one.batch(3 + len(one)).tolist()
    padding = [1 - sizes[some].mean() / sizes[some].max() for some in map(one.batch, range(len(one)))]
    assert np.mean(padding) < 0.25, "neighbours in a batch are of similar length"


@given(lengths, st.integers(1, 100))
def test_in_order_is_everything_once_from_long_to_short(sizes: np.ndarray, tokens: int) -> None:
    batches = list(in_order(sizes, tokens=tokens))
    order = np.concatenate(batches)
    assert sorted(order.tolist()) == list(range(len(sizes)))
    assert (np.diff(sizes[order]) <= 0).all()
    assert all(len(some) == 1 or len(some) * sizes[some].max() <= tokens for some in batches)


def test_an_example_that_no_batch_can_hold_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"train.tokens = 9 cannot hold the longest example of 12 tokens; write train"
    ):
        Lengths(np.array([3, 12]), tokens=9)


def test_few_rows_are_still_of_similar_lengths() -> None:
    sizes = np.arange(300) % 40 + 1
    batches = Lengths(sizes, tokens=10**6, rows=8)
    padding = [1 - sizes[some].mean() / sizes[some].max() for some in map(batches.batch, range(len(batches)))]
    assert np.mean(padding) < 0.25
    assert len(batches) <= 300 / 8 + 6, "and full, but for one of each band"
