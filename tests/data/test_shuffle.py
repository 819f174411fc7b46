"""The order that is never listed is a permutation, and a random one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from regard.data.shuffle import shuffled


@given(st.integers(1, 600), st.integers(1, 9), st.text())
def test_every_place_is_taken_once(count: int, run: int, key: str) -> None:
    there = shuffled(np.arange(count), count, key, run=run)
    assert np.array_equal(np.sort(there), np.arange(count))


@given(st.integers(1, 10_000_000), st.data())
def test_where_one_goes_does_not_depend_on_who_else_asks(count: int, data: st.DataObject) -> None:
    places = np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=1)))
    together = shuffled(places, count, "key")
    assert together.tolist() == [shuffled(np.array([place]), count, "key")[0] for place in places]
    assert (together < count).all()


def test_runs_stay_together() -> None:
    there = shuffled(np.arange(1000), 1000, "key", run=8)
    together = np.diff(there).reshape(-1)[np.arange(999) % 8 != 7] == 1
    assert together.mean() > 0.97  # all but those that the last, shorter run pushed elsewhere
    assert (np.diff(there) == 1).mean() < 0.95


def test_every_order_is_as_likely() -> None:
    """Each value is in each place equally often, and neighbours stay neighbours no more than by chance."""
    keys, count = 3000, 7
    orders = np.stack([shuffled(np.arange(count), count, str(key)) for key in range(keys)])
    shares = np.stack([(orders == value).mean(0) for value in range(count)])
    assert np.abs(shares - 1 / count).max() < 5 * np.sqrt(1 / count / keys)
    assert abs((np.diff(orders) == 1).mean() - 1 / count) < 0.02
    assert len({tuple(order) for order in orders.tolist()}) > 2000  # of 5040
