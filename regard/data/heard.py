"""Where in a phrase the parts of its number are said, found by contrast.

Nobody has marked the words, but a speaker can say the phrase again with one part of its number changed, and the letters
that change are the words for that part:

    dreiundzwanzig   einundzwanzig    neunundzwanzig     "drei" says the units
    dreiundzwanzig   dreiunddreißig   dreiundneunzig     "zwanz" says the tens; "zwanzig", said alone, completes it
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from string import punctuation, whitespace
from typing import TypeAlias

from regard.data.speaker import Speaker, Value
from regard.errors import DataError

Span: TypeAlias = tuple[int, int]  # letters of a text: from the first to before the second


@dataclass(frozen=True)
class Part:
    """A part of a value: where it is said, and the parts that it has in turn. An empty span: by no words of its own."""

    span: Span
    parts: tuple[Part, ...] = ()

    @property
    def said(self) -> bool:
        return self.span[0] < self.span[1]

    @property
    def apart(self) -> bool:
        """It has parts, and each has words of its own."""
        spans = sorted(part.span for part in self.parts if part.said)
        return 0 < len(spans) == len(self.parts) and all(one[1] <= two[0] for one, two in pairwise(spans))


def join(parts: list[Part]) -> Part:
    """From the first word to the last."""
    spans = [part.span for part in parts if part.said] or [parts[0].span]
    return Part((min(start for start, _ in spans), max(end for _, end in spans)), tuple(parts))


class Heard:
    """A phrase with a number in one of its places, which can be said again with another."""

    def __init__(self, speaker: Speaker, say: Callable[[int], str], number: int) -> None:
        self.speaker, self.say, self.number = speaker, say, number
        self.text = say(number)

    def whole(self) -> Part:
        """Thousands, and what is below."""
        parts = [self.thousands()] if self.number >= 1000 else []
        if self.number % 1000 or not parts:
            parts.append(self.below_1000(1))
        return join(parts)

    def year(self) -> Part:
        """The last two digits are for themselves, in nineteen eighty-seven as in nineteen hundred and eighty-seven."""
        century = self.number // 100
        parts = [self.contrast(century, range(10, 21), 100, self.names(100 * century) + self.names(century))]
        return join(parts + ([self.below_100(1)] if self.number % 100 else []))

    def thousands(self) -> Part:
        alone = [(other, other.below_1000(1000)) for other in self.alone(self.number // 1000 * 1000)]
        return self.counted(self.below_1000(1000), 1000, alone)

    def below_1000(self, unit: int) -> Part:
        """Hundreds, and what is below."""
        hundreds, below = divmod(self.number // unit % 1000, 100)
        parts = [self.hundreds(hundreds, unit)] if hundreds else []
        if below or not parts:
            parts.append(self.below_100(unit))
        return join(parts)

    def hundreds(self, digit: int, unit: int) -> Part:
        alone = [(other, other.digit(digit, 100)) for other in self.alone(100 * digit)]
        return self.counted(self.digit(digit, 100 * unit), 100, alone)

    def below_100(self, unit: int) -> Part:
        """Tens and units, or a number that has a name of its own."""
        number = self.number // unit % 100
        if number < 10:
            return self.digit(number, unit)
        if number < 20:
            return self.contrast(number, range(10, 20), unit)
        tens, units = number - number % 10, number % 10
        name = self.speaker.number(tens)
        names = [name] if units and name in self.text else None  # the end of "dreiundzwanzigste" belongs to both
        said = self.contrast(tens, range(20, 100, 10), unit, names)
        return join([said, self.digit(units, unit)]) if units else said

    def digit(self, digit: int, unit: int) -> Part:
        return self.contrast(digit, range(min(digit, 2), 10), unit)  # what follows is plural after all but one

    def counted(self, count: Part, unit: int, alone: list[tuple[Heard, Part]]) -> Part:
        """How many, and of what: "three" and "hundred". An ending that one hundred does not have is no word for it."""
        word = max((self.follower(count, *other) for other in alone), key=lambda word: word.span[1])
        both = join([count, word])
        return both if any(self.words(word) in name for name in self.names(unit)) else Part(both.span)

    def follower(self, count: Part, other: Heard, same: Part) -> Part:
        """The word after a number, if the same number has it in another phrase."""
        start, tail = count.span[1], other.text[same.span[1] :]
        end = start + _common([self.text[start:], tail])
        certain = end - start == len(tail) or self.ends_at(end)
        equal = self.words(count) == other.words(same)
        return Part(self.trim(start, end if certain and equal else start))

    def contrast(self, value: int, others: Iterable[int], unit: int = 1, names: Iterable[str] | None = None) -> Part:
        """The letters that change when others take the place of this value, completed to one of its names."""
        rest = self.number - value * unit
        said = [self.text, *self.sayable(rest + other * unit for other in others)]
        start = _common(said)
        end = len(self.text) - _common([text[start:][::-1] for text in said])
        return Part(self.complete(self.trim(start, end), self.names(value) if names is None else names))

    def complete(self, span: Span, names: Iterable[str]) -> Span:
        """What changes is seldom the very word ("twen" of twenty, or "two thousand and"); a name that fits it is."""
        found = [match.span() for name in names for match in re.finditer(re.escape(name), self.text)]
        around = [place for place in found if place[0] <= span[0] < span[1] <= place[1]]
        within = [place for place in found if span[0] <= place[0] < place[1] <= span[1] and self.ends_at(place[1])]
        return max(around + within, key=lambda place: place[1] - place[0], default=span)

    def words(self, part: Part) -> str:
        return self.text[slice(*part.span)]

    def ends_at(self, end: int) -> bool:
        """A word does."""
        return not self.text[end : end + 1].isalnum()

    def trim(self, start: int, end: int) -> Span:
        inner = self.text[start:end].strip(whitespace + punctuation)
        first = self.text.index(inner, start)
        return first, first + len(inner)

    def names(self, number: int) -> list[str]:
        return [other.text for other in self.alone(number)]

    def alone(self, number: int) -> list[Heard]:
        """The number said by itself, in every way."""
        found = []
        for category in ("quantity", "ordinal"):
            with suppress(DataError):
                found.append(hear(self.speaker, category, (number,)))
        return found

    def sayable(self, numbers: Iterable[int]) -> Iterator[str]:
        for number in numbers:
            with suppress(DataError):
                yield self.say(number)


def hear(speaker: Speaker, category: str, value: Value, place: int = 0) -> Heard:
    """The phrase for a value, and the number at one of its places."""
    before, after = value[:place], value[place + 1 :]
    return Heard(speaker, lambda number: speaker.say(category, (*before, number, *after)), value[place])


def _common(texts: Sequence[str]) -> int:
    """With how many of the same letters all of them begin."""
    columns = enumerate(zip(*texts, strict=False))
    return next((i for i, letters in columns if len(set(letters)) > 1), min(map(len, texts)))
