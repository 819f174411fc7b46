"""A made task that nothing but its own line can teach: random keys with random values.

    a3 f7 c1 f 7 a 3 f 7 c 1

Some demonstrations, then questions with their answers. Each line has a mapping of its own, so a value cannot be known
from training; it follows from the demonstrations alone. Whoever predicts these lines well has learnt to learn from what
was shown. Every mapping belongs to the split that a hash of it names: one that is tested occurs nowhere in training.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from hashlib import blake2b
from typing import Literal, TypeAlias

Split: TypeAlias = Literal["train", "valid", "test"]
Among: TypeAlias = Literal["all", "shown"]

KEYS = "abcdefgh"
VALUES = "0123456789"
ASKED = 8  # questions in a line
WORDS = " ".join([*KEYS, *VALUES, *(key + value for key in KEYS for value in VALUES)])  # all there are


def maps(split: Split, count: int, *, seed: int = 0) -> Iterator[str]:
    """So many lines; each is a function of the seed, the split and its index."""
    for index in range(count):
        chance = random.Random(f"{seed} {split} {index}")
        values = _mapping(split, chance)
        shown = _order(chance)[: 1 + _below(len(KEYS), chance)]
        asked = [shown[_below(len(shown), chance)] for _ in range(ASKED)]
        yield " ".join([*(key + values[key] for key in shown), *(f"{key} {values[key]}" for key in asked)])


def questions(
    split: Split, count: int, *, shots: int, among: Among = "all", seed: int = 0
) -> Iterator[tuple[str, str]]:
    """So many questions, each with its answer: `shots` demonstrations of different keys, then a key alone.

    It is one of all keys, so that every demonstration more makes it likelier to have been shown; or one of those shown.
    """
    for index in range(count):
        chance = random.Random(f"{seed} {split} {index} {shots} {among}")
        values, keys = _mapping(split, chance), _order(chance)
        asked = keys[_below(len(KEYS) if among == "all" else shots, chance)]
        yield " ".join([*(key + values[key] for key in keys[:shots]), asked]), values[asked]


def best_accuracy(shots: int, among: Among = "all") -> float:
    """Of whoever knows each key that was shown, and guesses the others, in %."""
    shown = shots / len(KEYS) if among == "all" else 1.0
    return 100 * (shown + (1 - shown) / len(VALUES))


def split_of(values: str) -> Split:
    """A tenth of all mappings for validation, a tenth for test; `values` are those of all keys in order."""
    splits: dict[int, Split] = {0: "valid", 1: "test"}
    return splits.get(int.from_bytes(blake2b(values.encode(), digest_size=8).digest(), "little") % 10, "train")


def _mapping(split: Split, chance: random.Random) -> dict[str, str]:
    """A value for each key, drawn anew until they belong to this split."""
    while True:
        values = "".join(VALUES[_below(len(VALUES), chance)] for _ in KEYS)
        if split_of(values) == split:
            return dict(zip(KEYS, values, strict=True))


def _order(chance: random.Random) -> list[str]:
    return sorted(KEYS, key=lambda _: chance.random())


def _below(bound: int, chance: random.Random) -> int:
    return int(bound * chance.random())  # only random() is promised to stay the same in later Pythons
