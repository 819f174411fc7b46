"""Which words of a made phrase mean the same in two languages: a gold alignment.

A link joins letters of the source with letters of the target. Parts that one of the two languages does not keep apart
(quatre-vingt-douze, quinientos) are linked as a whole, and what cannot be told for certain is not linked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from regard.data.heard import Part, Span, hear, join
from regard.data.speaker import Speaker, Value
from regard.data.spoken import Split, phrases

Parts: TypeAlias = dict[str, Part]

HALF = "half of the day"


class Link(NamedTuple):
    """Two spans of one meaning: surely, or possibly. "achtzehn" is "six", and "p.m." has to do with it."""

    source: Span
    target: Span
    sure: bool = True


class Aligned(NamedTuple):
    category: str
    source: str
    target: str
    links: list[Link]


def aligned(languages: tuple[str, str], split: Split, count: int, seed: int = 0) -> Iterator[Aligned]:
    """The phrases of `spoken`, with their links."""
    source, target = (Speaker(language) for language in languages)
    for category, value in phrases(split, count, seed):
        links = link(category, value, source, target)
        yield Aligned(category, source.say(category, value), target.say(category, value), links)


def link(category: str, value: Value, source: Speaker, target: Speaker) -> list[Link]:
    """What is linked when both say this value, in the order of the source."""
    here, there = (PARTS[category](speaker, value) for speaker in (source, target))
    found = {name: list(_pairs(here[name], there[name])) for name in here}
    possible = found.pop(HALF, [])
    sure = {pair for pairs in found.values() for pair in pairs}
    return sorted([Link(*pair) for pair in sure] + [Link(*pair, False) for pair in possible if pair not in sure])


def _pairs(source: Part, target: Part) -> Iterator[tuple[Span, Span]]:
    if source.apart and target.apart:
        for one, other in zip(source.parts, target.parts, strict=True):
            yield from _pairs(one, other)
    elif source.said and target.said:
        yield source.span, target.span


def _quantity(speaker: Speaker, value: Value) -> Parts:
    return {"number": hear(speaker, "quantity", value).whole()}


def _ordinal(speaker: Speaker, value: Value) -> Parts:
    return {"number": hear(speaker, "ordinal", value).whole()}


def _year(speaker: Speaker, value: Value) -> Parts:
    heard = hear(speaker, "year", value)
    number = heard.year()
    return {"year": number, "the year": Part(heard.trim(0, number.span[0]))}


def _date(speaker: Speaker, value: Value) -> Parts:
    year, month, day = (hear(speaker, "date", value, place) for place in range(3))
    return {"year": year.year(), "month": month.contrast(value[1], range(1, 13)), "day": day.whole()}


def _time(speaker: Speaker, value: Value) -> Parts:
    """The hour is one part: eighteen is six in the afternoon, for which some have a word of its own."""
    number, minute = value
    heard, other = hear(speaker, "time", value), hear(speaker, "time", (number, 0 if minute else 30))
    noon = number // 12 * 12
    hour, same = (phrase.contrast(number, range(noon, noon + 12)) for phrase in (heard, other))
    half = heard.contrast(number, [(number + 12) % 24], names=())
    parts = {
        "hour": hour,
        "o'clock": heard.follower(hour, other, same),
        HALF: Part(heard.complete(half.span, heard.text.split())) if join([hour, half]).apart else hour,
    }
    return parts | {"minute": hear(speaker, "time", value, 1).whole()} if minute else parts


def _price(speaker: Speaker, value: Value) -> Parts:
    """After each number comes its currency, as it does when there are no cents, or no euros."""
    euros, cents = value
    parts: Parts = {}
    if euros or not cents:
        parts |= _money(speaker, value, 0, (euros, 0))
    if cents:
        parts |= _money(speaker, value, 1, (0, cents))
    return parts


def _money(speaker: Speaker, value: Value, place: int, alone: Value) -> Parts:
    heard, other = hear(speaker, "price", value, place), hear(speaker, "price", alone, place)
    number, same = heard.whole(), other.whole()
    return {f"number {place}": number, f"currency {place}": heard.follower(number, other, same)}


PARTS: dict[str, Callable[[Speaker, Value], Parts]] = {
    "quantity": _quantity,
    "ordinal": _ordinal,
    "year": _year,
    "date": _date,
    "time": _time,
    "price": _price,
}
