"""What is encoded comes back, no text can forge a special token, and a vocabulary survives the disk."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from regard.data.tokenizer import BOS, EOS, PAD, SPECIAL, UNK, Kind, Tokenizer, Tokenizers, join
from regard.data.vocabulary import TRAINERS
from regard.errors import CheckpointError, ConfigError, RegardError

TEXTS = [
    "Two young, white males are outside near many bushes.",
    "Several men in hard hats are operating a giant pulley system.",
    "Ein kleines Mädchen klettert in ein Spielhaus aus Holz.",
    "Zwei Männer stehen am Herd und bereiten Essen zu.",
] * 3
SMALL = {kind: Tokenizer.train(TEXTS, kind=kind, size=400) for kind in TRAINERS}
every_kind = pytest.mark.parametrize("kind", TRAINERS)
lossless = pytest.mark.parametrize("kind", ["bpe", "unigram"])


@lossless
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_nothing_is_lost_in_bytes(kind: Kind, text: str) -> None:
    ids = SMALL[kind].encode(text)
    assert SMALL[kind].decode(ids) == text
    assert UNK not in ids


@every_kind
def test_what_was_learnt_comes_back(kind: Kind) -> None:
    for text in TEXTS:
        assert SMALL[kind].decode(SMALL[kind].encode(text)) == text


@every_kind
def test_marks_stand_in_front_and_say_nothing(kind: Kind) -> None:
    tokenizer = SMALL[kind]
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    assert tokenizer.tokens([PAD, BOS, EOS, UNK]) == SPECIAL
    ids = tokenizer.encode(TEXTS[0])
    assert tokenizer.decode([BOS, *ids, EOS, PAD, PAD]) == TEXTS[0]
    assert tokenizer.size == tokenizer.inner.get_vocab_size() <= 400
    assert max(ids) < tokenizer.size


@every_kind
@given(text=st.lists(st.sampled_from([*SPECIAL, "a", " ", "men", "<", ">"])).map("".join))
def test_no_text_can_forge_a_mark(kind: Kind, text: str) -> None:
    assert not {PAD, BOS, EOS} & set(SMALL[kind].encode(text))


def test_a_text_that_marks_its_unknown_words_has_one_entry_for_them(tmp_path: Path) -> None:
    """As the Penn Treebank of language models does, and WikiText."""
    made = Tokenizer.train(["a b <unk> a <unk> <unk> <eos> c"], kind="word", size=7)
    assert made.tokens(range(made.size)) == [*SPECIAL, "a", "b", "c"]
    assert made.encode("a <unk> never <eos>") == [4, UNK, UNK, UNK]
    made.save(tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path / "tokenizer.json").fingerprint == made.fingerprint


@every_kind
def test_many_are_encoded_as_one_by_one(kind: Kind) -> None:
    texts = [*TEXTS, "", "<eos> Übermut\0 \ud800", "x" * 1000]
    assert SMALL[kind].encode_many(texts) == [SMALL[kind].encode(text) for text in texts]


@every_kind
def test_the_same_texts_give_the_same_vocabulary(kind: Kind) -> None:
    assert Tokenizer.train(iter(TEXTS), kind=kind, size=400).to_str() == SMALL[kind].to_str()


@every_kind
@pytest.mark.parametrize("text", ["", " ", "\0", "\ud800 half", "🏳️‍🌈" * 50, "e\u0301" * 500, "\u202eabc", "\n\t\r"])
def test_hostile_text_is_encoded(kind: Kind, text: str) -> None:
    tokenizer = SMALL[kind]
    ids = tokenizer.encode(text)
    assert all(UNK <= i < tokenizer.size for i in ids)
    assert all(piece.isprintable() and " " not in piece for piece in tokenizer.tokens(ids))
    assert isinstance(tokenizer.decode(ids), str)


def test_half_characters_become_question_marks() -> None:
    assert SMALL["bpe"].decode(SMALL["bpe"].encode("a\ud800b")) == "a?b"


@every_kind
def test_very_long_texts_are_no_trouble(kind: Kind) -> None:
    text = "a" * 150_000 + "é " * 25_000 + "𝒳" * 12_500
    ids = SMALL[kind].encode(text)
    assert kind not in ("bpe", "unigram") or SMALL[kind].decode(ids) == text


def test_a_megabyte_without_a_space_is_no_trouble() -> None:
    assert SMALL["bpe"].decode(SMALL["bpe"].encode("ab" * 500_000)) == "ab" * 500_000


def test_pieces_can_be_read() -> None:
    pieces = SMALL["bpe"].tokens(SMALL["bpe"].encode("Mädchen near"))
    assert "".join(pieces) == "▁Mädchen▁near"
    assert SMALL["char"].tokens(SMALL["char"].encode("a b")) == ["a", "▁", "b"]


def test_lower_case() -> None:
    for kind in TRAINERS:
        tokenizer = Tokenizer.train(TEXTS, kind=kind, size=400, lowercase=True)
        assert tokenizer.decode(tokenizer.encode(TEXTS[2])) == TEXTS[2].lower()


SPLIT = ["several men oper@@ ating a gi@@ ant pul@@ ley sys@@ tem .", "an end@@ "]


def test_words_split_beforehand_are_joined(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(SPLIT, kind="word", size=100, continuation="@@")
    tokenizer.save(tmp_path / "tokenizer.json")
    for one in (tokenizer, Tokenizer.load(tmp_path / "tokenizer.json")):
        assert (
            one.decode(one.encode(SPLIT[0])) == "several men operating a giant pulley system ." == join(SPLIT[0], "@@")
        )
        assert one.decode(one.encode("pul@@")) == "pul" == join("pul@@", "@@")
        assert one.tokens(one.encode("pul@@ ley")) == ["pul@@", "ley"]
    assert join("a@@ b", "") == "a@@ b"


@every_kind
def test_a_vocabulary_survives_the_disk(kind: Kind, tmp_path: Path) -> None:
    SMALL[kind].save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    foreign = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert loaded.fingerprint == SMALL[kind].fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]
    for text in (*TEXTS, "unseen Ünsinn 😀"):
        ids = SMALL[kind].encode(text)
        assert loaded.encode(text) == ids == foreign.encode(text).ids
        assert loaded.decode(ids) == SMALL[kind].decode(ids)


def test_fingerprints_tell_vocabularies_apart() -> None:
    assert len({tokenizer.fingerprint for tokenizer in SMALL.values()}) == len(SMALL)


@pytest.mark.parametrize("joint", [True, False])
def test_both_sides_are_kept(joint: bool, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.source.json").write_text("left from before")
    both = Tokenizers.train(TEXTS[:2], TEXTS[2:4], joint=joint, kind="word", size=50)
    both.save(tmp_path)
    loaded = Tokenizers.load(tmp_path)
    assert loaded.joint == both.joint == joint
    assert loaded.fingerprint == both.fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer.json", "tokenizer.source.json"][: 2 - joint]
    assert (UNK in loaded.target.encode(TEXTS[0])) == (not joint)
    assert UNK not in loaded.source.encode(TEXTS[0])


@pytest.mark.parametrize(("kind", "size", "least"), [("bpe", 260, 261), ("unigram", 100, 261), ("wordpiece", 50, 56)])
def test_a_vocabulary_too_small_for_the_letters(kind: Kind, size: int, least: int) -> None:
    sentence = rf"tokens.size = {size} is too small: the letters alone need tokens.size = {least} or more"
    with pytest.raises(ConfigError, match=sentence):
        Tokenizer.train(TEXTS, kind=kind, size=size)
    assert Tokenizer.train(TEXTS, kind=kind, size=least).size == least


def test_continuation_is_for_words() -> None:
    sentence = r'tokens.continuation = "@@" is for text that was split beforehand: write tokens.kind = "word", or leave'
    with pytest.raises(ConfigError, match=sentence):
        Tokenizer.train(TEXTS, kind="bpe", size=400, continuation="@@")


def test_files_that_are_no_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(
        CheckpointError, match=r"tokenizer.json: no such vocabulary; name a folder that `regard train` has"
    ):
        Tokenizer.load(path)
    for data in (b"", b"{}", b"\xff\xfe", SMALL["bpe"].to_str().encode()[:-100]):
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=r"cannot be read as a vocabulary .*; restore the file"):
            Tokenizer.load(path)
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"[PAD]": 0, "a": 1}, "[PAD]")).save(str(path))
    with pytest.raises(
        CheckpointError,
        match=r"begins with \['\[PAD\]', 'a', None, None\]; a vocabulary of ours begins with .* has a marks.json",
    ):
        Tokenizer.load(path)
    gaps = json.loads(SMALL["word"].to_str())
    gaps["model"]["vocab"]["far"] = 70_000
    path.write_text(json.dumps(gaps))
    with pytest.raises(CheckpointError, match=r"tokens are numbered up to 70000; restore the file"):
        Tokenizer.load(path)
    with pytest.raises(
        RegardError, match=r"no/tokenizer.json: cannot be written: No such file or directory; make room or"
    ):
        SMALL["char"].save(tmp_path / "no" / "tokenizer.json")


@every_kind
def test_a_damaged_file_is_refused_or_still_a_vocabulary(kind: Kind, tmp_path: Path) -> None:
    chance, text, path = random.Random(0), SMALL[kind].to_str(), tmp_path / "tokenizer.json"
    for _ in range(60):
        where, how_much = chance.randrange(len(text)), chance.choice([0, 1, 20])
        path.write_text(text[:where] + chance.choice(["", '"', "0", "}", "x"]) + text[where + how_much :])
        with contextlib.suppress(CheckpointError):
            assert all(i >= UNK for i in Tokenizer.load(path).encode("Two men <eos>"))


def test_forking_after_threads_neither_hangs_nor_complains() -> None:
    program = """
import os
from regard.data.tokenizer import Tokenizer
tokenizer = Tokenizer.train(["a b c"] * 100, kind="word", size=20)
tokenizer.encode_many(["a b c"] * 1000)
child = os.fork()
if not child:
    os._exit(0 if tokenizer.encode_many(["a b"] * 1000) else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
