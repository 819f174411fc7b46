"""Made tasks. Texts to copy: nothing that is tested occurs in training, all lengths are alike, and the target is the
source. Series: each is a function of its place, has the layout of its literature, and gives nothing away.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from regard.config import make_recipe
from regard.data.synthetic import LETTERS, Drawn, Split, adding, copies, copy_memory, order, split_of
from regard.errors import ConfigError
from regard.models import schema
from regard.prepare import prepare

SPLITS: tuple[Split, ...] = ("train", "valid", "test")


def test_the_target_is_the_source() -> None:
    for split in SPLITS:
        for source, target in copies(split, 200, longest=9):
            assert source == target
            assert set(source.split(" ")) <= set(LETTERS)


def test_no_sequence_is_in_two_splits() -> None:
    """Short ones are all drawn, so only the rule keeps them apart."""
    found = [{source for source, _ in copies(split, 3000, longest=3)} for split in SPLITS]
    assert sum(map(len, found)) == len(set.union(*found))
    assert all({len(source.split(" ")) for source in texts} == {1, 2, 3} for texts in found)


def test_every_letter_can_be_learnt_alone_or_in_company() -> None:
    heard = {letter for source, _ in copies("train", 300, longest=2) for letter in source.split(" ")}
    assert heard == set(LETTERS)
    assert {split_of(letter) for letter in LETTERS} == set(SPLITS), "each split has something of every length"


def test_all_lengths_up_to_the_longest_are_alike() -> None:
    for split in SPLITS:
        lengths = Counter(len(source.split(" ")) for source, _ in copies(split, 6000, longest=12))
        assert set(lengths) == set(range(1, 13))
        assert max(lengths.values()) < 1.3 * min(lengths.values())


def test_sequences_are_a_function_of_seed_and_index() -> None:
    for split in SPLITS:
        few, many = (list(copies(split, count, longest=20, seed=7)) for count in (30, 90))
        assert few == many[:30]
        assert few != list(copies(split, 30, longest=20, seed=8))


def test_a_recipe_asks_for_it_by_name(tmp_path: Path) -> None:
    """The longest example, end mark included, just fits."""
    values = tiny.recipe(data={"made": "copy", "count": 400, "held": 40, "longest": 7}, tokens={"kind": "word"})
    recipe, task = prepare(make_recipe(values, schema), tmp_path)
    assert len(task.batches.store) == 400
    assert max(len(source.split(" ")) for source in task.held["test"].sources) == 6
    assert recipe.model.vocab == 4 + len(LETTERS)  # type: ignore[attr-defined]


# ---- series of numbers

DRAWN = {"adding": adding, "copy": copy_memory, "order": order}
every = pytest.mark.parametrize("name", DRAWN)


@every
def test_a_series_is_a_function_of_seed_split_and_place(name: str) -> None:
    """Whoever else is asked for, and in which order."""
    draw, places = DRAWN[name], np.array([7, 0, 10**12, 3])
    x, y = draw("train", places, 40)
    for row, place in enumerate(places):
        alone = draw("train", np.array([place]), 40)
        assert np.array_equal(alone[0][0], x[row])
        assert np.array_equal(alone[1][0], y[row])
    for other in (draw("train", places, 40, 1), draw("valid", places, 40), draw("test", places, 40)):
        assert not np.array_equal(other[0], x)


@every
def test_no_series_comes_twice(name: str) -> None:
    """Of ten digits there are a billion, of the others far more."""
    drawn = [DRAWN[name](split, np.arange(400), 40)[0] for split in SPLITS]
    assert len({series.tobytes() for series in np.concatenate(drawn)}) == 1200


@given(st.integers(2, 50))
def test_adding_marks_two_numbers_and_wants_their_sum(length: int) -> None:
    x, y = adding("train", np.arange(60), length)
    assert x.shape == (60, length, 2)
    assert x.dtype == y.dtype == np.float32
    assert x[..., 0].min() >= 0
    assert x[..., 0].max() < 1
    assert set(np.unique(x[..., 1])) <= {0, 1}
    assert (x[..., 1].sum(1) == 2).all()
    np.testing.assert_allclose(y, x.prod(-1).sum(1), rtol=1e-6)


def test_adding_draws_every_step_and_every_number_alike() -> None:
    x, y = adding("train", np.arange(40_000), 8)
    np.testing.assert_allclose(x.mean(0), np.tile([1 / 2, 1 / 4], (8, 1)), atol=0.01)
    np.testing.assert_allclose(np.histogram(x[..., 0], 10, (0, 1))[0] / x[..., 0].size, 1 / 10, atol=0.002)
    first = x[..., 1].argmax(1)
    assert np.corrcoef(first, y)[0, 1] == pytest.approx(0, abs=0.02), "where the marks are says nothing of the sum"
    assert np.square(y - 1).mean() == pytest.approx(1 / 6, rel=0.02)


@given(st.integers(1, 50))
def test_copy_memory_wants_its_digits_after_the_wait(length: int) -> None:
    x, y = copy_memory("train", np.arange(9), length)
    assert x.shape == (9, length + 20, 1)
    assert y.shape == (9, length + 20)
    digits, wait, signs = np.split(x[..., 0], [10, 10 + length - 1], 1)
    assert set(np.unique(digits)) <= set(range(1, 9))
    assert wait.shape == (9, length - 1)
    assert not wait.any()
    assert signs.shape == (9, 11)
    assert (signs == 9).all()
    assert not y[:, : length + 10].any()
    assert np.array_equal(y[:, -10:], digits)


def test_copy_memory_draws_all_digits_alike() -> None:
    _, y = copy_memory("train", np.arange(10_000), 1)
    np.testing.assert_allclose(np.bincount(y[:, -10:].ravel(), minlength=9)[1:] / 100_000, 1 / 8, atol=0.004)


@given(st.integers(10, 80))
def test_the_order_of_two_symbols_is_the_label(length: int) -> None:
    x, y = order("train", np.arange(30), length)
    assert (x.sum(-1) == 1).all()
    symbols, tenth = x.argmax(-1), length // 10
    assert (symbols[:, 0] == 6).all()
    assert (symbols[:, -1] == 7).all()
    for row, label in zip(symbols, y, strict=True):
        first, second = np.flatnonzero((row == 4) | (row == 5))
        assert tenth <= first < 2 * tenth
        assert 5 * tenth <= second < 6 * tenth
        assert label == 2 * (row[first] == 5) + (row[second] == 5)


@pytest.mark.parametrize(
    ("draw", "task", "least"), [(adding, "adding", 2), (copy_memory, "copy", 1), (order, "order", 10)]
)
def test_a_series_too_short_for_what_is_asked_is_refused(draw: Callable[..., Drawn], task: str, least: int) -> None:
    draw("train", np.arange(3), least)
    for length in (least - 1, -5):
        sentence = rf'data\.length = {length} is too short for made = "{task}"; write {least} or more'
        with pytest.raises(ConfigError, match=sentence):
            draw("train", np.arange(3), length)


def test_series_are_drawn_in_no_time() -> None:
    """A batch of 32 with T = 1000, while the model is at work on the last: 2 ms on a quiet core, ten on a busy one."""
    for draw in DRAWN.values():
        times = []
        for turn in range(20):
            before = time.perf_counter()
            draw("train", np.arange(32) + 32 * turn, 1000)
            times.append(time.perf_counter() - before)
        assert min(times) < 0.01
