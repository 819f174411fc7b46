"""The copy task: nothing that is tested occurs in training, all lengths are alike, and the target is the source."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import tiny

from regard.config import make_recipe
from regard.data.synthetic import LETTERS, Split, copies, split_of
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
