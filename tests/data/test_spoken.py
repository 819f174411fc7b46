"""The made task: held-out numbers occur nowhere in training, and every phrase is said as people say it."""

from __future__ import annotations

import sys
from collections import defaultdict
from functools import cache
from itertools import repeat

import pytest

from regard.data.speaker import CATEGORIES, Speaker, Value
from regard.data.spoken import Split, _different, number_of, phrases, split_of, spoken
from regard.errors import DataError

HELD_OUT: tuple[Split, ...] = ("valid", "test")


@cache
def some(split: Split) -> list[tuple[str, Value]]:
    return list(phrases(split, 40_000 if split == "train" else 3_000))


def test_no_number_is_in_two_splits() -> None:
    numbers = {split: {number_of(*phrase) for phrase in some(split)} for split in HELD_OUT}
    trained = {number_of(*phrase) for seed in range(2) for phrase in phrases("train", 20_000, seed)}
    trained |= {number_of(*phrase) for phrase in some("train")}
    assert not numbers["valid"] & numbers["test"]
    assert not trained & (numbers["valid"] | numbers["test"])


def test_no_part_of_a_training_phrase_is_a_held_out_number() -> None:
    """Years in dates and whole euros in prices, too: 4711 is held out everywhere or nowhere."""
    parts = {value[0] for category, value in some("train") if category != "time"}
    for split in HELD_OUT:
        assert not parts & {value[0] for category, value in some(split) if category in ("quantity", "ordinal", "year")}


def test_no_held_out_phrase_is_heard_in_training() -> None:
    trained = list(spoken(("en", "de"), "train", 20_000))
    for split in HELD_OUT:
        held_out = list(spoken(("en", "de"), split, 1_000))
        for side in (1, 2):
            assert not {phrase[side] for phrase in trained} & {phrase[side] for phrase in held_out}


def test_the_rule_of_4711() -> None:
    split = split_of(4711)
    for category, value in (
        ("quantity", (4711,)),
        ("ordinal", (4711,)),
        ("price", (4711, 0)),
        ("price", (4711, 50)),
        ("price", (47, 11)),
    ):
        assert split_of(number_of(category, value)) == split
    assert number_of("time", (15, 15)) == 1515
    assert number_of("date", (2004, 3, 21)) == 2004


def test_about_a_tenth_is_held_out_for_each_split() -> None:
    splits = [split_of(number) for number in range(1_000, 11_000)]
    for split in HELD_OUT:
        assert 0.09 < splits.count(split) / len(splits) < 0.11


def test_building_blocks_are_learnt() -> None:
    said = defaultdict(set)
    for category, value in some("train"):
        said[category].add(value)
    assert {(number,) for number in range(101)} <= said["quantity"]
    assert all(split_of(digit * 10**zeros) == "train" for digit in range(1, 10) for zeros in range(6))
    assert {value[1:] for value in said["date"]} >= {(month, day) for month in range(1, 13) for day in range(1, 29)}
    assert {value[0] for value in said["time"]} == set(range(24))
    assert {value[1] for value in said["time"]} == set(range(60))
    assert {value[1] for value in said["price"]} == set(range(100))


def test_all_categories_and_magnitudes_occur() -> None:
    for split in ("train", *HELD_OUT):
        assert {category for category, _ in some(split)} == set(CATEGORIES)
        digits = [len(str(value[0])) for category, value in some(split) if category == "quantity"]
        assert set(digits) == set(range(1 if split == "train" else 3, 7))
        assert 0.2 < digits.count(6) / len(digits) < 0.6


def test_phrases_are_a_function_of_seed_and_index() -> None:
    for split in ("train", *HELD_OUT):
        few, many = (list(phrases(split, count, seed=7)) for count in (50, 200))
        assert few == many[:50]
        assert few != list(phrases(split, 50, seed=8))


def test_held_out_phrases_are_all_different() -> None:
    assert all(len(set(some(split))) == len(some(split)) for split in HELD_OUT)
    assert len(set(some("train"))) < len(some("train"))


@pytest.mark.parametrize("languages", [("en", "de"), ("de", "en"), ("fr", "es"), ("es", "en"), ("it", "en")])
def test_a_phrase_has_one_translation(languages: tuple[str, str]) -> None:
    found = defaultdict(set)
    for _, source, target in spoken(languages, "train", 4_000):
        found[source].add(target)
        assert source == source.strip()
        assert target == target.strip()
    assert all(len(targets) == 1 for targets in found.values())


