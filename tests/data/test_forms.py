"""Sizes are rounded up by little, and to few; what fills a batch up stands behind what was there."""

from __future__ import annotations

import random

import pytest
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


@pytest.mark.parametrize("forms", [1, 2, 4, 16])
def test_there_are_so_many_forms_up_to_twice_as_many(forms: int) -> None:
    assert [more(count, forms) for count in (1025, 2048)] == [1024 + 1024 // forms, 2048]
    assert len({more(count, forms) for count in range(1025, 2049)}) == forms


def test_without_padding_tables_have_fewer_shapes_and_room_is_as_fine() -> None:
    chance = random.Random(0)
    shapes, padded = set(), set()
    for _ in range(300):
        rows, longest = chance.randint(90, 250), chance.randint(20, 60)
        some = [[4] * chance.randint(longest - 8, longest) for _ in range(rows)]
        batch = Batch.of(some, [[1, *ids] for ids in some], range(rows))
        roomy, steady = batch.roomy(), batch.steady()
        assert roomy.room == (more(int(batch.real.sum())), more(batch.tokens))
        for one, other in ((roomy.source, steady.source), (roomy.target, steady.target)):
            assert all(size >= least for size, least in zip(one.shape, other.shape, strict=True))
        assert not roomy.written[rows:].any()
        shapes.add(roomy.source.shape)
        padded.add(steady.source.shape)
    assert len(shapes) <= 6 * 3 < 100 < len(padded)  # rows: 96, 112, 128, …, 256; lengths: 16, 32, 64


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
