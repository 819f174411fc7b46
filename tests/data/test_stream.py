"""A stream is the text that went in, and every token of it is predicted once."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.config import read_toml
from regard.data import stream as module
from regard.data.store import Mapped
from regard.data.stream import Excerpts, Lanes, Piece, Stream, Windows, in_order, read_text
from regard.data.text import BadLines
from regard.data.tokenizer import EOS, Tokenizer
from regard.errors import ConfigError, DataError
from regard.recipes import find_recipe

TEXT = "First Citizen:\r\nBefore we  proceed, hear me.\n\n\n\tAll: Äußerst 東京 \u2028 speak!\n"
KINDS: dict[str, int] = {"char": 200, "bpe": 300, "unigram": 300}


def tokenizer(kind: Any = "char", text: str = TEXT) -> Tokenizer:
    return Tokenizer.train([text], kind=kind, size=KINDS[kind])


def counting(tmp_path: Path, count: int, *, end: int = EOS) -> Stream:
    """A stream of the numbers 0, 1, 2, …, so that a token tells its place."""
    np.arange(count, dtype="<u4").tofile(tmp_path / "tokens")
    return Stream(Mapped(tmp_path / "tokens", np.dtype("<u4")), end, "counting", 0, count)


def tokens_of(stream: Stream) -> list[int]:
    return stream.read(np.array([0]), len(stream))[0].tolist()


# ---- text in


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_comes_back_letter_by_letter(kind: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(TEXT.encode())
    words = tokenizer(kind)
    stream = Stream.build(tmp_path / "s", read_text([tmp_path / "text"], "file", bad=BadLines()), words)
    assert words.decode(tokens_of(stream)) == TEXT


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_document_is_encoded_as_if_it_were_read_at_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = " ".join(f"word{number}  {TEXT}" for number in range(30))
    words = tokenizer(kind, text)
    monkeypatch.setattr(module, "PIECE", 50)
    monkeypatch.setattr(module, "BLOCK", 120)
    (tmp_path / "text").write_bytes(text.encode())
    pieces = list(read_text([tmp_path / "text"], "file", bad=BadLines()))
    assert len(pieces) > 20
    assert "".join(piece.text for piece in pieces) == text
    assert not any(piece.ends for piece in pieces), "the last file is cut off anywhere"
    assert tokens_of(Stream.build(tmp_path / "s", pieces, words)) == words.encode(text)
    twice = read_text([tmp_path / "text"] * 2, "file", bad=BadLines())
    assert tokens_of(Stream.build(tmp_path / "t", twice, words)) == [*words.encode(text), EOS, *words.encode(text)]


def test_a_text_without_spaces_is_one_piece_however_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 10)
    (tmp_path / "text").write_text("東京\n" * 50, "utf-8")
    assert list(read_text([tmp_path / "text"], "file", bad=BadLines())) == [Piece("東京\n" * 50, ends=False)]


@pytest.mark.parametrize(
    ("documents", "found"),
    [
        ("file", ["one\ntwo\n\n \nthree\n", "four"]),
        ("line", ["one", "two", "three", "four"]),
        ("every_line", ["one", "two", "", " ", "three", "four"]),
        ("blank", ["one\ntwo\n", "three\n", "four"]),
        ("spelt", ["one<eos>two<eos><eos> <eos>three<eos>", "four"]),
    ],
)
def test_what_a_document_is(documents: Any, found: list[str], tmp_path: Path) -> None:
    """A byte order mark is no text; an end mark stands after each document, but not after the last file."""
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfone\ntwo\n\n \nthree\n")
    (tmp_path / "b.xz").write_bytes(lzma.compress(b"four"))
    words = tokenizer("char", "one two three four <eos>\n")
    pieces = list(read_text([tmp_path / "a", tmp_path / "b.xz"], documents, bad=BadLines()))
    assert [piece.text for piece in pieces] == found
    stream = Stream.build(tmp_path / "s", pieces, words)
    assert [words.decode(ids) for ids in stream.documents()] == found
    assert tokens_of(stream).count(EOS) == len(found) - (documents in ("file", "spelt"))


@pytest.mark.parametrize(
    ("file", "recipe", "count"),
    [
        pytest.param("ptb/ptb.train.txt", "tcn-ptb", 929_589, marks=pytest.mark.data("ptb")),
        pytest.param("ptb/ptb.test.txt", "tcn-ptb", 82_430, marks=pytest.mark.data("ptb")),
        pytest.param("wikitext2/wiki.test.tokens", "tcn-wikitext103", 245_569, marks=pytest.mark.data("wikitext2")),
    ],
)
def test_words_are_as_many_as_published(
    file: str, recipe: str, count: int, tmp_path: Path, data_dir: Callable[[str], Path]
) -> None:
    """A line is its words and an end mark; and when it is measured, every token is counted but the first."""
    folder, name = file.split("/")
    path, documents = data_dir(folder) / name, read_toml(find_recipe(recipe))["data"]["documents"]
    words = Tokenizer.train(path.read_text("utf-8").splitlines(), kind="word", size=50_000)
    stream = Stream.build(tmp_path / "s", read_text([path], documents, bad=BadLines()), words)
    assert len(stream) == count
    assert sum(batch.tokens for batch in in_order(stream, window=80, tokens=8000, context=40)) == count - 1


def test_bad_lines_are_counted_or_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"good\nb\xffd\ngood\n")
    bad = BadLines()
    assert list(read_text([tmp_path / "text"], "file", bad=bad)) == [Piece("good\ngood\n", ends=False)]
    assert str(bad) == "1 of 3 lines skipped: 1 not UTF-8 (line 2)"
    with pytest.raises(DataError, match=r"text, line 2: not UTF-8 at byte 1 of the line; mend it, or set data.bad_l"):
        list(read_text([tmp_path / "text"], "file", bad=BadLines(), on_bad="refuse"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "latin").write_bytes(b"caf\xe9\nn\xe9\n")
    (tmp_path / "half.xz").write_bytes(lzma.compress(b"text" * 99)[:40])
    for name, sentence in (
        ("nowhere", "nowhere: no such file; name one that is there"),
        (".", "a folder; name the files in it"),
        ("empty", "empty: empty; name a file with text in it"),
        ("latin", "latin: no line of it is UTF-8; save it as UTF-8"),
        ("half.xz", r"half.xz: not a whole .xz file .*; compress it again"),
    ):
        with pytest.raises(DataError, match=sentence):
            list(read_text([tmp_path / name], "file", bad=BadLines()))


# ---- on disk


def test_a_fingerprint_names_text_and_vocabulary(tmp_path: Path) -> None:
    def fingerprint(text: str, words: Tokenizer) -> str:
        return Stream.build(tmp_path / "s", [Piece(text)], words).fingerprint

    words = tokenizer()
    one = fingerprint("hear me", words)
    assert one == fingerprint("hear me", words)
    assert one != fingerprint("hear us", words)
    assert one != fingerprint("hear me", tokenizer("bpe"))


def test_a_build_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    Stream.build(tmp_path / "s", [Piece("hear me")], tokenizer())
    with pytest.raises(DataError, match="t: no text is left; give files with text in them"):
        Stream.build(tmp_path / "t", [], tokenizer())
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_damage_is_noticed(tmp_path: Path) -> None:
    def rewrite(folder: Path, **values: object) -> None:
        about = json.loads((folder / "stream.json").read_text())
        (folder / "stream.json").write_text(json.dumps(about | values))

    for name, harm, sentence in (
        ("format", lambda f: rewrite(f, format=9), "stream of format 9 where 2 was wanted; delete the folder"),
        ("before", lambda f: rewrite(f, format=1), "stream of format 1 where 2 was wanted; delete the folder"),
        ("count", lambda f: rewrite(f, tokens=3), "8 tokens where stream.json has 3; delete the folder"),
        ("json", lambda f: (f / "stream.json").write_text("{"), "cannot be read as a stream of tokens"),
        ("missing", lambda f: (f / "tokens").unlink(), "tokens: no such file, so this is no stream of tokens"),
    ):
        Stream.build(tmp_path / name, [Piece("hear me")], tokenizer())
        harm(tmp_path / name)
        with pytest.raises(DataError, match=sentence):
            Stream.open(tmp_path / name)


def test_the_share_at_the_end_is_held_out(tmp_path: Path) -> None:
    """As many characters as the published split of Tiny Shakespeare has."""
    train, held = counting(tmp_path, 1_115_394).split(0.1)
    assert (len(train), len(held)) == (1_003_854, 111_540)
    assert held.read(np.array([0]), 2).tolist() == [[1_003_854, 1_003_855]]
    assert train.fingerprint != held.fingerprint


# ---- windows


@given(count=st.integers(2, 300), window=st.integers(1, 50), rows=st.integers(1, 5))
def test_in_order_each_token_but_the_first_is_predicted_once(
    tmp_path_factory: pytest.TempPathFactory, count: int, window: int, rows: int
) -> None:
    stream = counting(tmp_path_factory.mktemp("s"), count)
    batches = list(in_order(stream, window=window, tokens=rows * window))
    predicted = [token for batch in batches for token in batch.text[:, 1:].flatten().tolist()]
    assert predicted == list(range(1, count))
    assert all(batch.text.shape[0] <= rows and batch.text.shape[1] <= window + 1 for batch in batches)
    assert sum(batch.tokens for batch in batches) == count - 1


@given(count=st.integers(9, 400), world=st.integers(1, 3), rows=st.integers(1, 7), seed=st.integers(0, 9))
def test_an_epoch_has_each_window_once_whatever_the_number_of_processes(
    tmp_path_factory: pytest.TempPathFactory, count: int, world: int, rows: int, seed: int
) -> None:
    windows = Windows(counting(tmp_path_factory.mktemp("s"), count), window=8, tokens=8 * rows, seed=seed)
    steps = 2 * windows.count  # enough for two epochs
    starts = [start for step in range(steps) for rank in range(world) for start in windows.batch(step, rank, world).ids]
    for epoch in range(2):
        some = starts[epoch * windows.count : (epoch + 1) * windows.count]
        assert len({start % 8 for start in some}) == 1, "they do not overlap"
        assert len(set(some)) == windows.count
        assert 0 <= min(some) <= 7
        assert count - 16 <= max(some) + 8 <= count - 1, "no more than a window is left out at either end"
    assert windows.epoch(steps, world) == steps * world * rows / windows.count


def test_a_batch_is_a_function_of_seed_and_step(tmp_path: Path) -> None:
    stream = counting(tmp_path, 5000)
    one, same, other = (Windows(stream, window=10, tokens=40, seed=seed) for seed in (1, 1, 2))
    late, again = one.batch(10**12), same.batch(10**12)
    assert late.ids == again.ids
    assert late.text[:, 0].tolist() == list(late.ids)
    assert late.text.shape == (4, 11)
    assert one.batch(3).ids != other.batch(3).ids


def test_epochs_begin_at_different_tokens_and_go_in_different_orders(tmp_path: Path) -> None:
    windows = Windows(counting(tmp_path, 5000), window=50, tokens=50)
    epochs = [[windows.batch(windows.count * e + i).ids[0] for i in range(windows.count)] for e in range(20)]
    shifts = Counter(starts[0] % 50 for starts in epochs)
    assert len(shifts) > 10
    assert len({tuple(np.argsort(starts)) for starts in epochs}) == 20


def test_a_document_is_read_from_the_end_mark_before_it(tmp_path: Path) -> None:
    words = tokenizer("char", "abc")
    stream = Stream.build(tmp_path / "s", map(Piece, ["ab", "c", "abc"]), words)
    (batch,) = in_order(stream, window=9, tokens=9, apart=True)
    assert batch.documents is not None
    assert batch.documents.tolist() == [[0, 0, 1, 1, 2, 2, 2, 2]]
    assert (batch.text[0, :-1] == EOS).nonzero().flatten().tolist() == [2, 4]
    assert next(in_order(stream, window=9, tokens=9)).documents is None


def test_windows_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"has 40 tokens where a window of data.longest = 64 needs 65; write data.longes"
    ):
        Windows(counting(tmp_path, 40), window=64, tokens=64)
    with pytest.raises(
        ConfigError, match=r"train.tokens = 32 cannot hold a window of data.longest = 64; write train.t"
    ):
        Windows(counting(tmp_path, 400), window=64, tokens=32)


# ---- context, lanes, parts


def counted(batch: Excerpts) -> list[int]:
    """The tokens that a batch predicts and counts; each has at least `context` before it, which are read."""
    assert batch.text.shape[1] - 1 - batch.wanted.shape[1] == batch.context
    return batch.wanted.flatten().tolist()


@given(count=st.integers(2, 300), window=st.integers(2, 40), rows=st.integers(1, 5), data=st.data())
def test_with_context_each_token_but_the_first_is_still_counted_once(
    tmp_path_factory: pytest.TempPathFactory, count: int, window: int, rows: int, data: st.DataObject
) -> None:
    context = data.draw(st.integers(0, window - 1))
    stream = counting(tmp_path_factory.mktemp("s"), count)
    batches = list(in_order(stream, window=window, tokens=rows * window, context=context))
    assert [token for batch in batches for token in counted(batch)] == list(range(1, count))
    assert all(batch.text.shape[0] <= rows and batch.text.shape[1] <= window + 1 for batch in batches)
    assert [batch.context for batch in batches] == [0] + [context] * (len(batches) - 1)


@given(count=st.integers(20, 400), rows=st.integers(1, 7), context=st.integers(0, 7), seed=st.integers(0, 9))
def test_an_epoch_of_random_windows_with_context_counts_no_token_twice(
    tmp_path_factory: pytest.TempPathFactory, count: int, rows: int, context: int, seed: int
) -> None:
    stream = counting(tmp_path_factory.mktemp("s"), count)
    windows = Windows(stream, window=8, tokens=8, context=context, seed=seed)
    found = [token for step in range(windows.count) for token in counted(windows.batch(step))]
    assert sorted(found) == list(range(min(found), max(found) + 1))
    assert len(found) > count - 16
    assert windows.batch(0).tokens == 8 - context


@given(
    count=st.integers(200, 900),
    rows=st.integers(1, 5),
    world=st.integers(1, 3),
    context=st.integers(0, 7),
    seed=st.integers(0, 9),
)
def test_lanes_go_on_where_they_were_and_count_each_token_once(
    tmp_path_factory: pytest.TempPathFactory, count: int, rows: int, world: int, context: int, seed: int
) -> None:
    stream = counting(tmp_path_factory.mktemp("s"), count)
    lanes = Lanes(stream, window=8, tokens=8 * rows, context=context, seed=seed)
    steps, stride = lanes.steps(world), 8 - context
    for epoch in range(2):
        turns = range(epoch * steps, (epoch + 1) * steps)
        batches = [[lanes.batch(step, rank, world) for rank in range(world)] for step in turns]
        starts = np.array([[start for batch in some for start in batch.ids] for some in batches])
        assert starts.shape == (steps, rows * world)
        assert (np.diff(starts, axis=0) == stride).all(), "each lane goes on"
        assert (np.diff(starts, axis=1) == stride * steps).all(), "a lane begins where the one before it ends"
        found = [token for some in batches for batch in some for token in counted(batch)]
        assert sorted(found) == list(range(min(found), max(found) + 1)), "each token once"
        left = count - 1 - context - len(found)
        assert 0 <= left < stride * (rows * world + 1), "no more than a step is left out"
        assert {batch.text.shape for some in batches for batch in some} == {(rows, 9)}
    assert lanes.epoch(steps, world) == 1


def test_lanes_that_go_on_begin_where_the_batch_before_ends(tmp_path: Path) -> None:
    lanes = Lanes(counting(tmp_path, 3000), window=10, tokens=40, seed=3)
    for step in range(2 * lanes.steps()):
        goes_on = lanes.batch(step).ends == list(lanes.batch(step + 1).ids)
        assert goes_on == ((step + 1) % lanes.steps() > 0)
    overlapping = Lanes(lanes.stream, window=10, tokens=40, context=1)
    assert overlapping.batch(0).ends != list(overlapping.batch(1).ids)


def test_lanes_are_a_function_of_seed_and_step(tmp_path: Path) -> None:
    stream = counting(tmp_path, 5000)
    one, same, other = (Lanes(stream, window=10, tokens=30, seed=seed) for seed in (1, 1, 2))
    assert one.batch(10**12).ids == same.batch(10**12).ids
    assert {one.batch(one.steps() * epoch).ids for epoch in range(9)} != {one.batch(0).ids}
    assert one.batch(0).ids != other.batch(0).ids
    with pytest.raises(
        DataError, match=r'has 49 windows of data.longest = 100, too few for data.order = "lanes" with 60 lanes; write'
    ):
        Lanes(stream, window=100, tokens=6000)
    assert Lanes(stream, window=100, tokens=4900).steps() == 1, "as it says"


def test_no_batch_has_more_rows_than_it_may(tmp_path: Path) -> None:
    stream = counting(tmp_path, 500)
    assert [Windows(stream, window=10, tokens=90, rows=rows).batch(0).text.shape[0] for rows in (0, 4, 99)] == [9, 4, 9]
    assert Lanes(stream, window=10, tokens=90, rows=4).batch(0).text.shape[0] == 4


@pytest.mark.parametrize("block", [2, 1 << 20])
def test_parts_and_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    parts = counting(tmp_path, 103).parts(10)
    assert [(len(part), int(part.read(np.array([0]), 1)[0, 0])) for part in parts] == [(10, 10 * i) for i in range(10)]
    assert counting(tmp_path, 3).parts(10) == []
    words, lines = tokenizer("char", "abc"), ["ab", "c", "", "abc"]
    stream = Stream.build(tmp_path / "s", map(Piece, lines), words)
    assert [words.decode(ids) for ids in stream.documents()] == lines
    assert [words.decode(ids) for ids in stream.split(0.5)[1].documents()] == ["", "abc"]
    assert [words.decode(ids) for ids in stream.split(0.5)[0].documents()] == lines[:2]
    assert [words.decode(ids) for ids in stream.split(0.2)[0].documents()] == [*lines[:3], "ab"]
