"""Tasks without meaning: there is nothing to guess from, so a model does them exactly as well as it remembers.

copies       random letters, to be written again: pairs of texts, for systems that rewrite
adding       two of many numbers are marked: what is their sum?
copy_memory  ten digits, a long wait, and then the same digits again
order        two of many symbols matter: which ones, and which came first?

Every text belongs to the split that a hash of it names; so one that is tested occurs nowhere in training. The series of
numbers are so many that none comes twice: an example is a function of seed, split and place, and any can be asked for.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from hashlib import blake2b
from typing import Literal, TypeAlias

import numpy as np

from regard.errors import ConfigError

Split: TypeAlias = Literal["train", "valid", "test"]
Drawn: TypeAlias = tuple[np.ndarray, np.ndarray]  # what is read, (n, steps, channels), and what is wanted

LETTERS = "abcdefghijklmnopqrst"
DIGITS = 10  # to be copied
LEAST = {"adding": 2, "copy": 1, "order": 10}  # steps, so that there is room for what is asked for


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


# ---- series of numbers


def check_length(task: str, length: int) -> None:
    if length < LEAST[task]:
        raise ConfigError(f'data.length = {length} is too short for made = "{task}"; write {LEAST[task]} or more')


def adding(split: Split, places: np.ndarray, length: int, seed: int = 0) -> Drawn:
    """The adding problem (Hochreiter & Schmidhuber 1997): x (n, T, 2) has random numbers from [0, 1) in its first
    channel and in its second a 1 at two of them; y (n,) is the sum of those two.

    The two are any two of all steps, as the authors of the TCN draw them.
    """
    check_length("adding", length)
    dice = _dice("adding", split, places, 2 + length, seed)
    x = np.zeros((len(places), length, 2), np.float32)
    x[..., 0] = (dice[:, 2:] >> np.uint64(40)) * 2.0**-24  # 24 bits, as many as a float32 holds
    one = _under(length, dice[:, 0])
    other = (one + 1 + _under(length - 1, dice[:, 1])) % length
    rows = np.arange(len(places))
    x[rows, one, 1] = x[rows, other, 1] = 1
    return x, x[rows, one, 0] + x[rows, other, 0]


def copy_memory(split: Split, places: np.ndarray, length: int, seed: int = 0) -> Drawn:
    """Copy memory (Arjovsky et al. 2016): ten digits from 1 to 8, a wait of T steps, then eleven nines, which say that
    now the digits are wanted; before that, zeros are. x (n, T + 20, 1), y (n, T + 20).

        x   d₁ … d₁₀   0 … 0 (T - 1)   9 … 9 (11)
        y   0 … 0 (T + 10)              d₁ … d₁₀
    """
    check_length("copy", length)
    digits = 1 + _under(8, _dice("copy", split, places, DIGITS, seed))
    x = np.zeros((len(places), length + 2 * DIGITS, 1), np.float32)
    y = np.zeros((len(places), length + 2 * DIGITS), np.int64)
    x[:, :DIGITS, 0] = y[:, -DIGITS:] = digits
    x[:, -DIGITS - 1 :] = 9
    return x, y


def order(split: Split, places: np.ndarray, length: int, seed: int = 0) -> Drawn:
    """Temporal order (Hochreiter & Schmidhuber 1997, experiment 6a): symbols a b c d X Y E B as ones in eight channels.
    An X or Y stands somewhere in the second tenth, another in the sixth; E begins, B ends, and all else is a b c d.
    x (n, T, 8); y (n,) is 0, 1, 2, 3 for XX, XY, YX, YY.
    """
    check_length("order", length)
    dice = _dice("order", split, places, 4 + length, seed)
    rows, tenth = np.arange(len(places)), length // 10
    symbols = _under(4, dice[:, 4:])
    both = _under(2, dice[:, :2])
    symbols[rows, tenth + _under(tenth, dice[:, 2])] = 4 + both[:, 0]
    symbols[rows, 5 * tenth + _under(tenth, dice[:, 3])] = 4 + both[:, 1]
    symbols[:, 0], symbols[:, -1] = 6, 7
    return np.eye(8, dtype=np.float32)[symbols], 2 * both[:, 0] + both[:, 1]


def _dice(task: str, split: Split, places: np.ndarray, count: int, seed: int) -> np.ndarray:
    """So many random 64-bit numbers for each place, (n, count).

    SplitMix64 (Steele et al. 2014), of which any number can be had without those before it: each scrambles a counter.
    """
    key = np.frombuffer(blake2b(f"{task} {seed} {split}".encode(), digest_size=8).digest(), "<u8")
    counters = places.astype(np.uint64)[:, None] * np.uint64(count) + np.arange(1, count + 1, dtype=np.uint64)
    counters *= np.uint64(0x9E3779B97F4A7C15)
    z = counters + key
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def _under(count: int, dice: np.ndarray) -> np.ndarray:
    """Whole numbers from 0 to count - 1."""
    return (dice % np.uint64(count)).astype(np.int64)
