"""Tagged sentences come out as they went in, schemes turn into each other, and every word keeps its label."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.conll import BROKEN, Scheme, Sentence, labels, read_tagged, to_iob1, to_iob2
from regard.data.text import COLUMNS, ENCODING, BadLines
from regard.data.tokenizer import Kind, Tokenizer
from regard.data.words import NONE, UNKNOWN, Words, rows, spell
from regard.errors import DataError

KINDS: list[tuple[Kind, int]] = [("bpe", 300), ("unigram", 300), ("wordpiece", 90), ("word", 40), ("char", 40)]
WORDS = ["Éva", "Smith", "visited", "İstanbul", "(", "in", "e\u0301té", "1980-81", ")", "U.N.", "東京"]
TOKENIZERS = {kind: Tokenizer.train([" ".join(WORDS)], kind=kind, size=size) for kind, size in KINDS}

# An entity is a kind and a count of words; None is a word outside.
entities = st.lists(st.one_of(st.none(), st.tuples(st.sampled_from(["PER", "LOC"]), st.integers(1, 3))), max_size=6)


def spelt(found: list[tuple[str, int] | None], scheme: Scheme) -> list[str]:
    tags: list[str] = []
    for number, entity in enumerate(found):
        if entity is None:
            tags.append("O")
            continue
        kind, count = entity
        before = found[number - 1] if number else None
        marked = scheme == "iob2" or (before is not None and before[0] == kind)
        tags += [f"{'B' if marked else 'I'}-{kind}", *[f"I-{kind}"] * (count - 1)]
    return tags


@given(entities)
def test_the_schemes_turn_into_each_other(found: list[tuple[str, int] | None]) -> None:
    one, two = spelt(found, "iob1"), spelt(found, "iob2")
    assert (to_iob2(one), to_iob1(two)) == (two, one)
    assert (to_iob2(two), to_iob1(one)) == (two, one)


def write(path: Path, text: str | bytes) -> Path:
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(lzma.compress(data) if path.suffix == ".xz" else data)
    return path


@given(st.lists(entities.filter(bool), min_size=1, max_size=4))
@pytest.mark.parametrize("scheme", ["iob1", "iob2"])
def test_good_data_of_either_scheme_is_read_as_iob2(
    tmp_path_factory: pytest.TempPathFactory, scheme: Scheme, drawn: list[list[tuple[str, int] | None]]
) -> None:
    blocks = [[f"w{n} X {tag}" for n, tag in enumerate(spelt(found, scheme))] for found in drawn]
    path = write(tmp_path_factory.mktemp("conll") / "x.xz", "\n\n".join("\n".join(block) for block in blocks))
    read = list(read_tagged([path], scheme=scheme, bad=BadLines(), on_bad="refuse"))
    assert [list(sentence.tags) for sentence in read] == [spelt(found, "iob2") for found in drawn]
    assert [sentence.words[0] for sentence in read] == ["w0"] * len(drawn)


def test_documents_blank_lines_and_columns(tmp_path: Path) -> None:
    text = "-DOCSTART- -X- O O\n\n\na b\u00a0c I-PER\r\nd e O\n-DOCSTART-\nf g B-X\n  \n"
    path = write(tmp_path / "x.conll", text)
    read = list(read_tagged([path], scheme="plain", bad=BadLines(), on_bad="refuse"))
    assert read == [Sentence(4, ("a", "d"), ("I-PER", "O")), Sentence(7, ("f",), ("B-X",))]
    assert next(read_tagged([path], word=1, tag=0, scheme="plain", bad=BadLines())).words == ("b\u00a0c", "e")
    tabs = write(tmp_path / "x.tsv", "New York\tB-LOC\n")
    assert next(read_tagged([tabs], bad=BadLines())).words == ("New York",)


BAD: list[tuple[Scheme, bytes, str, str]] = [
    ("iob2", b"b I-PER", BROKEN, 'line 3: I-PER follows O, which IOB2 does not allow: write B-PER, or .*"iob1"; mend'),
    ("iob2", b"b B-LOC\nc I-PER", BROKEN, "line 4: I-PER follows B-LOC, which IOB2 does not allow: write B-PER"),
    ("iob1", b"b B-PER", BROKEN, 'line 3: B-PER follows O, which IOB1 does not allow: write I-PER, or .*"iob2"'),
    (
        "iob2",
        b"b PER",
        BROKEN,
        "line 3: the tag 'PER' is none of O, B-… and I-…: write one, or task.scheme = \"plain\"",
    ),
    ("iob2", b"b B-", BROKEN, "line 3: the tag 'B-' is none of"),
    ("iob2", b"b", COLUMNS, "line 3: 1 column where a word and a tag were wanted: 'b'"),
    ("iob2", b"\xff O", ENCODING, "line 3: x is not UTF-8 at byte 0 of the line"),
]


@pytest.mark.parametrize(("scheme", "line", "kind", "sentence"), BAD)
def test_a_sentence_that_breaks_the_scheme_is_counted_or_refused(
    tmp_path: Path, scheme: Scheme, line: bytes, kind: str, sentence: str
) -> None:
    path, bad = write(tmp_path / "x", b"\na O\n" + line + b"\n\nz O\n"), BadLines()
    assert [sentence.words for sentence in read_tagged([path], scheme=scheme, bad=bad)] == [("z",)]
    assert (bad.read, bad.counts) == (2, {kind: 1})
    assert "1 of 2 sentences skipped" in str(bad)
    with pytest.raises(DataError, match=f"x, {sentence}"):
        list(read_tagged([path], scheme=scheme, bad=BadLines(), on_bad="refuse"))


@pytest.mark.parametrize(("scheme", "other"), [("iob2", "iob1"), ("iob1", "iob2")])
def test_data_of_another_scheme_is_told_from_data_with_flaws(tmp_path: Path, scheme: Scheme, other: Scheme) -> None:
    begin = {"iob1": "I", "iob2": "B"}[other]
    path = write(tmp_path / "x", f"a {begin}-PER\n\nb O\n\nc {begin}-LOC\n")
    told = rf'x: most sentences break {scheme.upper()} \(2 of 3 sentences skipped: .*; write task.scheme = "{other}"'
    with pytest.raises(DataError, match=told):
        list(read_tagged([path], scheme=scheme, bad=BadLines()))
    assert len(list(read_tagged([path], scheme=other, bad=BadLines()))) == 3


def test_a_sentence_may_not_begin_inside_an_entity(tmp_path: Path) -> None:
    path = write(tmp_path / "x", "a B-PER\n\nb I-PER\n")
    with pytest.raises(DataError, match="x, line 3: I-PER begins a sentence, which IOB2 does not allow: write B-PER"):
        list(read_tagged([path], bad=BadLines(), on_bad="refuse"))


def test_columns_that_are_not_there_and_files_without_sentences_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x", "a b O\n")
    with pytest.raises(DataError, match=r"line 1: 3 columns where data.tag = 3 asks for more, counted from 0: 'a b O'"):
        list(read_tagged([path], tag=3, bad=BadLines(), on_bad="refuse"))
    with pytest.raises(DataError, match="x: no sentence; name a file with a word and its tag on every line"):
        list(read_tagged([write(path, "\n\n")], bad=BadLines()))


def test_labels_are_closed_under_their_kinds() -> None:
    sentences = [Sentence(1, ("a", "b"), ("O", "B-PER")), Sentence(4, ("c",), ("B-LOC",))]
    assert labels(sentences, "iob2") == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    assert labels(sentences, "plain") == ["B-LOC", "B-PER", "O"]


# ---- words as tokens


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_tokens_of_the_words_are_those_of_the_text(kind: Kind) -> None:
    tokenizer = TOKENIZERS[kind]
    (words,) = spell(tokenizer, [WORDS])
    assert len(words) == len(WORDS)
    assert np.concatenate(words).tolist() == tokenizer.encode(" ".join(WORDS))
    for word, tokens in zip(WORDS, words, strict=True):
        assert "".join(tokenizer.decode(tokens).split()) == word
    assert [len(tokens) > 0 for tokens in spell(tokenizer, [["a", "", "b"]])[0]] == [True] * 3
    assert spell(tokenizer, [[]]) == [[]]


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=12), st.integers(4, 30))
@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_every_word_keeps_one_label_however_the_sentence_is_cut(kind: Kind, words: list[str], longest: int) -> None:
    tokenizer = TOKENIZERS[kind]
    marks = tokenizer.marks
    (tokens,) = spell(tokenizer, [words])
    found = list(rows(tokens, range(len(words)), marks, longest=longest, sentence=3, line=8))
    assert [label for row in found for label in row.labels if label != NONE] == list(range(len(words)))
    for row in found:
        assert len(row.tokens) == len(row.labels) <= longest
        assert (row.tokens[0], row.tokens[-1]) == (marks.begin, marks.end)
        assert (row.sentence, row.line) == (3, 8)
        for place in np.flatnonzero(row.labels != NONE):
            word = tokens[row.labels[place]][: longest - 2]
            assert row.tokens[place : place + len(word)].tolist() == word.tolist(), "a word is never cut in two"
    sizes = [sum(len(tokens[label]) for label in row.labels if label != NONE) for row in found]
    for size, after in zip(sizes, found[1:], strict=False):
        assert size + len(tokens[after.labels[1]]) > longest - 2, "a sequence takes as many words as it can"


def test_what_is_stored_is_what_was_read(tmp_path: Path) -> None:
    tokenizer, bad = TOKENIZERS["wordpiece"], BadLines()
    sentences = [
        Sentence(1, tuple(WORDS), ("B-PER", "I-PER", "O", "B-LOC", "O", "O", "O", "O", "O", "O", "B-LOC")),
        Sentence(20, ("Éva",), ("B-DOG",)),
        Sentence(30, ("Smith", "in"), ("B-PER", "O")),
    ]
    known = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    told: list[int] = []
    Words.build(tmp_path / "w", sentences, tokenizer, known, longest=9, bad=bad, progress=told.append)
    found = Words.open(tmp_path / "w")
    assert (found.labels, bad.counts, told) == (known, {UNKNOWN: 1}, [2])
    stored = [found[place] for place in range(len(found))]
    assert [len(row.tokens) for row in stored] == found.lengths.tolist()
    for number, sentence in enumerate([sentences[0], sentences[2]]):
        mine = [row for row in stored if row.sentence == number]
        assert {row.line for row in mine} == {sentence.line}
        assert [known[label] for row in mine for label in row.labels if label != NONE] == list(sentence.tags)
    with pytest.raises(DataError, match=r"line 20: .* has the tag 'B-DOG', but the labels are only: O, B-LOC, I-LOC"):
        Words.build(tmp_path / "v", sentences, tokenizer, known, longest=9, bad=BadLines(), on_bad="refuse")
    with pytest.raises(DataError, match=r"no sentence is left .* skipped: 1 with a tag that the labels lack"):
        Words.build(tmp_path / "v", sentences[1:2], tokenizer, known, longest=9, bad=BadLines())


@pytest.mark.data("conll2003")
def test_conll_2003_is_iob1_without_a_flaw(data_dir: Callable[[str], Path]) -> None:
    path = data_dir("conll2003") / "eng.testa"
    read = list(read_tagged([path], scheme="iob1", bad=BadLines(), on_bad="refuse"))
    assert len(read) == 3250
    assert labels(read, "iob1") == ["O", *(f"{p}-{kind}" for kind in ("LOC", "MISC", "ORG", "PER") for p in "BI")]
    assert sum(tag[0] == "B" for sentence in read for tag in sentence.tags) == 5942
    with pytest.raises(DataError, match="line 3: I-ORG follows O, which IOB2 does not allow: write B-ORG"):
        list(read_tagged([path], bad=BadLines(), on_bad="refuse"))
