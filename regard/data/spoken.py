"""A translation task without a download: numbers, dates, times and prices in words, in any two languages.

Every phrase has a number, and belongs to the split that a hash of its number names; so a number that is tested occurs
nowhere in training, in no category:

    quantity   0 … 999,999          the number itself
    ordinal    1 … 9,999            the number itself
    year       1000 … 2099          the number itself
    date       days of those years  the year
    time       0:00 … 23:59         100 h + m
    price      0.00 … 9,999.99      the whole euros; up to 100 euros with some cents: all of it in cents

When 4711 is held out, so are "four thousand, seven hundred and eleventh" and "forty-seven euros and eleven cents".
The building blocks (numbers to 100, and those with a single digit other than 0) are for training only.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from datetime import date, timedelta
from functools import cache
from hashlib import blake2b
from itertools import count as integers
from itertools import islice
from math import sqrt
from typing import Literal, TypeAlias

from regard.data.speaker import CATEGORIES, Speaker, Value
from regard.errors import DataError

Split: TypeAlias = Literal["train", "valid", "test"]

FIRST_YEAR, LAST_YEAR = 1000, 2099
PATIENCE = 100_000  # draws in vain


def spoken(languages: tuple[str, str], split: Split, count: int, seed: int = 0) -> Iterator[tuple[str, str, str]]:
    """(category, source, target) of so many phrases. Those for validation and test are all different."""
    source, target = (Speaker(language) for language in languages)
    for category, value in phrases(split, count, seed):
        yield category, source.say(category, value), target.say(category, value)


def phrases(split: Split, count: int, seed: int = 0) -> Iterator[tuple[str, Value]]:
    """What is to be said; each phrase is a function of the seed, the split and its index."""
    drawn = (_draw(split, random.Random(f"{seed} {split} {index}")) for index in integers())
    return islice(drawn if split == "train" else _different(drawn), count)


def number_of(category: str, value: Value) -> int:
    """The number that decides the split of a phrase."""
    match category:
        case "time":
            return 100 * value[0] + value[1]
        case "price" if value[0] <= 100 and value[1]:
            return 100 * value[0] + value[1]
    return value[0]


@cache
def split_of(number: int) -> Split:
    """A tenth of all numbers for validation, a tenth for test."""
    if number <= 100 or not int(str(number)[1:]):
        return "train"
    chance = blake2b(str(number).encode(), digest_size=8).digest()
    splits: dict[int, Split] = {0: "valid", 1: "test"}
    return splits.get(int.from_bytes(chance, "little") % 10, "train")


def _different(phrases: Iterable[tuple[str, Value]]) -> Iterator[tuple[str, Value]]:
    seen: set[tuple[str, Value]] = set()
    missed = 0
    for phrase in phrases:
        missed += 1
        if phrase not in seen:
            seen.add(phrase)
            missed = 0
            yield phrase
        if missed == PATIENCE:
            raise DataError(f"no more than about {len(seen):,} different phrases are held out; ask for fewer")


def _draw(split: Split, chance: random.Random) -> tuple[str, Value]:
    """A phrase of this split: a category, then values until one belongs here."""
    category = CATEGORIES[_below(len(CATEGORIES), chance)]
    while True:
        value = _value(category, chance)
        if split_of(number_of(category, value)) == split:
            return category, value


def _value(category: str, chance: random.Random) -> Value:
    match category:
        case "quantity":
            return (_short_or_long(6, chance),)
        case "ordinal":
            return (max(1, _short_or_long(4, chance)),)
        case "year":
            return (FIRST_YEAR + _below(LAST_YEAR + 1 - FIRST_YEAR, chance),)
        case "date":
            first, last = date(FIRST_YEAR, 1, 1), date(LAST_YEAR, 12, 31)
            day = first + timedelta(days=_below((last - first).days + 1, chance))
            return day.year, day.month, day.day
        case "time":
            return divmod(_below(24 * 60, chance), 60)
    return _short_or_long(4, chance), max(0, _below(125, chance) - 25)


def _short_or_long(digits: int, chance: random.Random) -> int:
    """A number of at most so many digits; short ones come far more often than their share."""
    return _below(10 ** (1 + int(digits * sqrt(chance.random()))), chance)


def _below(bound: int, chance: random.Random) -> int:
    return int(bound * chance.random())  # only random() is promised to stay the same in later Pythons
