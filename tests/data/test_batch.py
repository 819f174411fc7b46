"""Batches: every pair once an epoch, within the budget, little padding, and a pure function of the step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data import batch as batch_module
from regard.data.batch import Batch, Batches, in_order, pad
from regard.data.store import Store
from regard.data.text import BadLines, read_pairs
from regard.data.tokenizer import BOS, EOS, PAD, Tokenizers
from regard.errors import ConfigError

from .corpus import build

COUNT = 2000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return build(tmp_path_factory.mktemp("batch") / "store", COUNT)


def same(one: Batch, other: Batch) -> bool:
    tensors = ((one.source, other.source), (one.real, other.real), (one.target, other.target))
    return one.ids == other.ids and one.tokens == other.tokens and all(torch.equal(a, b) for a, b in tensors)


def padding(batches: list[Batch]) -> float:
    cells = sum(batch.source.numel() + batch.target.numel() for batch in batches)
    return sum(int((batch.source == PAD).sum() + (batch.target == PAD).sum()) for batch in batches) / cells


@pytest.mark.parametrize(("tokens", "rows"), [(64, 0), (300, 0), (4096, 0), (1_000_000, 0), (300, 5), (1_000_000, 32)])
def test_an_epoch_has_every_pair_once(store: Store, tokens: int, rows: int) -> None:
    batches = Batches(store, tokens=tokens, rows=rows, seed=3)
    for epoch in (0, 5):
        steps = range(epoch * len(batches), (epoch + 1) * len(batches))
        found = [batches.batch(step).ids for step in steps]
        assert sorted(line for ids in found for line in ids) == list(range(1, COUNT + 1))
        assert max(map(len, found)) <= (rows or COUNT)


def test_runs_of_pairs_also_come_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "RUNS", 5)
    batches = Batches(store, tokens=300)
    assert sorted(line for step in range(len(batches)) for line in batches.batch(step).ids) == list(range(1, COUNT + 1))


@pytest.mark.parametrize("world", [2, 3, 7])
def test_processes_share_an_epoch(store: Store, world: int) -> None:
    batches = Batches(store, tokens=300)
    steps = batches.steps(world)
    seen = [batches.batch(steps + step, rank, world).ids for step in range(steps) for rank in range(world)]
    often = Counter(line for ids in seen for line in ids)
    assert set(often) == set(range(1, COUNT + 1))
    repeated = steps * world - len(batches)
    assert 0 <= repeated < world
    assert len(set(seen)) == len(batches)  # only whole batches come twice, at the end
    assert sum(often.values()) - COUNT == sum(len(ids) for ids in seen[len(seen) - repeated :])


def test_a_batch_depends_on_its_arguments_only(store: Store) -> None:
    one, other = Batches(store, tokens=300, seed=1), Batches(Store.open(store.folder), tokens=300, seed=1)
    steps = [7, 0, 3 * len(one) + 2, 10**9]
    there = [one.batch(step, 1, 2) for step in steps]
    back = [other.batch(step, 1, 2) for step in reversed(steps)]
    assert all(map(same, there, reversed(back)))


def test_seed_and_epoch_change_the_order(store: Store) -> None:
    batches = Batches(store, tokens=300, seed=1)
    again = Batches(store, tokens=300, seed=2)
    orders = [[batches.batch(step).ids for step in range(first, first + 9)] for first in (0, len(batches))]
    orders.append([again.batch(step).ids for step in range(9)])
    for i, order in enumerate(orders):
        for earlier in orders[:i]:
            assert not set(order) & set(earlier)
            assert {line for ids in order for line in ids} != {line for ids in earlier for line in ids}


def test_epochs_are_counted(store: Store) -> None:
    batches = Batches(store, tokens=300)
    assert (batches.epoch(0), batches.epoch(len(batches)), batches.epoch(5, world=len(batches))) == (0, 1, 5)


def test_batches_hold_what_the_store_does(store: Store) -> None:
    places = {line: place for place, line in enumerate(store.listing.array["line"].tolist())}
    batch = Batches(store, tokens=300).batch(4)
    for row, line in enumerate(batch.ids):
        source, target = (side.tolist() for side in store.pair(places[line]))
        assert batch.source[row, : len(source)].tolist() == source
        assert batch.target[row, : len(target)].tolist() == target
        assert batch.real[row].tolist() == [column < len(source) for column in range(batch.source.shape[1])]
        assert not batch.source[row, len(source) :].any()
        assert not batch.target[row, len(target) :].any()
    assert batch.real[:, -1].any()  # padded to the longest, no further
    assert (batch.target[:, -1] == EOS).any()
    assert batch.tokens == int((batch.target > BOS).sum())
    assert batch.rows == len(batch.ids) == len(batch.source)


@pytest.mark.parametrize("tokens", [64, 300, 4096])
def test_the_budget_is_kept_and_used(store: Store, tokens: int) -> None:
    batches = Batches(store, tokens=tokens)
    found = [batches.batch(step) for step in range(len(batches))]
    sizes = [batch.rows * max(batch.source.shape[1], batch.target.shape[1] - 1) for batch in found]
    assert max(sizes) <= tokens
    assert np.mean(sizes) > 0.6 * tokens


def test_little_is_padding(store: Store) -> None:
    batches = Batches(store, tokens=300)
    assert padding([batches.batch(step) for step in range(len(batches))]) < 0.15
    assert padding(list(in_order(store, tokens=300))) < 0.15


def test_few_pairs_make_few_batches(tmp_path: Path) -> None:
    assert len(Batches(build(tmp_path / "store", 40), tokens=4096)) == 1


def test_in_order_has_every_pair_once_and_goes_from_short_to_long(store: Store) -> None:
    batches = list(in_order(store, tokens=300))
    assert sorted(line for batch in batches for line in batch.ids) == list(range(1, COUNT + 1))
    assert all(map(same, batches, in_order(store, tokens=300)))
    assert batches[0].target.shape[1] < batches[len(batches) // 2].target.shape[1] < batches[-1].target.shape[1]
    assert max(batch.rows for batch in in_order(store, tokens=1)) == 1


def test_a_budget_too_small_for_one_pair(store: Store) -> None:
    longest = max(bucket.longest for bucket in store.buckets)
    sentence = (
        f"train.tokens = 20 cannot hold the longest example of {longest} tokens; write train.tokens = {longest} or"
    )
    with pytest.raises(ConfigError, match=sentence):
        Batches(store, tokens=20)
    assert len(Batches(store, tokens=longest)) > 0


@given(st.lists(st.lists(st.integers(1, 99), max_size=9), max_size=9), st.sampled_from([PAD, -100]))
def test_padding_adds_and_marks_nothing_else(sequences: list[list[int]], value: int) -> None:
    ids, real = pad(sequences, value)
    assert ids.shape == real.shape == (len(sequences), max(map(len, sequences), default=0))
    assert ids.dtype == torch.int64
    assert real.dtype == torch.bool
    assert [row[mask].tolist() for row, mask in zip(ids, real, strict=True)] == sequences
    assert (ids[~real] == value).all()


def test_a_batch_of_lists_moves_between_devices() -> None:
    batch = Batch.of([[5, EOS], [6, 7, EOS]], [[BOS, 8, 9, EOS], [BOS, EOS]], [12, 40])
    assert (batch.tokens, batch.rows, batch.ids) == (4, 2, (12, 40))
    assert same(batch.to("cpu"), batch)
    assert batch.to("meta").target.device.type == "meta"


@pytest.mark.data("multi30k")
def test_multi30k_is_padded_by_less_than_a_tenth(data_dir: Callable[[str], Path], tmp_path: Path) -> None:
    files = [data_dir("multi30k") / "bpe-en-de" / f"train.{language}" for language in ("en", "de")]
    bad = BadLines()
    lines = list(read_pairs(files, bad=bad))
    both = Tokenizers.train(
        (source for _, source, _ in lines),
        (target for *_, target in lines),
        kind="word",
        size=20_000,
        continuation="@@",
    )
    batches = Batches(Store.build(tmp_path / "store", lines, both, longest=256, bad=bad), tokens=4096)
    found = [batches.batch(step) for step in range(len(batches))]
    assert sorted(line for batch in found for line in batch.ids) == list(range(1, 29_001))
    assert (len(bad), bad.read) == (0, 29_000)
    assert padding(found) < 0.10
    assert len(found) < 150
    line, _, target = lines[17]
    row = next(batch.target[batch.ids.index(line)] for batch in found if line in batch.ids)
    assert both.target.decode(row) == target.replace("@@ ", "")