SAID: list[tuple[str, str, Value, str]] = [
    ("de", "quantity", (23_407,), "dreiundzwanzigtausendvierhundertsieben"),
    ("de", "quantity", (101_001,), "einhunderteintausendeins"),
    ("de", "ordinal", (2345,), "zweitausenddreihundertfünfundvierzigste"),
    ("de", "year", (1987,), "das Jahr neunzehnhundertsiebenundachtzig"),
    ("de", "date", (2004, 3, 21), "einundzwanzigster März zweitausendvier"),
    ("de", "time", (3, 15), "drei Uhr fünfzehn"),
    ("de", "time", (1, 1), "ein Uhr eins"),
    ("de", "time", (0, 0), "null Uhr"),
    ("de", "price", (12, 50), "zwölf Euro und fünfzig Cent"),
    ("de", "price", (101, 1), "einhundertein Euro und ein Cent"),
    ("en", "quantity", (999_999,), "nine hundred and ninety-nine thousand, nine hundred and ninety-nine"),
    ("en", "ordinal", (21,), "twenty-first"),
    ("en", "year", (1905,), "the year nineteen oh-five"),
    ("en", "date", (2004, 3, 21), "March twenty-first, two thousand and four"),
    ("en", "time", (0, 15), "twelve fifteen a.m."),
    ("en", "time", (12, 5), "twelve oh five p.m."),
    ("en", "time", (15, 0), "three p.m."),
    ("en", "price", (12, 50), "twelve euros and fifty cents"),
    ("en", "price", (1, 1), "one euro and one cent"),
    ("en", "price", (0, 50), "fifty cents"),
    ("en", "price", (0, 0), "zero euros"),
    ("es", "quantity", (121_001,), "ciento veintiún mil uno"),
    ("es", "quantity", (31_031,), "treinta y un mil treinta y uno"),
    ("es", "ordinal", (412,), "cuadringentésimo duodécimo"),
    ("es", "ordinal", (1_741,), "milésimo septingentésimo cuadragésimo primero"),
    ("es", "year", (1492,), "el año mil cuatrocientos noventa y dos"),
    ("es", "date", (2004, 3, 21), "veintiuno de marzo de dos mil cuatro"),
    ("es", "time", (1, 0), "la una en punto"),
    ("es", "time", (21, 15), "las veintiuna y quince"),
    ("es", "price", (21, 31), "veintiún euros con treinta y un céntimos"),
    ("fr", "quantity", (80_080,), "quatre-vingt mille quatre-vingts"),
    ("fr", "ordinal", (80,), "quatre-vingtième"),
    ("fr", "ordinal", (1_200,), "mille deux centième"),
    ("fr", "ordinal", (3,), "troisième"),
    ("fr", "year", (1789,), "l'an mille sept cent quatre-vingt-neuf"),
    ("fr", "date", (2004, 3, 1), "premier mars deux mille quatre"),
    ("fr", "time", (21, 21), "vingt et une heures vingt et une"),
    ("fr", "time", (1, 15), "une heure quinze"),
    ("fr", "price", (200, 80), "deux cents euros et quatre-vingts centimes"),
    ("it", "year", (1987,), "millenovecentottantasette d.C."),
    ("it", "price", (12, 50), "dodici euro cinquanta"),
    ("sv", "date", (2004, 3, 21), "tjugoett mars tvåtusenfyra"),
]


@pytest.mark.parametrize(("language", "category", "value", "words"), SAID)
def test_values_are_said_as_people_say_them(language: str, category: str, value: Value, words: str) -> None:
    assert Speaker(language).say(category, value) == words


def test_unknown_languages() -> None:
    for language, sentence in (
        ("xx", "language 'xx': not known to both num2words and Babel; write for example de, en, es, fr"),
        ("not a language", "language 'not a language': not known to both"),
        ("la", "language 'la': not known to both"),
    ):
        with pytest.raises(DataError, match=sentence):
            next(spoken(("en", language), "train", 1))
    with pytest.raises(DataError, match=r"language 'cs': the ordinal \(3,\) has no words; write for example de, en"):
        Speaker("cs").say("ordinal", (3,))


@pytest.mark.parametrize("library", ["num2words", "babel"])
def test_without_the_libraries(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(DataError, match=rf"made phrases need {library}; write pip install 'regard\[demo\]'"):
        next(spoken(("en", "de"), "train", 1))


def test_more_than_there_is() -> None:
    different = _different(repeat(("year", (1987,))))
    assert next(different) == ("year", (1987,))
    with pytest.raises(DataError, match="no more than about 1 different phrases are held out; ask for fewer"):
        next(different)
