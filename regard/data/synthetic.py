"""A task without meaning: copy what you read, letter by letter.

There is nothing to guess from: the letters are drawn at random, so a model copies exactly as much as it remembers.
Every sequence belongs to the split that a hash of it names; so one that is tested occurs nowhere in training.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from hashlib import blake2b
from typing import Literal, TypeAlias

Split: TypeAlias = Literal["train", "valid", "test"]

LETTERS = "abcdefghijklmnopqrst"


def copies(split: Split, count: int, *, longest: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """So many pairs of 1 to `longest` letters, all lengths alike; each is a function of the seed, split and index."""
    for index in range(count):
        text = " ".join(_draw(split, longest, random.Random(f"{seed} {split} {index}")))
        yield text, text


def split_of(letters: str) -> Split:
    """A tenth of all sequences for validation, a tenth for test."""
    splits: dict[int, Split] = {0: "valid", 1: "test"}
    return splits.get(int.from_bytes(blake2b(letters.encode(), digest_size=8).digest(), "little") % 10, "train")


def _draw(split: Split, longest: int, chance: random.Random) -> str:
    """Letters, drawn anew until they belong to this split."""
    length = 1 + _below(longest, chance)
    while True:
        letters = "".join(LETTERS[_below(len(LETTERS), chance)] for _ in range(length))
        if split_of(letters) == split:
            return letters


def _below(bound: int, chance: random.Random) -> int:
    return int(bound * chance.random())  # only random() is promised to stay the same in later Pythons
