"""Questions come out as they went in, and windows are those of a brute-force reader."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.pieces import pieces
from regard.data.squad import ABSENT, BLANK, NO_ANSWER, SHAPE, Answer, Question, read_questions
from regard.data.text import BadLines
from regard.data.tokenizer import Kind, Tokenizer
from regard.data.windows import Cut, Windows, parts
from regard.errors import ConfigError, DataError

PASSAGE = "The café İstanbul opened in 1973 . Éva Smith ran it until e\u0301té 1980 , then  Zoë ran it ."
TOKENIZERS = {
    (kind, small): Tokenizer.train([PASSAGE] * 3, kind=kind, size=size, lowercase=small)
    for kind, size in (("bpe", 320), ("unigram", 320), ("wordpiece", 120), ("word", 60), ("char", 60))
    for small in (False, True)
}


def ask(**changes: Any) -> dict[str, Any]:
    question = {"id": "q1", "question": "Who?", "answers": [{"text": "Éva Smith", "answer_start": 35}]}
    return {**question, **changes}


def write(path: Path, *asked: dict[str, Any], passage: str = PASSAGE) -> Path:
    article = {"title": "t", "paragraphs": [{"context": passage, "qas": list(asked)}]}
    text = json.dumps({"version": "2.0", "data": [article]}).encode()
    pack = {".xz": lzma.compress, ".gz": gzip.compress}
    path.write_bytes(pack.get(path.suffix, bytes)(text))
    return path


def read(path: Path, **how: Any) -> list[Question]:
    return list(read_questions([path], bad=BadLines(), **{"on_bad": "refuse", **how}))


# ---- reading


@pytest.mark.parametrize("name", ["x.json", "x.json.xz", "x.json.gz"])
def test_questions_come_with_their_passage_and_answers(tmp_path: Path, name: str) -> None:
    (question,) = read(write(tmp_path / name, ask()))
    assert question == Question("q1", "Who?", PASSAGE, (Answer("Éva Smith", 35),))


@pytest.mark.parametrize(("said", "found"), [(5, 5), (17, 17), (-1, 5), (0, 5), (6, 5), (13, 17), (99, 17)])
def test_an_answer_that_stands_elsewhere_is_found_at_the_nearest_place(tmp_path: Path, said: int, found: int) -> None:
    asked = ask(answers=[{"text": "in", "answer_start": said}])
    path = write(tmp_path / "x.json", asked, passage="only in the park in")
    assert read(path)[0].answers == (Answer("in", found),)


@pytest.mark.parametrize(
    "asked", [ask(is_impossible=True), ask(answers=[]), ask(answers=[], is_impossible=True, plausible_answers=[1])]
)
def test_a_question_may_have_no_answer_where_that_is_allowed(tmp_path: Path, asked: dict[str, Any]) -> None:
    path = write(tmp_path / "x.json", asked)
    assert read(path, impossible=True)[0].answers == ()
    with pytest.raises(DataError, match=r"id q1 has no answer .task.impossible = true allows that.; mend it"):
        read(path)


BAD = [
    (ask(answers=[{"text": "Zoe", "answer_start": 3}]), ABSENT, "q1 has the answer 'Zoe', which is not in its passage"),
    (ask(answers=[{"text": " ", "answer_start": 3}]), NO_ANSWER, "id q1 has an empty answer; leave it out"),
    (ask(question=" "), BLANK, "id q1 has an empty question; mend it, or set data.bad_lines"),
    ({"question": "Who?"}, SHAPE, "id, question, answers or answer_start is missing: '.*Who.*'; mend it"),
    (ask(answers=[{"text": "in"}]), SHAPE, "answer_start is missing"),
    (7, SHAPE, "is missing: '7'"),
]


@pytest.mark.parametrize(("asked", "kind", "sentence"), BAD)
def test_a_bad_question_is_counted_or_refused(tmp_path: Path, asked: Any, kind: str, sentence: str) -> None:
    path, bad = write(tmp_path / "x.json", ask(id="good"), asked), BadLines()
    assert [question.id for question in read_questions([path], bad=bad)] == ["good"]
    assert (bad.read, bad.counts) == (2, {kind: 1})
    assert str(bad) == f"1 of 2 questions skipped: 1 {kind} (question 2)"
    with pytest.raises(DataError, match=f"x.json, question 2: .*{sentence}"):
        read(path)


def test_a_file_of_bad_questions_alone_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.json", ask(question=""), ask(question=""))
    with pytest.raises(
        DataError, match=r"x.json: no question is left \(2 of 2 questions skipped: 2 with nothing asked"
    ):
        read(path, on_bad="skip")


FILES = [
    (b"", "not JSON .*; name a file in SQuAD's format"),
    (b"\xff{}", "not UTF-8 at byte 0; save it as UTF-8"),
    (b"[]", "JSON, but not SQuAD's; write .*paragraphs"),
    (b'{"data": [{"paragraphs": [{"qas": []}]}]}', "JSON, but not SQuAD's; write"),
    (b'{"data": []}', "asks nothing; name a file with questions"),
]


@pytest.mark.parametrize(("data", "sentence"), FILES)
def test_a_file_that_is_no_squad_is_refused(tmp_path: Path, data: bytes, sentence: str) -> None:
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(DataError, match=f"x.json: {sentence}"):
        read(tmp_path / "x.json")
    with pytest.raises(DataError, match=r"y.json: no such file; name one that is there"):
        read(tmp_path / "y.json")
    (tmp_path / "z.json.xz").write_bytes(lzma.compress(data + b" ")[:-9])
    with pytest.raises(DataError, match=r"z.json.xz: not a whole .xz file .*; compress it again, or name the plain"):
        read(tmp_path / "z.json.xz")


# ---- tokens that know their letters


@pytest.mark.parametrize(("kind", "small"), TOKENIZERS)
def test_tokens_point_into_the_text_as_it_came(kind: Kind, small: bool) -> None:
    tokenizer = TOKENIZERS[kind, small]
    (found,) = pieces(tokenizer, [PASSAGE])
    assert found.ids.tolist() == tokenizer.encode(PASSAGE)
    covered = {place for start, end in zip(found.starts, found.ends, strict=True) for place in range(start, end)}
    assert covered == {place for place, letter in enumerate(PASSAGE) if not letter.isspace()}
    for answer in ("café", "İstanbul", "Éva Smith", "e\u0301té 1980", "Zoë ran", "1973"):
        start = PASSAGE.index(answer)
        first, last = found.about(start, start + len(answer)) or (0, 0)
        assert PASSAGE[found.starts[first] : found.ends[last]] == answer
    assert found.about(3, 4) is None, "a space is nobody's"


def test_a_text_cannot_say_a_mark() -> None:
    tokenizer = Tokenizer.train(["a b"], kind="word", size=9)
    unknown = tokenizer.marks.unknown
    assert pieces(tokenizer, ["<eos> a <pad>"])[0].ids.tolist() == [unknown, *tokenizer.encode("a"), unknown]
    assert [len(column) for column in pieces(tokenizer, [""])[0]] == [0, 0, 0]


# ---- windows


@given(st.integers(0, 90), st.integers(1, 30), st.integers(1, 40))
def test_each_token_counts_where_it_has_most_context(tokens: int, room: int, stride: int) -> None:
    found = parts(tokens, room, stride)
    spans, start = [], 0
    while True:  # as the authors' code goes
        length = min(tokens - start, room)
        spans.append((start, length))
        if start + length == tokens:
            break
        start += min(length, stride)
    assert [(part.first, part.length) for part in found] == spans
    for token in range(tokens):
        best, where = None, None
        for number, (first, length) in enumerate(spans):
            if first <= token < first + length:
                score = min(token - first, first + length - 1 - token) + 0.01 * length
                if best is None or score > best:
                    best, where = score, number
        assert [number for number, part in enumerate(found) if part.home <= token < part.away] == [where]


@given(st.data())
@pytest.mark.parametrize(("kind", "small"), [("wordpiece", True), ("bpe", False)])
def test_windows_hold_question_part_and_answer(kind: Kind, small: bool, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind, small]
    marks = tokenizer.marks
    start = data.draw(st.integers(0, len(PASSAGE) - 1))
    end = data.draw(st.integers(start + 1, min(len(PASSAGE), start + 12)))
    query, passage = pieces(tokenizer, ["who ran it until 1980 ?", PASSAGE])
    cut = Cut(data.draw(st.integers(9, 60)), query=data.draw(st.integers(1, 5)), stride=data.draw(st.integers(1, 30)))
    asked = query.ids[: cut.query].tolist()
    inside = [i for i, (a, b) in enumerate(zip(passage.starts, passage.ends, strict=True)) if a < end and b > start]
    seen = set()
    for window in cut.windows(query.ids, passage, Answer(PASSAGE[start:end], start), marks, 7):
        told = passage.ids[window.part.first : window.part.first + window.part.length].tolist()
        assert window.tokens.tolist() == [marks.begin, *asked, marks.end, *told, marks.end]
        assert len(window.tokens) <= cut.longest
        assert window.question == 7
        here = range(window.part.first, window.part.first + window.part.length)
        seen.update(here)
        if inside and all(token in here for token in inside):
            first, last = window.start - window.passage, window.end - window.passage
            assert (first, last) == (here.index(inside[0]), here.index(inside[-1]))
            assert window.tokens[window.start] == passage.ids[inside[0]]
        else:
            assert (window.start, window.end) == (0, 0)
    assert seen == set(range(len(passage.ids)))


def test_a_window_without_room_for_the_passage_is_refused() -> None:
    said = "data.longest = 16 leaves no room for a passage beside task.question = 13; write data.longest = 17 or more"
    with pytest.raises(ConfigError, match=said):
        Cut(16, 13, 8)
    tokenizer = TOKENIZERS["word", False]
    (window,) = Cut(17, 13, 8).windows(np.arange(20), pieces(tokenizer, ["a"])[0], None, tokenizer.marks, 0)
    assert len(window.tokens) == 17


def stored(folder: Path, cut: Cut = Cut(24, 6, 5)) -> tuple[list[Question], Tokenizer, Windows]:
    tokenizer = TOKENIZERS["wordpiece", False]
    other = "Nobody asked Zoë . " * 9
    questions = [
        Question("a", "who ran it until 1980 and then ?", PASSAGE, (Answer("Éva Smith", 35), Answer("Zoë", 74))),
        Question("b", "when ?", PASSAGE, ()),
        Question("c", "who \ud800 ?", other, (Answer("Nobody", 0),)),
    ]
    return questions, tokenizer, Windows.build(folder, questions, tokenizer, cut)


def test_what_is_stored_is_what_was_cut(tmp_path: Path) -> None:
    questions, tokenizer, built = stored(tmp_path / "w")
    found = Windows.open(tmp_path / "w", tokenizer.marks)
    assert found.fingerprint == built.fingerprint
    assert found.questions == questions
    place = 0
    for number, question in enumerate(questions):
        query, passage = pieces(tokenizer, [question.text, question.passage])
        for mine, theirs in zip(found.passage(number), passage, strict=True):
            assert mine.tolist() == theirs.tolist()
        answer = question.answers[0] if question.answers else None
        for window in Cut(24, 6, 5).windows(query.ids, passage, answer, tokenizer.marks, number):
            mine = found[place]
            assert mine.tokens.tolist() == window.tokens.tolist()
            assert mine[1:] == window[1:]
            assert found.lengths[place] == len(window.tokens)
            place += 1
    assert place == len(found)


def test_the_fingerprint_is_that_of_text_and_cut(tmp_path: Path) -> None:
    marks = {
        stored(tmp_path / str(n), cut)[2].fingerprint for n, cut in enumerate([Cut(24, 6, 5)] * 2 + [Cut(24, 6, 6)])
    }
    assert len(marks) == 2


def test_a_broken_store_is_refused(tmp_path: Path) -> None:
    _, tokenizer, _ = stored(tmp_path / "w")
    tokens = tmp_path / "w" / "tokens"
    tokens.write_bytes(tokens.read_bytes()[:-4])
    with pytest.raises(DataError, match=r"tokens has .* entries where .* were written.; delete the folder"):
        Windows.open(tmp_path / "w", tokenizer.marks)
    tokens.unlink()
    with pytest.raises(DataError, match="tokens: no such file, so the data is not whole; delete the folder"):
        Windows.open(tmp_path / "w", tokenizer.marks)


@pytest.mark.data("squad")
def test_the_answers_of_squad_are_found_in_their_windows(data_dir: Callable[[str], Path], tmp_path: Path) -> None:
    bad = BadLines()
    questions = list(read_questions([data_dir("squad") / "dev-v1.1.json"], bad=bad))[::20]
    assert (bad.read, len(bad)) == (10_570, 0)
    tokenizer = Tokenizer.train([question.passage for question in questions], kind="bpe", size=2000)
    found = Windows.build(tmp_path / "w", questions, tokenizer, Cut(384, 64, 128))
    answered = set()
    for window in (found[place] for place in range(len(found))):
        question, passage = found.questions[window.question], found.passage(window.question)
        if window.start:
            shift = window.part.first - window.passage
            text = question.passage[passage.starts[window.start + shift] : passage.ends[window.end + shift]]
            assert question.answers[0].text in text
            answered.add(window.question)
    assert len(answered) == len(questions)
