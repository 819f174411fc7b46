"""A small made corpus: numbers as digits and as words, with lengths that vary."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from regard.data.store import Store
from regard.data.text import BadLines
from regard.data.tokenizer import Tokenizers

WORDS = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]


def pairs(count: int, *, longest: int = 30) -> Iterator[tuple[int, str, str]]:
    chance = random.Random(0)
    for line in range(1, count + 1):
        digits = [chance.randrange(10) for _ in range(1 + int(longest * chance.random() ** 2))]
        spoken = [WORDS[digit] for digit in digits for _ in range(1 + (chance.random() < 0.3))]
        yield line, " ".join(map(str, digits)), " ".join(spoken)


def tokenizers() -> Tokenizers:
    return Tokenizers.train([" ".join(map(str, range(10)))], [" ".join(WORDS)], joint=False, kind="word", size=50)


def build(folder: Path, count: int, *, longest: int = 100) -> Store:
    return Store.build(folder, pairs(count), tokenizers(), longest=longest, bad=BadLines())
