"""Sizes are rounded up by little, and to few; what fills a batch up stands behind what was there."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batch import Batch
from regard.data.forms import lengthen, longer, more, with_rows

SIZES = st.integers(1, 100_000)


@given(SIZES)
def test_at_most_a_sixteenth_more(count: int) -> None:
    assert count <= more(count) <= count + (count - 1) // 16
    assert more(more(count)) == more(count)


@given(SIZES, SIZES)
def test_more_stays_more(one: int, other: int) -> None:
    assert more(min(one, other)) <= more(max(one, other))


def test_sixteen_sizes_to_an_octave() -> None:
    assert len({more(count) for count in range(1025, 2049)}) == 16
    assert [more(count) for count in (1, 31, 32, 33, 63, 65, 128, 129)] == [1, 31, 32, 34, 64, 68, 128, 136]


@given(SIZES, SIZES)
def test_no_longer_than_a_system_reads(length: int, beyond: int) -> None:
    assert length <= longer(length, length + beyond - 1) <= min(more(length), length + beyond - 1)
    assert longer(length) == more(length)


def test_tables_are_filled_behind() -> None:
    table = torch.arange(12).view(2, 3, 2)
    assert lengthen(table, 5, 7).tolist() == [[*rows, [7, 7], [7, 7]] for rows in table.tolist()]
    assert lengthen(table[..., 0], 3).tolist() == table[..., 0].tolist()
    assert with_rows(table, 4).tolist() == [*table.tolist(), table[0].tolist(), table[0].tolist()]


def test_a_steady_batch_holds_the_same_pairs() -> None:
    sources = [[4] * (1 + row % 36) + [2] for row in range(37)]
    targets = [[1, *[5] * (1 + row % 35), 2] for row in range(37)]
    batch = Batch.of(sources, targets, range(37))
    steady = batch.steady()
    assert (steady.source.shape, steady.target.shape) == ((38, 38), (38, 37))
    assert (steady.ids, steady.tokens, steady.count) == (batch.ids, batch.tokens, batch.tokens)
    for name in ("source", "real", "target", "written"):
        held, fill = getattr(batch, name), getattr(steady, name)
        assert torch.equal(fill[:37, : held.shape[1]], held)
        assert not fill[:37, held.shape[1] :].any()
    assert torch.equal(steady.real[37], steady.real[0])
    assert not steady.written[37].any()
    assert batch.steady(37).source.shape == (38, 37)
