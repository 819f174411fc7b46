"""Marks frame texts, survive the disk by their names, and never come out of a text; whatever their numbers are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from regard.data.batch import Batch
from regard.data.layout import for_encoder
from regard.data.pieces import pieces
from regard.data.squad import Answer
from regard.data.store import Store
from regard.data.text import BadLines
from regard.data.tokenizer import ELSEWHERE, Marks, Tokenizer, Tokenizers
from regard.data.windows import Cut
from regard.data.words import spell
from regard.errors import CheckpointError, ConfigError
from regard.tasks.masked import masked_ids

BART = Marks(pad=1, begin=2, end=2, unknown=3, mask=4, before=(0,), opening=(0,))
ROBERTA = Marks(pad=1, begin=0, end=2, unknown=3, mask=4, between=(2,))
WORDS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "b", "c"]
some = st.lists(st.integers(5, 7), max_size=9)


def listed(marks: Marks, words: dict[str, int] | None = None, size: int = 0) -> Tokenizer:
    """Whole words, with such numbers."""
    words = words or {word: number for number, word in enumerate(WORDS)}
    inner = tokenizers.Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(inner, marks, size)


def gpt2() -> Tokenizer:
    """Bytes, a few merges, and one mark for everything."""
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("Ġ", "a"), ("Ġ", "i"), ("Ġi", "s")]
    joined = {left + right: 256 + number for number, (left, right) in enumerate(merges)}
    inner = tokenizers.Tokenizer(models.BPE({**letters, **joined, "<|end|>": 259}, merges))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    inner.add_special_tokens(["<|end|>"])
    return Tokenizer(inner, Marks(pad=259, begin=259, end=259, unknown=None))


@given(some)
def test_a_frame_holds_the_words_and_nothing_else(words: list[int]) -> None:
    assert BART.source(words) == [0, *words, 2]
    assert BART.target(words) == [2, 0, *words, 2]
    assert listed(BART).decode(BART.target(words)) == listed(BART).decode(words)


def test_what_may_be_said_and_what_not() -> None:
    assert {0, 1, 2, 4} == BART.all
    assert BART.unsayable == (0, 1, 4)
    assert gpt2().marks.unsayable == ()


@pytest.mark.parametrize("marks", [BART, ROBERTA, Marks(pad=2, begin=2, end=2, unknown=None)])
def test_marks_survive_the_disk_by_name(marks: Marks, tmp_path: Path) -> None:
    one = listed(marks)
    one.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (loaded.marks, loaded.size, loaded.fingerprint) == (marks, one.size, one.fingerprint)
    assert json.loads((tmp_path / "marks.json").read_text())["end"] == "</s>"


def test_marks_that_are_ours_are_not_written(tmp_path: Path) -> None:
    ours, path = Tokenizer.train(["a b"], kind="word", size=9, marks=["mask"]), tmp_path / "tokenizer.json"
    listed(BART).save(path)
    ours.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["tokenizer.json"]
    assert Tokenizer.load(path).marks == ours.marks == Marks(0, 1, 2, 3, mask=ours.inner.token_to_id("<mask>"))


def test_both_sides_have_marks_of_their_own(tmp_path: Path) -> None:
    both = Tokenizers(listed(ROBERTA), listed(BART))
    both.save(tmp_path)
    loaded = Tokenizers.load(tmp_path)
    assert (loaded.source.marks, loaded.target.marks) == (ROBERTA, BART)
    Tokenizers(both.target, both.target).save(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["marks.json", "tokenizer.json"]


def test_other_marks_are_another_vocabulary() -> None:
    same = [listed(BART), listed(ROBERTA), listed(replace(BART, opening=())), listed(BART, size=99)]
    assert len({one.fingerprint for one in same}) == len(same)


@pytest.mark.parametrize(
    ("about", "sentence"),
    [
        ("[1", r"cannot be read as marks \(.*\); restore the file"),
        ("7", r"cannot be read as marks \(.*\); restore the file"),
        ({"pad": "<pad>", "begin": "<s>"}, r"does not say which token is 'end'; name one of the vocabulary"),
        ({"end": "</x>"}, r"end is '</x>', which the vocabulary lacks; name one of its tokens"),
        ({"mask": 4}, r"mask is 4, which the vocabulary lacks; name one of its tokens"),
        ({"before": "<s>"}, r"before is '<s>', where a list of at most 16 tokens was wanted"),
        ({"sep": "</s>"}, r"no mark is called 'sep'; there are before, begin, between, delimiter, end"),
        ({"size": "9"}, r"size is '9', where a number up to 2,000,000 was wanted"),
        ({"size": 10**9}, r"size is 1000000000, where a number up to 2,000,000 was wanted"),
        ({"size": 2}, r"size is 2, but the tokens are numbered up to 7; restore the file"),
        ({"size": 7}, r"size is 7, but the tokens are numbered up to 7; restore the file"),
    ],
)
def test_marks_that_cannot_be_used(about: object, sentence: str, tmp_path: Path) -> None:
    listed(BART).save(tmp_path / "tokenizer.json")
    least = {"pad": "<pad>", "begin": "<s>", "end": "</s>"}
    whole = {**least, **about} if isinstance(about, dict) and "begin" not in about else about
    (tmp_path / "marks.json").write_text(whole if isinstance(whole, str) else json.dumps(whole))
    with pytest.raises(CheckpointError, match=sentence):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_numbers_without_a_token_have_rows_all_the_same(tmp_path: Path) -> None:
    holes = listed(BART, {**{word: number for number, word in enumerate(WORDS)}, "far": 30})
    padded = listed(BART, size=64)
    for one, size in ((holes, 31), (padded, 64)):
        one.save(tmp_path / "tokenizer.json")
        assert Tokenizer.load(tmp_path / "tokenizer.json").size == one.size == size
        assert one.tokens([size - 2]) == ["�"]
        assert one.decode([5, size - 2, 6]) == "a b"


def test_tokens_beyond_the_model_are_unknown_to_it(tmp_path: Path) -> None:
    listed(BART, size=7).save(tmp_path / "tokenizer.json")
    one = Tokenizer.load(tmp_path / "tokenizer.json")
    assert one.size == 7
    assert one.encode("a b c") == one.encode_many(["a b c"])[0] == [5, 6, 3]


@given(st.lists(st.sampled_from([*WORDS, " ", "<|end|>"])).map(" ".join))
def test_no_text_can_forge_a_mark(text: str) -> None:
    for one in (listed(BART), gpt2(), listed(Marks(pad=2, begin=2, end=2, unknown=None, mask=4))):
        found = one.encode(text)
        assert one.marks.all.isdisjoint(found)
        assert one.encode_many([text]) == [found] == [pieces(one, [text])[0].ids.tolist()]


def test_a_word_that_cannot_be_spelt_has_one_token() -> None:
    strict = listed(Marks(pad=2, begin=2, end=2, unknown=None))
    assert [tokens.tolist() for tokens in spell(strict, [["</s>", "a"]])[0]] == [[2], [5]]
    assert [tokens.tolist() for tokens in spell(listed(BART), [["", "a"]])[0]] == [[3], [5]]


def test_marks_can_be_added_to_a_foreign_vocabulary(tmp_path: Path) -> None:
    one = gpt2()
    one.add(["delimiter", "extract"])
    assert (one.marks.delimiter, one.marks.extract, one.size) == (260, 261, 262)
    one.save(tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path / "tokenizer.json").marks == one.marks
    holes = listed(BART, {**{word: number for number, word in enumerate(WORDS)}, "far": 9})
    with pytest.raises(
        ConfigError, match=r"'<delimiter>' would get the number of 'far', since numbers before it are free; give a voc"
    ):
        holes.add(["delimiter"])


def test_two_sides_are_joint_where_numbers_mean_the_same() -> None:
    elsewhere = {ELSEWHERE + word if word == "b" else word: number for number, word in enumerate(WORDS)}
    source, target = listed(BART), listed(BART, elsewhere)
    assert Tokenizers(source, target).joint
    assert source.encode("a b") == [5, 6]
    assert target.encode("a b") == [5, 3]
    assert target.tokens([6]) == ["b"]
    assert not Tokenizers(source, listed(BART, {**elsewhere, "d": 8})).joint


def test_a_store_is_framed_by_the_marks(tmp_path: Path) -> None:
    lines = [(1, "a b", "c"), (2, "c", "a a")]

    def build(marks: Marks) -> Store:
        both = Tokenizers(listed(marks), listed(marks))
        return Store.build(tmp_path / str(marks.opening), lines, both, longest=9, bad=BadLines())

    store = build(BART)
    found = {line: [side.tolist() for side in store.pair(place)] for place, line in enumerate(store.lines)}
    assert found == {1: [[0, 5, 6, 2], [2, 0, 7, 2]], 2: [[0, 7, 2], [2, 0, 5, 5, 2]]}
    assert build(replace(BART, opening=())).fingerprint != store.fingerprint


def test_an_end_that_pads_is_still_an_end() -> None:
    batch = Batch.of([[5, 0]], [[0, 5, 0], [0, 0]], [1, 2])
    assert batch.written.tolist() == [[True, True, True], [True, True, False]]
    assert batch.tokens == int(batch.written[:, 1:].sum())
    assert torch.equal(batch.to("cpu").written, batch.written)


def test_a_second_end_stands_between_two_texts() -> None:
    reading = for_encoder([[5, 6], [7]], ROBERTA, 9)
    assert reading.tokens == [0, 5, 6, 2, 2, 7, 2]
    assert len(reading.segments) == len(reading.tokens)
    assert for_encoder([[5, 6], [7]], ROBERTA, 6).tokens == [0, 5, 2, 2, 7, 2]


def test_the_span_of_an_answer_is_counted_behind_both_ends() -> None:
    (passage,) = pieces(listed(ROBERTA), ["a b c b"])
    found = Cut(longest=9, query=3, stride=1).windows(np.array([5, 6]), passage, Answer("c", 4), ROBERTA, 0)
    for window in found:
        part = passage.ids[window.part.first : window.part.first + window.part.length]
        assert window.tokens.tolist() == [0, 5, 6, 2, 2, *part, 2]
        assert window.start == 0 or window.tokens[window.start] == 7
    assert any(window.start for window in found)
    (short, *_) = Cut(longest=7, query=3, stride=1).windows(np.array([5, 6, 7]), passage, None, ROBERTA, 0)
    assert short.tokens.tolist() == [0, 5, 6, 2, 2, 5, 2]


def test_a_mask_takes_the_space_before_it_and_leaves_the_one_behind() -> None:
    one = gpt2()
    one.add(["mask"])
    assert one.glued
    assert not any(
        Tokenizer.train(["a is"], kind=kind, size=300).glued for kind in ("bpe", "word", "char", "wordpiece")
    )
    ids = masked_ids(one, "a <mask> is", 1, None)
    assert ids == [259, *one.encode("a"), one.marks.mask, *one.encode(" is"), 259]
