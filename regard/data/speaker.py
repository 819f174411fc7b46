"""Numbers, dates, times and prices in words: num2words' numbers and Babel's months and currencies, put together.

English, French, German and Spanish are said as people say them; other languages as near as the two libraries get.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

from regard.errors import DataError

Value: TypeAlias = tuple[int, ...]  # (number,), (year, month, day), (hour, minute), (euros, cents)
Rules: TypeAlias = dict[str, tuple[tuple[str, str], ...]]

CATEGORIES = ("quantity", "ordinal", "year", "date", "time", "price")
KNOWN = "write for example de, en, es, fr, it, nl, pl, pt, ru, sv or tr"

# What num2words gets wrong.
MENDED: Rules = {
    "de": (("einstausend", "eintausend"),),
    "es": (
        ("veintiuno mil", "veintiún mil"),
        ("uno mil", "un mil"),
        ("décimoprimero", "undécimo"),
        ("décimosegundo", "duodécimo"),
        ("quadra", "cuadra"),
        ("cuadrigent", "cuadringent"),
        ("(sept|oct)igent", r"\1ingent"),
    ),
    "fr": (("(vingt|cent)sième", r"\1ième"),),
}
# How a number ends before a noun, and as the day of a month.
MASCULINE: Rules = {"de": (("eins$", "ein"),), "es": (("veintiuno$", "veintiún"), ("uno$", "un"))}
FEMININE: Rules = {"de": (("eins$", "ein"),), "es": (("uno$", "una"),), "fr": (("un$", "une"),)}
DAY: Rules = {"de": (("e$", "er"),), "fr": (("^un$", "premier"),)}

YEAR = {"de": "das Jahr {}", "en": "the year {}", "es": "el año {}", "fr": "l'an {}"}
AND = {"de": "und", "en": "and", "es": "con", "fr": "et"}
CENT = {"de": ("Cent", "Cent"), "en": ("cent", "cents"), "es": ("céntimo", "céntimos"), "fr": ("centime", "centimes")}


class Speaker:
    """Says values in one language."""

    def __init__(self, language: str) -> None:
        self._words, self._names = _knowledge(language)
        self.language: str = self._names.language
        self.number = lru_cache(1 << 16)(self._number)
        self._year_phrase = YEAR.get(self.language, f"{{}} {self._names.eras['abbreviated'][1]}")
        self._ways: dict[str, Callable[..., str]] = {
            "quantity": self.number,
            "ordinal": self.ordinal,
            "year": lambda number: self._year_phrase.format(self.year(number)),
            "date": self.date,
            "time": self.time,
            "price": self.price,
        }

    def say(self, category: str, value: Value) -> str:
        try:
            return self._ways[category](*value)
        except (NotImplementedError, TypeError, ArithmeticError, LookupError):
            raise DataError(f"language {self.language!r}: the {category} {value} has no words; {KNOWN}") from None

    def _number(self, number: int) -> str:
        return self._put(MENDED, self._words.to_cardinal(number))

    def ordinal(self, number: int) -> str:
        return self._put(MENDED, self._words.to_ordinal(number))

    def year(self, number: int) -> str:
        try:
            return self._put(MENDED, self._words.to_year(number))
        except (NotImplementedError, AttributeError):  # no way of its own in this language
            return self.number(number)

    def date(self, year: int, month: int, day: int) -> str:
        """In the long form of the language, such as `d. MMMM y`, where the point asks for an ordinal."""
        pattern = self._names.date_formats["long"].pattern
        ordinal = "d." in pattern or self.language == "en"
        said = {
            "y": self.year(year),
            "M": self._names.months["format"]["wide"][month] if "MMM" in pattern else self.number(month),
            "d": self._put(DAY, self.ordinal(day) if ordinal else self.number(day)),
        }
        parts = re.findall(r"'([^']*)'|([yMd])\2*\.?|[A-Za-z]+|([^'A-Za-z]+)", pattern)
        return "".join(quoted or said.get(field, "") or between for quoted, field, between in parts)

    def time(self, hour: int, minute: int) -> str:
        hours = self._put(FEMININE, self.number(hour))
        minutes = self.number(minute) if minute else ""
        match self.language:
            case "de":
                parts = [hours, "Uhr", minutes]
            case "en":
                hours = self.number((hour - 1) % 12 + 1)
                parts = [hours, "oh" if 0 < minute < 10 else "", minutes, "a.m." if hour < 12 else "p.m."]
            case "es":
                parts = ["la" if hour == 1 else "las", hours, "y" if minute else "en punto", minutes]
            case "fr":
                parts = [hours, "heure" if hour < 2 else "heures", self._put(FEMININE, minutes)]
            case _:
                parts = [hours, ":", self.number(minute)]
        return " ".join(part for part in parts if part)

    def price(self, euros: int, cents: int) -> str:
        """Nothing is said about no euros and no cents, unless there is neither."""
        from babel.numbers import get_currency_name

        whole = f"{self._put(MASCULINE, self.number(euros))} {get_currency_name('EUR', euros, self._names)}"
        if not cents:
            return whole
        if self.language not in CENT:
            return f"{whole} {self.number(cents)}"
        part = f"{self._put(MASCULINE, self.number(cents))} {CENT[self.language][cents > 1]}"
        return f"{whole} {AND[self.language]} {part}" if euros else part

    def _put(self, rules: Rules, text: str) -> str:
        for wrong, right in rules.get(self.language, ()):
            text = re.sub(wrong, right, text)
        return text


def _knowledge(language: str) -> tuple[Any, Any]:
    """num2words' words and Babel's names."""
    try:
        from babel import Locale, UnknownLocaleError
        from num2words import CONVERTER_CLASSES
    except ImportError as error:
        raise DataError(f"made phrases need {error.name}; write pip install 'regard[demo]'") from None
    try:
        names = Locale.parse(language)
        known = CONVERTER_CLASSES[language if language in CONVERTER_CLASSES else names.language]
    except (ValueError, KeyError, UnknownLocaleError):
        raise DataError(f"language {language!r}: not known to both num2words and Babel; {KNOWN}") from None
    words = type(known)()
    # It would look through numbers of 600 digits for every part of every number.
    words.cards = {number: word for number, word in getattr(words, "cards", {}).items() if number <= 1_000_000}
    return words, names
