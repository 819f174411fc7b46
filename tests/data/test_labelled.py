"""Labelled texts come out of every format as they went in, GLUE's oddities included, and bad lines are named."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.config.data import LabelledData
from regard.data.labelled import (
    EMPTY_TEXT,
    LABEL,
    NUMBER,
    Example,
    find_labels,
    in_fold,
    read_labelled,
    with_labels,
    with_numbers,
)
from regard.data.text import COLUMNS, ENCODING, JSON, KEYS, BadLines
from regard.errors import ConfigError, DataError

cell = (
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\t"), min_size=1)
    .map(str.strip)
    .filter(bool)
)


def write(folder: Path, name: str, data: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def read(*files: Path, **how: Any) -> list[Example]:
    settings: dict[str, Any] = {"texts": (0,), "label": 1, "bad": BadLines(), "on_bad": "refuse", **how}
    return list(read_labelled(files, **settings))


def commas(rows: list[tuple[str, ...]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


@given(st.lists(st.tuples(cell, cell, cell), min_size=1))
def test_every_format_gives_back_the_examples(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("labelled")
    names = ("first", "second", "label")
    tsv = write(folder, "x.tsv", "\n".join("\t".join(row) for row in [names, *rows]))
    comma = write(folder, "x.csv", commas([names, *rows]))
    jsonl = write(folder, "x.jsonl", "\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows))
    wanted = [((first, second), label) for first, second, label in rows]
    for path, begin in ((tsv, 2), (comma, 2), (jsonl, 1)):
        found = read(path, texts=("first", "second"), label="label")
        assert [example[1:] for example in found] == wanted
        assert [example.line for example in found] == [*range(begin, begin + len(rows))]
    turned = read(tsv, texts=(1, "first"), label=2)
    assert [example.texts for example in turned] == [(second, first) for first, second, _ in rows]


def test_by_number_the_first_line_is_an_example_and_many_files_are_read_one_after_another(tmp_path: Path) -> None:
    one, two = write(tmp_path, "one.tsv", "a\t1\nb\t0\n"), write(tmp_path, "two.tsv", "c\t1\n")
    assert read(one, two) == [Example(1, ("a",), "1"), Example(2, ("b",), "0"), Example(1, ("c",), "1")]


@pytest.mark.parametrize(("kind", "pack"), [(".xz", lzma.compress), (".gz", gzip.compress)])
def test_packed_files_are_read_as_plain_ones_are(tmp_path: Path, kind: str, pack: Callable[[bytes], bytes]) -> None:
    for name, text in (("x.tsv", "a\t1\nb\t0\n"), ("x.csv", "a,1\nb,0\n")):
        packed = write(tmp_path, f"{name}{kind}", pack(text.encode()))
        assert read(packed) == read(write(tmp_path, name, text)) == [Example(1, ("a",), "1"), Example(2, ("b",), "0")]


def test_quotes_of_a_tsv_are_letters_and_a_byte_order_mark_is_none(tmp_path: Path) -> None:
    path = write(tmp_path, "x.tsv", '\ufeffQuality\t#1 String\n1\tHe said "no\n0\t"\n')
    assert [e.texts[0] for e in read(path, texts=("#1 String",), label="Quality")] == ['He said "no', '"']


def test_a_csv_of_tabs_has_no_quotes_and_may_have_more_columns_here_and_there(tmp_path: Path) -> None:
    path = write(tmp_path, "x.csv", 'news\t4.5\tA "plane, off\nnews\t2\ttwo\tlicence\tlicence\n')
    assert [example[1:] for example in read(path, texts=(2,), label=1)] == [
        (('A "plane, off',), "4.5"),
        (("two",), "2"),
    ]


def test_labels_of_a_jsonl_may_be_numbers_or_truths(tmp_path: Path) -> None:
    path = write(tmp_path, "x.jsonl", "\n".join(f'{{"s": "a", "l": {value}}}' for value in ("1", "2.5", "true", '"x"')))
    assert [example.label for example in read(path, texts=("s",), label="l")] == ["1", "2.5", "true", "x"]


def test_labels_are_sorted_numbers_by_their_size() -> None:
    def found(*labels: str) -> tuple[str, ...]:
        return find_labels((Example(1, ("a",), label) for label in labels), BadLines())

    assert found("b", "a", "b") == ("a", "b")
    assert found("10", "2", "-1", "x", "2") == ("-1", "2", "10", "x")
    with pytest.raises(DataError, match="the label 'yes' alone, and there is nothing to tell; name another column"):
        found("yes", "yes")


SKIPPED: list[tuple[str, bytes, dict[str, Any], str]] = [
    ("x.tsv", b"a\t1\ncaf\xe9\t0\nb\n", {},
     r"x.tsv: the label '1' alone \(2 of 3 lines skipped: 1 not UTF-8 \(line 2\), 1 with wrong columns \(line 3\)\);"),
    ("x.jsonl", b'{"s": "a", "l": 1}\n{"s": "b", "l"\n', {"texts": ("s",), "label": "l"}, "1 not JSON .line 2..;"),
    ("x.csv", b'a,1\n"b,0\n', {}, "1 with wrong columns .line 2..; mend these lines, or name other columns by data.t"),
    ("x.tsv", b"a\t1\nb\t0\n", {"texts": (9,)}, "no example is left .2 of 2 lines skipped: 2 with wrong columns"),
    ("x.tsv", b"s\tl\n", {"texts": ("s",), "label": "l"}, "x.tsv: names of columns, and no example behind them; name"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "data", "how", "sentence"), SKIPPED)
def test_labels_that_stand_in_bad_lines_are_missed_with_their_lines(
    tmp_path: Path, name: str, data: bytes, how: dict[str, Any], sentence: str
) -> None:
    bad = BadLines()
    settings: dict[str, Any] = {"texts": (0,), "label": 1, **how}
    with pytest.raises(DataError, match=sentence):
        find_labels(read_labelled([write(tmp_path, name, data)], **settings, bad=bad), bad)


BAD: list[tuple[str, bytes, str, str]] = [
    (
        "x.tsv",
        b"only one",
        COLUMNS,
        "x.tsv, line 2: 1 column where column 1, counted from 0, was asked for: 'only one'",
    ),
    ("x.csv", b'"a,1', COLUMNS, "line 2: columns that cannot be told apart .unexpected end of data.: "),
    ("x.tsv", b"caf\xe9\t1", ENCODING, "line 2: x.tsv is not UTF-8 at byte 3"),
    ("x.tsv", b" \t1", EMPTY_TEXT, "line 2: the text is empty beside the label '1'; mend it, or set data.bad_lines"),
    ("x.tsv", b"a\t ", LABEL, "line 2: no label beside 'a'"),
    ("x.jsonl", b"{", JSON, "line 2: not JSON"),
    ("x.jsonl", b"[1]", KEYS, "line 2: no text under the key 's' .data.texts names the keys."),
    ("x.jsonl", b'{"s": "a"}', KEYS, "line 2: no text under the key 'l' .data.label names it."),
    ("x.jsonl", b'{"s": "a", "l": null}', KEYS, "no text under the key 'l'"),
    ("x.jsonl", b'{"s": "a", "l": "\\ud800"}', ENCODING, "half a character, which UTF-8 cannot hold"),
]


@pytest.mark.parametrize(("name", "line", "kind", "sentence"), BAD)
def test_a_bad_line_is_skipped_and_named_or_refused(
    tmp_path: Path, name: str, line: bytes, kind: str, sentence: str
) -> None:
    good = {"x.tsv": b"a\t1\n", "x.csv": b"a,1\n", "x.jsonl": b'{"s": "a", "l": 1}\n'}[name]
    how: dict[str, Any] = {"texts": ("s",), "label": "l"} if name == "x.jsonl" else {}
    path, bad = write(tmp_path, name, good + line + b"\n" + good), BadLines()
    assert read(path, bad=bad, on_bad="skip", **how) == [Example(1, ("a",), "1"), Example(3, ("a",), "1")]
    assert (bad.read, bad.counts, bad.first) == (3, {kind: 1}, {kind: [2]})
    with pytest.raises(DataError, match=sentence):
        read(path, **how)


def test_one_empty_text_of_a_pair_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 1: text 2 of 2 is empty beside the label '1'"):
        read(write(tmp_path, "x.tsv", "a\t\t1\n"), texts=(0, 1), label=2)


def test_labels_outside_the_set_and_numbers_that_are_none(tmp_path: Path) -> None:
    path = write(tmp_path, "rte.tsv", "a\tentailment\nb\tmaybe\nc\tnot_entailment\n")
    labels, bad = ("entailment", "not_entailment"), BadLines()
    assert [e.line for e in with_labels(read(path), labels, bad=bad)] == [1, 3]
    assert (bad.counts, bad.first) == ({LABEL: 1}, {LABEL: [2]})
    bad.file = path.name
    sentence = "rte.tsv, line 2: the label 'maybe', but the only ones are: entailment, not_entailment; mend it, or set"
    with pytest.raises(DataError, match=sentence):
        list(with_labels(read(path), labels, bad=bad, on_bad="refuse"))

    path, bad = write(tmp_path, "sts.tsv", "a\t4.75\nb\tnan\nc\tfour\nd\t-1e3\n"), BadLines()
    assert [e.line for e in with_numbers(read(path), bad=bad)] == [1, 4]
    assert (bad.counts, bad.first) == ({NUMBER: 2}, {NUMBER: [2, 3]})
    with pytest.raises(DataError, match=r"line 2: 'nan' where a number was wanted .data.label names the column.; mend"):
        list(with_numbers(read(path), bad=bad, on_bad="refuse"))


@pytest.mark.parametrize("separator", ["\t", ",", " "])
def test_whatever_its_ending_a_table_is_read_by_its_separator(tmp_path: Path, separator: str) -> None:
    path = write(tmp_path, "x.data", f"EI{separator} AC GT\nN{separator} G\n")
    assert read(path, texts=(1,), label=0, separator=separator) == [
        Example(1, ("AC GT",), "EI"),
        Example(2, ("G",), "N"),
    ]


def test_a_space_parts_as_many_columns_as_are_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, "x.train", "1 a fine , fine film\n0 no\n1\n")
    bad = BadLines()
    assert [e.texts[0] for e in read(path, texts=(1,), label=0, separator=" ", bad=bad, on_bad="skip")] == [
        "a fine , fine film",
        "no",
    ]
    assert (bad.counts, bad.first) == ({COLUMNS: 1}, {COLUMNS: [3]})


@given(st.lists(cell, min_size=1), st.integers(3, 12))
def test_folds_part_all_that_there_is_and_each_is_tested_once(texts: list[str], folds: int) -> None:
    examples = [Example(number, (text,), "1") for number, text in enumerate(texts, 1)]
    tested = []
    for fold in range(folds):
        train, valid, test = (list(in_fold(examples, split, fold, folds)) for split in ("train", "valid", "test"))
        assert sorted(train + valid + test) == examples, "every line is in one split"
        assert not {e.texts for e in train} & {e.texts for e in valid + test}, "equal texts stay together"
        assert valid == list(in_fold(examples, "test", (fold + 1) % folds, folds))
        tested += test
    assert sorted(tested) == examples


@pytest.mark.parametrize("how", [{"folds": 2}, {"folds": 10, "fold": 10}])
def test_folds_that_cannot_be_are_refused(how: dict[str, int]) -> None:
    with pytest.raises(
        ConfigError, match=r"folds: \d+ with fold = \d+; write three or more folds, and a fold from 0 on"
    ):
        LabelledData(train=("x.tsv",), **how)


@pytest.mark.data("dna")
def test_splice_junctions_are_read_to_the_last_line(data_dir: Callable[[str], Path]) -> None:
    found = read(data_dir("dna") / "splice.data", texts=(2,), label=0, separator=",")
    labels = [example.label for example in found]
    assert {name: labels.count(name) for name in find_labels(found, BadLines())} == {"EI": 767, "IE": 768, "N": 1655}
    assert {len(example.texts[0]) for example in found} == {60}
    sizes = [sum(1 for _ in in_fold(found, "test", fold, 10)) for fold in range(10)]
    assert sum(sizes) == 3190
    assert min(sizes) > 250


@pytest.mark.data("sentence_cls")
def test_sentences_about_films_are_read_to_the_last_line(data_dir: Callable[[str], Path]) -> None:
    for split, count in (("train", 6920), ("dev", 872), ("test", 1821)):
        found = read(data_dir("sentence_cls") / f"stsa.binary.{split}", texts=(1,), label=0, separator=" ")
        assert len(found) == count
        assert find_labels(found, BadLines()) == ("0", "1")


WRONG: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("x.txt", {}, DataError, r"x.txt: a file of labelled texts is a .tsv, .csv or .jsonl; rename it"),
    (
        "x.tsv",
        {"label": "labl"},
        ConfigError,
        "data: x.tsv has no column 'labl' in its first line; did you mean 'label'",
    ),
    ("x.tsv", {"label": -1}, ConfigError, "data: no column -1; columns are counted from 0"),
    (
        "x.jsonl",
        {},
        ConfigError,
        r"data: \[0, 1\] names columns, but a .jsonl has keys; write for example data.texts = ",
    ),
]


@pytest.mark.parametrize(("name", "how", "kind", "sentence"), WRONG)
def test_what_no_line_can_mend(
    tmp_path: Path, name: str, how: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        read(write(tmp_path, name, "text\tlabel\na\t1\n"), on_bad="skip", **how)


GLUE: list[tuple[str, dict[str, Any], int, Example]] = [
    ("CoLA/in_domain_train.tsv", {"texts": (3,), "label": 1}, 8551,
     Example(2, ("One more pseudo generalization and I'm giving up.",), "1")),
    ("MRPC/dev.tsv", {"texts": ("#1 String", "#2 String"), "label": "Quality"}, 408,
     Example(2, ("He said the foodservice pie business doesn't fit the company's long-term growth strategy.",
                 '"The foodservice pie business does not fit our long-term growth strategy.'), "1")),
    ("RTE/train.tsv", {"texts": ("sentence1", "sentence2"), "label": "label"}, 2490,
     Example(2, ("No Weapons of Mass Destruction Found in Iraq Yet.", "Weapons of Mass Destruction Found in Iraq."),
             "not_entailment")),
    ("SST-2/train.tsv", {"texts": ("sentence",), "label": "label"}, 67349,
     Example(3, ("contains no wit , only labored gags",), "0")),
    ("STS-B/sts-train.csv", {"texts": (5, 6), "label": 4}, 5749,
     Example(1, ("A plane is taking off.", "An air plane is taking off."), "5.000")),
]  # fmt: skip


@pytest.mark.data("glue")
@pytest.mark.parametrize(("name", "how", "count", "example"), GLUE, ids=[name for name, *_ in GLUE])
def test_glue_is_read_to_the_last_line(
    data_dir: Callable[[str], Path], name: str, how: dict[str, Any], count: int, example: Example
) -> None:
    found = read(data_dir("glue") / name, **how)
    assert len(found) == count
    assert example in found
