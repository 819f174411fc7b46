"""Pairs come out of every format as they went in, and every line that cannot be used is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.text import COLUMNS, EMPTY, ENCODING, JSON, KEYS, BadLines, find, read_pairs
from regard.errors import ConfigError, DataError

side = (
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\t"), min_size=1).map(str.strip).filter(bool)
)


def write(folder: Path, name: str, data: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@given(st.lists(st.tuples(side, side), min_size=1))
def test_every_format_gives_back_the_pairs(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("text")
    two = [write(folder, f"two.{i}", "".join(pair[i] + "\n" for pair in pairs)) for i in (0, 1)]
    tsv = write(folder, "one.tsv", "\n".join("\t".join(pair) for pair in pairs))
    rows = [json.dumps({"source": source, "target": target}) for source, target in pairs]
    jsonl = write(folder, "one.jsonl", "\n".join(rows))
    for files in (two, [tsv], [jsonl]):
        bad = BadLines()
        assert list(read_pairs(files, bad=bad, on_bad="refuse")) == [(n, *pair) for n, pair in enumerate(pairs, 1)]
        assert (bad.read, len(bad)) == (len(pairs), 0)


def test_line_ends_and_byte_order_marks_are_not_text(tmp_path: Path) -> None:
    files = [write(tmp_path, "a", b"\xef\xbb\xbfone\r\ntwo\r\n"), write(tmp_path, "b", "eins\nzwei\u2028drei\x85\n")]
    assert list(read_pairs(files, bad=BadLines())) == [(1, "one", "eins"), (2, "two", "zwei\u2028drei")]


def test_fields_pick_columns_and_keys(tmp_path: Path) -> None:
    tsv = write(tmp_path, "x.tsv", "7\tone\teins\n8\ttwo\tzwei\tmore\n")
    jsonl = write(tmp_path, "x.jsonl", '{"en": "one", "id": 7, "de": "eins"}\n')
    assert [pair[1:] for pair in read_pairs([tsv], fields=(1, 2), bad=BadLines())] == [("one", "eins"), ("two", "zwei")]
    assert list(read_pairs([jsonl], fields=("de", "en"), bad=BadLines())) == [(1, "eins", "one")]


BAD = [
    ("x.tsv", b"only one", COLUMNS, "x.tsv, line 2: 1 column where 2 were wanted .*: 'only one'; mend it, or set "),
    ("x.tsv", b"a\tb\tc", COLUMNS, "3 columns where 2 were wanted .data.fields picks two of many.: 'a.tb.tc'"),
    ("x.tsv", b"caf\xe9\tb", ENCODING, "line 2: x.tsv is not UTF-8 at byte 3 of the line: 'caf\ufffd.tb'"),
    ("x.tsv", b" \tb", EMPTY, "line 2: the source side is empty beside 'b'"),
    ("x.tsv", b"a\t", EMPTY, "line 2: the target side is empty beside 'a'"),
    ("x.jsonl", b"{'a': 1}", JSON, 'line 2: not JSON: .*; mend it, or set data.bad_lines = "skip" to go on'),
    ("x.jsonl", b"[" * 100_000, JSON, "line 2: not JSON: '.{59}…'"),
    ("x.jsonl", b"[1]", KEYS, "line 2: no text under the key 'source' .data.fields names the two keys.: '.1.'"),
    ("x.jsonl", b'{"source": "a", "target": 3}', KEYS, "no text under the key 'target'"),
    ("x.jsonl", b'{"source": "\\ud800", "target": "b"}', ENCODING, "half a character, which UTF-8 cannot hold"),
]


@pytest.mark.parametrize(("name", "line", "kind", "sentence"), BAD)
def test_a_bad_line_is_skipped_and_named_or_refused(
    tmp_path: Path, name: str, line: bytes, kind: str, sentence: str
) -> None:
    good = b"a\tb\n" if name == "x.tsv" else b'{"source": "a", "target": "b"}\n'
    path = write(tmp_path, name, good + line + b"\n" + good)
    bad = BadLines()
    assert list(read_pairs([path], bad=bad)) == [(1, "a", "b"), (3, "a", "b")]
    assert (bad.counts, bad.first) == ({kind: 1}, {kind: [2]})
    reading = read_pairs([path], bad=BadLines(), on_bad="refuse")
    assert next(reading) == (1, "a", "b")
    with pytest.raises(DataError, match=sentence):
        next(reading)


def test_bad_lines_say_how_many_and_where(tmp_path: Path) -> None:
    files = [write(tmp_path, "a", b"x\n" * 4 + b"\xff\n" + b"\n" * 12), write(tmp_path, "b", b"y\n" * 17)]
    bad = BadLines()
    assert len(list(read_pairs(files, bad=bad))) == 4
    assert str(bad) == (
        "13 of 17 lines skipped: 1 not UTF-8 (line 5), "
        "12 with an empty side (lines 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, …)"
    )
    assert str(BadLines()) == "0 of 0 lines skipped"


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    path = write(tmp_path, "x.tsv", "a\tb\n")
    with pytest.raises(
        DataError, match=r"line 1: 2 columns where data.fields asks for 0 and 2, counted from 0: 'a.tb'"
    ):
        list(read_pairs([path], fields=(0, 2), bad=BadLines(), on_bad="refuse"))


@pytest.mark.parametrize("counts", [(3, 5), (5, 3)])
def test_one_side_shorter(tmp_path: Path, counts: tuple[int, int]) -> None:
    files = [write(tmp_path, f"train.{i}", "x\n" * count) for i, count in enumerate(counts)]
    sentence = f"train.0 has {counts[0]} lines and .*train.1 has {counts[1]} lines; .* so give equally many lines"
    with pytest.raises(DataError, match=sentence):
        list(read_pairs(files, bad=BadLines()))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    good, empty = write(tmp_path, "a.tsv", "a\tb\n"), write(tmp_path, "empty.tsv", "")
    folder = tmp_path / "folder.tsv"
    folder.mkdir()
    for files, sentence in (
        ([empty], "empty.tsv: empty; name a file with a sentence on every line"),
        ([good, empty], "empty.tsv: empty; name a file"),
        ([tmp_path / "no.tsv"], "no.tsv: no such file; name one that is there"),
        ([folder], "folder.tsv: a folder; name the files in it"),
        ([tmp_path / ("x" * 300 + ".tsv")], "cannot be read: File name too long; name a file that can"),
        ([write(tmp_path, "a.txt", "a\n")], r"a.txt: give two line-aligned files \(source, target\), one .tsv or one"),
        ([good] * 3, "a.tsv, .*: give two line-aligned files"),
        ([], "no file: give two line-aligned files"),
    ):
        with pytest.raises(DataError, match=sentence):
            list(read_pairs(files, bad=BadLines()))


def test_fields_that_do_not_fit_the_format(tmp_path: Path) -> None:
    tsv, jsonl = tmp_path / "x.tsv", tmp_path / "x.jsonl"
    for files, fields, sentence in (
        ([tsv], ("a", "b"), r"data.fields = \['a', 'b'\]: a .tsv has columns 0, 1, …; write for example \[0, 1\]"),
        ([tsv], (0, -1), "a .tsv has columns"),
        ([jsonl], (0, 1), r'a .jsonl has keys; write for example \["source", "target"\]'),
        ([tsv, tsv], (0, 1), "is for one .tsv or .jsonl; leave it out for two files"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            next(read_pairs(files, fields=fields, bad=BadLines()))


def test_a_file_is_found_as_given_or_under_regard_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    write(there, "a.tsv", "x")
    monkeypatch.chdir(here)
    monkeypatch.delenv("REGARD_DATA", raising=False)
    with pytest.raises(DataError, match=f"a.tsv: no such file; looked for {here}/a.tsv; set REGARD_DATA to the folder"):
        find("a.tsv")
    monkeypatch.setenv("REGARD_DATA", str(there))
    assert find("a.tsv") == there / "a.tsv"
    write(here, "a.tsv", "y")
    assert find("a.tsv") == here / "a.tsv"
    with pytest.raises(DataError, match=f"looked for {here}/b.tsv and {there}/b.tsv"):
        find("b.tsv")
