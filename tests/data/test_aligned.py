"""Gold alignments: linked words say the same when each is read alone, and no part of a phrase is forgotten."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import pytest

from regard.data.aligned import Aligned, Link, aligned, link
from regard.data.speaker import CATEGORIES, Speaker, Value
from regard.data.spoken import phrases, spoken
from regard.errors import DataError

NUMBERS = [*range(20), *range(20, 100, 10), 100, 1000]
ENGLISH = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand"
)
GERMAN = (
    "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig hundert tausend"
)
ODD = {
    "first": 1, "second": 2, "third": 3, "fifth": 5, "eighth": 8, "ninth": 9, "twelfth": 12,
    "eins": 1, "erste": 1, "dritte": 3, "siebte": 7, "achte": 8,
}  # fmt: skip
SAME = {
    "January": "Januar", "February": "Februar", "March": "März", "May": "Mai", "June": "Juni", "July": "Juli",
    "October": "Oktober", "December": "Dezember", "the year": "das Jahr",
    "euro": "Euro", "euros": "Euro", "cent": "Cent", "cents": "Cent",
}  # fmt: skip
NAMES = dict(zip(ENGLISH.split(), NUMBERS, strict=True)) | dict(zip(GERMAN.split(), NUMBERS, strict=True)) | ODD


def read(words: str) -> int | None:
    """The number that English or German words say, as far as links need it: twenty, zweiundzwanzig, zweitausend."""
    for plain in (words, words.removesuffix("th"), words.removesuffix("te"), words.removesuffix("ste")):
        if plain in NAMES:
            return NAMES[plain]
    if words.endswith("ieth"):
        return read(words.removesuffix("ieth") + "y")
    for scale in ("thousand", "hundred", "tausend", "hundert"):
        many, found, _ = words.partition(scale)
        if found:
            return NAMES[many.strip()] * NAMES[scale] if many else NAMES[scale]
    units, found, tens = words.partition("und")
    return NAMES[units] + NAMES[tens] if found else None


@cache
def some(source: str = "en", target: str = "de", count: int = 500) -> list[tuple[Value, Aligned]]:
    values = [value for _, value in phrases("test", count)]
    return list(zip(values, aligned((source, target), "test", count), strict=True))


def words(phrase: Aligned) -> list[tuple[str, str, bool]]:
    return [(phrase.source[slice(*one)], phrase.target[slice(*other)], sure) for one, other, sure in phrase.links]


def say(languages: str, category: str, value: Value) -> str:
    source, target = (Speaker(language) for language in languages.split())
    links = link(category, value, source, target)
    phrase = Aligned(category, source.say(category, value), target.say(category, value), links)
    return " ".join(f"{one}={other}{'' if sure else '?'}" for one, other, sure in words(phrase))


SAID: list[tuple[str, str, Value, str]] = [
    ("en de", "quantity", (0,), "zero=null"),
    ("en de", "quantity", (1_001,), "one=ein thousand=tausend one=eins"),
    (
        "en de", "quantity", (321_487,),
        "three=drei hundred=hundert twenty=zwanzig one=ein thousand=tausend "
        "four=vier hundred=hundert eighty=achtzig seven=sieben",
    ),
    ("en de", "ordinal", (2_300,), "two=zwei thousand=tausend three=drei hundredth=hundertste"),
    ("en de", "ordinal", (20,), "twentieth=zwanzigste"),
    ("de en", "year", (1905,), "das Jahr=the year neunzehnhundert=nineteen fünf=five"),
    ("en de", "year", (2000,), "the year=das Jahr two thousand=zweitausend"),
    ("en de", "date", (2004, 3, 21), "March=März twenty=zwanzig first=ein two thousand=zweitausend four=vier"),
    ("en de", "time", (18, 52), "six=achtzehn fifty=fünfzig two=zwei p.m.=achtzehn?"),
    ("en de", "time", (0, 0), "twelve=null a.m.=null?"),
    ("de fr", "time", (13, 1), "dreizehn=treize Uhr=heures eins=une"),
    ("en fr", "time", (12, 30), "twelve=douze thirty=trente p.m.=douze?"),
    ("en de", "price", (0, 0), "zero=null euros=Euro"),
    ("en de", "price", (0, 1), "one=ein cent=Cent"),
    ("en de", "price", (1, 11), "one=ein euro=Euro eleven=elf cents=Cent"),
    ("en fr", "quantity", (192,), "one hundred=cent ninety-two=quatre-vingt-douze"),
    ("en es", "quantity", (1_531,), "one thousand=mil five hundred=quinientos thirty=treinta one=uno"),
    ("en it", "price", (12, 50), "twelve=dodici euros=euro fifty=cinquanta"),
    ("en cs", "quantity", (23,), "twenty=dvacet three=tři"),
]  # fmt: skip


@pytest.mark.parametrize(("languages", "category", "value", "links"), SAID)
def test_what_is_linked(languages: str, category: str, value: Value, links: str) -> None:
    assert say(languages, category, value) == links


def test_linked_words_say_the_same_when_they_are_read_alone() -> None:
    for _, phrase in some():
        for one, other, sure in words(phrase):
            if not sure:
                assert one in ("a.m.", "p.m.")
            elif (number := read(other)) is None:
                assert SAME.get(one, one) == other
            elif phrase.category == "time" and phrase.target.startswith(other):
                assert (number - (read(one) or 0)) % 12 == 0, "eighteen is six, in the afternoon"
            elif phrase.category in ("year", "date") and number >= 1000:
                assert number in (read(one), 100 * (read(one) or 0)), "siebzehnhundert is seventeen"
            else:
                assert number == read(one), phrase


def parts(number: int) -> int:
    """How many words a number has: a digit and "hundred", tens and units, and "thousand" after the like."""
    thousands, hundreds, rest = number // 1000, number // 100 % 10, number % 100
    below = 2 if rest > 20 and rest % 10 else min(rest, 1)
    return (parts(thousands) + 1 if thousands else 0) + (2 if hundreds else 0) + below


@pytest.mark.parametrize("category", CATEGORIES)
def test_no_part_of_a_number_is_forgotten(category: str) -> None:
    chosen = [(value, phrase) for value, phrase in some() if phrase.category == category]
    assert len(chosen) > 30
    for value, phrase in chosen:
        match category:
            case "quantity" | "ordinal":
                wanted = parts(value[0])
            case "year":
                wanted = 2 + parts(value[0] % 100)
            case "date":
                wanted = 1 + parts(value[0] % 100) + 1 + parts(value[2])
            case "time":
                wanted = 1 + parts(value[1])
            case _:
                wanted = sum(parts(number) + 1 for number in value if number)
        assert sum(one.sure for one in phrase.links) == wanted, phrase


@pytest.mark.parametrize(
    "languages", [("en", "de"), ("de", "en"), ("fr", "es"), ("it", "ru"), ("tr", "pl"), ("ja", "ar"), ("fi", "hu")]
)
def test_links_are_letters_of_both_sides_that_no_other_sure_link_has(languages: tuple[str, str]) -> None:
    for _, phrase in some(*languages, 60):
        for text, spans in ((phrase.source, [one for one, _, _ in phrase.links]),
                            (phrase.target, [other for _, other, _ in phrase.links])):  # fmt: skip
            assert all(0 <= start < end <= len(text) for start, end in spans)
            assert all(text[start:end].strip() == text[start:end] for start, end in spans)
        sure = [one for one in phrase.links if one.sure]
        for one, other in combinations(sure, 2):
            assert one.source[1] <= other.source[0]
            assert one.target[1] <= other.target[0] or other.target[1] <= one.target[0]
        assert sure, "each of these pairs of languages has something in common in every phrase"


def test_only_word_order_crosses_links() -> None:
    """Within a German number the units go before the tens, and the day of a month before its name; nothing else."""
    for _, phrase in some():
        for one, other in combinations([one for one in phrase.links if one.sure], 2):
            if one.target > other.target:
                left, right = (phrase.source[slice(*found.source)] for found in (one, other))
                month = phrase.category == "date" and read(left) is None
                assert month or (read(left) in range(20, 100, 10) and read(right) in range(1, 10)), phrase


@pytest.mark.parametrize("languages", [("en", "de"), ("es", "fr")])
def test_a_link_has_no_direction(languages: tuple[str, str]) -> None:
    for (_, forth), (_, back) in zip(some(*languages, 60), some(*reversed(languages), 60), strict=True):
        assert set(forth.links) == {Link(other, one, sure) for one, other, sure in back.links}


@pytest.mark.parametrize("language", ["en", "de", "fr", "es", "it", "ru", "nl", "ko"])
def test_every_word_means_itself(language: str) -> None:
    for _, phrase in some(language, language, 30):
        assert phrase.links
        assert all(one == other for one, other, _ in phrase.links)


def test_the_phrases_are_those_of_the_task() -> None:
    assert [phrase[:3] for _, phrase in some()] == list(spoken(("en", "de"), "test", 500))


def test_unknown_languages() -> None:
    with pytest.raises(DataError, match="language 'xx': not known to both num2words and Babel; write for example"):
        next(aligned(("en", "xx"), "test", 1))
