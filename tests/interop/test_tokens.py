"""Vocabularies of other programs give the numbers that those programs give, on the way in and on the way out."""

from __future__ import annotations

import contextlib
import json
import random
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from interop.vocabularies import MAKE, TEXTS, merged, sentencepieces
from tokenizers import models

from regard.data.suspicion import Unfit, parse
from regard.data.tokenizer import Marks, Tokenizer, Tokenizers
from regard.errors import CheckpointError, ConfigError
from regard.interop import spm
from regard.interop.tokens import read_tokenizers, write_tokenizers

HARD = [
    "", " ", "  two  spaces  ", "e\u0301 é ﬁ Ⅳ ½ ﷺ İstanbul", "Tie\u0302\u0301ng Vie\u0323\u0302t", "你好，世界！～ﾊﾟｶﾞ",
    "🏳️‍🌈 👍🏽", "a\0b\x01c\tdef\r\ng", "x" * 300, "ab" * 3000, "\u00a0a\u3000b\u2028c\u200bd\ufeff", "▁ a▁b", "\ufdd0a",
    "<s> </s> [SEP] <|endoftext|> <unk>", "don't DON'T", "한국어 ไทย नमस्ते", "\ue000\U000f0000", "1234567",
]  # fmt: skip
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.lists(st.sampled_from(HARD)).map(" ".join)
every_family = pytest.mark.parametrize(
    "family", ["bert", "distilbert", "roberta", "bart", "gpt2", "openai-gpt", "marian"]
)


# ---- folders as they are found


@cache
def found(family: str) -> Path:
    """The folder of a family; it is only ever read."""
    folder = Path(mkdtemp())
    MAKE[family](folder)
    start = {"bart": {"decoder_start_token_id": 2, "forced_bos_token_id": 0}}.get(family, {})
    (folder / "config.json").write_text(json.dumps({"model_type": family, **start}))
    return folder


@cache
def read(family: str) -> Tokenizers:
    both = read_tokenizers(found(family), json.loads((found(family) / "config.json").read_text()))
    assert both is not None
    return both


@cache
def theirs(folder: Path) -> Any:
    library = pytest.importorskip("transformers")
    return library.AutoTokenizer.from_pretrained(str(folder))


@cache
def written(family: str) -> Path:
    folder = Path(mkdtemp())
    write_tokenizers(read(family), folder, family)
    (folder / "config.json").write_text((found(family) / "config.json").read_text())
    return folder


# ---- the same numbers

moses = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")


def agree(ours: Tokenizer, theirs: Any, some: str, **how: Any) -> bool:
    """Where a text spells a mark, they part: see the module."""
    names = {ours.inner.id_to_token(mark) for mark in ours.marks.all} | {"<unk>", "[UNK]"}
    if any(str(name) in some for name in names):
        return True
    return bool(ours.encode(some) == theirs(some, add_special_tokens=False, **how)["input_ids"])


@moses
@every_family
@given(some=text)
def test_texts_have_the_numbers_that_transformers_gives(family: str, some: str) -> None:
    both, other = read(family), theirs(found(family))
    if family == "marian":
        accents = any("\u0300" <= letter < "\u0370" for letter in some)  # see the module
        assert accents or agree(both.source, other, some)
        assert accents or agree(both.target, lambda target, **how: other(text_target=target, **how), some)
    else:
        assert agree(both.source, other, some)


@moses
@every_family
def test_what_is_written_gives_the_same_numbers_and_frames(family: str) -> None:
    both, other = read(family), theirs(written(family))
    marks = both.source.marks
    for some in (*TEXTS, *HARD):
        assert agree(both.source, other, some)
    ids = both.source.encode(TEXTS[0])
    reads, rewrites = family in ("bert", "distilbert", "roberta"), family in ("bart", "marian")
    frame = [marks.begin, *ids, marks.end] if reads else marks.source(ids) if rewrites else ids
    assert other(TEXTS[0])["input_ids"] == frame
    if family == "bart":
        assert other(TEXTS[0], TEXTS[3])["input_ids"] == [*frame, 2, *both.source.encode(TEXTS[3]), 2]
    if reads:
        pair = other(TEXTS[0], TEXTS[3])
        assert pair["input_ids"] == [*frame, *marks.between, *both.source.encode(TEXTS[3]), marks.end]
        assert ("token_type_ids" in pair) == (family == "bert")
        if family == "bert":
            assert pair["token_type_ids"] == [0] * len(frame) + [1] * (len(pair["input_ids"]) - len(frame))
    assert other.pad_token_id == marks.pad


@every_family
def test_what_is_written_is_read_again(family: str) -> None:
    config = json.loads((found(family) / "config.json").read_text())
    again = read_tokenizers(written(family), config)
    assert again is not None
    older = [path for path in written(family).iterdir() if path.name != "tokenizer.json"]
    folder = Path(mkdtemp())
    for path in older:
        (folder / path.name).write_bytes(path.read_bytes())
    old = read_tokenizers(folder, config)
    assert old is not None
    for side in ("source", "target"):
        one, other, third = (getattr(held, side) for held in (read(family), again, old))
        assert one.marks == other.marks == third.marks
        assert one.size == other.size == third.size
        for some in (*TEXTS, *HARD):
            assert one.encode(some) == other.encode(some) == third.encode(some)
            assert one.decode(one.encode(some)) == other.decode(one.encode(some)) == third.decode(one.encode(some))


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "word", "char"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "bart", "marian"])
def test_vocabularies_of_ours_can_be_given_away(kind: Any, family: str, tmp_path: Path) -> None:
    one = Tokenizer.train(TEXTS, kind=kind, size=400, marks=["mask"])
    write_tokenizers(Tokenizers(one, one), tmp_path, family)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    other = theirs(tmp_path)
    for some in TEXTS:
        assert agree(one, other, some)
        assert other.decode(one.encode(some)) == one.decode(one.encode(some))


@moses
def test_a_marian_with_two_lists_goes_as_one(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    for name, texts, numbers in (("source", TEXTS[::2], "vocab.json"), ("target", TEXTS[1::2], "target_vocab.json")):
        data = sentencepieces(texts, 120)
        (tmp_path / "in" / f"{name}.spm").write_bytes(data)
        pieces = [piece.text for piece in spm.decode(data).pieces if piece.kind == spm.NORMAL]
        listed = {text: number for number, text in enumerate(["</s>", "<unk>", *pieces, "<pad>"])}
        (tmp_path / "in" / numbers).write_text(json.dumps(listed))
    both = read_tokenizers(tmp_path / "in", {"model_type": "marian"})
    assert both is not None
    assert not both.joint
    write_tokenizers(both, tmp_path / "out", "marian")
    (tmp_path / "out" / "config.json").write_text(json.dumps({"model_type": "marian"}))
    other = theirs(tmp_path / "out")
    for some in TEXTS:
        assert agree(both.source, other, some)
        assert agree(both.target, lambda target, **how: other(text_target=target, **how), some)


def test_two_vocabularies_that_one_file_cannot_hold_are_refused(tmp_path: Path) -> None:
    """A Marian with two BPE models among them: its list of numbers is one, and each side cuts otherwise."""
    for name, texts in (("source.spm", TEXTS[::2]), ("target.spm", TEXTS[1::2])):
        (tmp_path / name).write_bytes(sentencepieces(texts, 120, model_type="bpe"))
    names = {
        piece.text
        for name in ("source", "target")
        for piece in spm.decode((tmp_path / f"{name}.spm").read_bytes()).pieces
    }
    numbers = ["</s>", "<unk>", "<pad>", *sorted(names - {"<s>", "</s>", "<unk>", "<pad>"})]
    (tmp_path / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(numbers)}))
    marian = read_tokenizers(tmp_path, {"model_type": "marian"})
    assert marian is not None
    (tmp_path / "out").mkdir()
    for both in (marian, Tokenizers.train(TEXTS[::2], TEXTS[1::2], joint=False, kind="char", size=80)):
        with pytest.raises(ConfigError, match=r"write tokens.joint = true and train again, or export to onnx or ctr"):
            write_tokenizers(both, tmp_path / "out", "marian")
        assert not any((tmp_path / "out").iterdir())


# ---- marks

ROBERTA = Marks(pad=1, begin=0, end=2, unknown=3, mask=4, between=(2,))


@pytest.mark.parametrize(
    ("family", "marks"),
    [
        ("bert", Marks(pad=0, begin=3, end=4, unknown=2, mask=5)),
        ("roberta", ROBERTA),
        ("bart", Marks(pad=1, begin=2, end=2, unknown=3, mask=4, before=(0,), opening=(0,), between=(2,))),
        ("openai-gpt", Marks(pad=0, begin=0, end=0, unknown=0)),
    ],
)
def test_marks_of_a_family(family: str, marks: Marks) -> None:
    assert read(family).target.marks == marks


def test_one_mark_does_everything_in_gpt2() -> None:
    one = read("gpt2").target
    end = one.size - 1
    assert one.marks == Marks(pad=end, begin=end, end=end, unknown=None)
    assert one.decode(one.encode("a<|endoftext|>b")) == "a<|endoftext|>b"


def test_marian_starts_with_its_padding_and_cuts_each_side_by_itself() -> None:
    both = read("marian")
    assert both.joint
    assert both.source is not both.target
    marks = both.target.marks
    assert (marks.begin, marks.end, marks.unknown) == (marks.pad, 0, 1)
    assert both.source.size == both.target.size == marks.pad + 1
    assert both.source.encode(">>deu<< Two")[0] == both.source.inner.token_to_id(">>deu<<")
    for some in TEXTS[1::2]:
        ids = both.target.encode(some)
        assert marks.unknown in ids or both.target.decode(ids) == some


def test_the_folder_says_what_its_marks_are_called(tmp_path: Path) -> None:
    inner = tokenizers.Tokenizer(models.WordLevel({"<p>": 0, "<e>": 1, "<u>": 2, "<b>": 3, "a": 4}, "<u>"))
    inner.save(str(tmp_path / "tokenizer.json"))
    config = {"model_type": "bart", "vocab_size": 9, "bos_token_id": 3, "decoder_start_token_id": 99, "pad_token_id": 0}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<e>"}, "auto_map": "evil"}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"unk_token": "<u>", "eos_token": "a"}))
    both = read_tokenizers(tmp_path, config)
    assert both is not None
    assert both.target.marks == Marks(pad=0, begin=1, end=1, unknown=2, before=(3,), between=(1,))
    assert both.target.size == 9
    (tmp_path / "generation_config.json").write_text(json.dumps({"forced_bos_token_id": 4}))
    for family in ("bart", "marian"):
        forced = read_tokenizers(tmp_path, {**config, "model_type": family})
        assert forced is not None
        assert forced.target.marks.opening == (4,), "which nothing but the folder says"


def test_tokens_that_were_added_later_keep_their_numbers(tmp_path: Path) -> None:
    for path in found("bert").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    size = read("bert").source.size
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<new>": size, "<two>": size + 1}))
    both = read_tokenizers(tmp_path, {"model_type": "bert"})
    assert both is not None
    assert both.source.encode("<two><new>") == [size + 1, size]
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<new>": size + 7}))
    with pytest.raises(CheckpointError, match=r"gives '<new>' the number \d+, which is not the next one"):
        read_tokenizers(tmp_path, {"model_type": "bert"})


# ---- what cannot be read


def test_a_folder_without_a_vocabulary(tmp_path: Path) -> None:
    assert read_tokenizers(tmp_path, {"model_type": "gpt2"}) is None


@pytest.mark.parametrize(
    ("family", "file", "data", "sentence"),
    [
        ("bert", "vocab.txt", b"a\nb\n", r"its unknown word '\[UNK\]' is none of its tokens\); fetch it again"),
        ("bert", "vocab.txt", b"\xff\xfe[UNK]", r"vocab.txt: cannot be read as a vocabulary \(.*utf-8"),
        ("gpt2", "merges.txt", b"a b c\n", r"a line does not name two pieces"),
        ("gpt2", "merges.txt", "ż ź\n".encode(), r"merges.txt: cannot be read as a vocabulary \(.*\); fetch it again"),
        ("bert", "vocab.txt", b"\n" * 2_000_001, r"it has more than 2,000,000 lines"),
        ("gpt2", "vocab.json", b'{"a": -1}', r"its tokens are not numbered from 0 to less than 2,000,000"),
        ("gpt2", "vocab.json", b'{"a": true}', r"its tokens are not numbered from 0"),
        ("gpt2", "vocab.json", b"{}", r"it has 0 tokens"),
        ("gpt2", "tokenizer_config.json", b"[]", r"tokenizer_config.json"),
        (
            "marian",
            "source.spm",
            b"\x0a\xff\xff\xff\xff\x0f",
            r"source.spm: cannot be .* \(it is cut short\); fetch it",
        ),
        ("marian", "target.spm", b"", r"target.spm: cannot be read as a vocabulary \(it has no pieces\)"),
        ("marian", "vocab.json", b'{"<unk>": 0, "a": 0}', r"names one twice, or has no unknown one"),
    ],
)
def test_files_that_cannot_be_used(family: str, file: str, data: bytes, sentence: str, tmp_path: Path) -> None:
    for path in found(family).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / file).write_bytes(data)
    with pytest.raises(CheckpointError, match=sentence):
        read_tokenizers(tmp_path, {"model_type": family})


@pytest.mark.parametrize(
    ("size", "sentence"),
    [
        (10, r"no token of the vocabulary ends a text; name one as eos_token in tokenizer_config.json"),
        ("many", r"vocab_size is 'many', where a number up to 2,000,000 was wanted"),
        (10**12, r"vocab_size is 1000000000000, where a number up to"),
    ],
)
def test_a_vocabulary_of_another_model(size: object, sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        read_tokenizers(found("gpt2"), {"model_type": "gpt2", "vocab_size": size})


def test_a_vocabulary_that_spells_must_fit_its_model(tmp_path: Path) -> None:
    merged(tmp_path, ["<|endoftext|>"], unk_token="<|endoftext|>")
    sentence = r"numbered up to \d+, but the model has 300 words; the two belong to different models"
    with pytest.raises(CheckpointError, match=sentence):
        read_tokenizers(tmp_path, {"model_type": "gpt2", "vocab_size": 300})


def test_what_has_no_row_is_no_mark() -> None:
    both = read_tokenizers(found("roberta"), {"model_type": "roberta", "vocab_size": 4})
    assert both is not None
    assert both.target.marks == Marks(pad=1, begin=0, end=2, unknown=3, between=(2,))
    assert set(both.target.encode("<mask> two")) == {3}


def test_a_vocabulary_without_an_end(tmp_path: Path) -> None:
    tokenizers.Tokenizer(models.WordLevel({"a": 0}, "a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(CheckpointError, match=r"no token of the vocabulary ends a text; name one as eos_token in"):
        read_tokenizers(tmp_path, {"model_type": "gpt2"})


@every_family
def test_damaged_files_are_refused_or_still_a_vocabulary(family: str, tmp_path: Path) -> None:
    chance = random.Random(0)
    whole = {path.name: path.read_bytes() for path in found(family).iterdir() if path.name != "config.json"}
    for _ in range(20):
        name = chance.choice(sorted(whole))
        for file, data in whole.items():
            (tmp_path / file).write_bytes(data)
        where, data = chance.randrange(len(whole[name])), bytearray(whole[name])
        data[where : where + chance.choice([0, 1, 30])] = chance.choice([b"", b"\0", b"\xff" * 9, b'"', b"}"])
        (tmp_path / name).write_bytes(bytes(data))
        with contextlib.suppress(CheckpointError):
            both = read_tokenizers(tmp_path, {"model_type": family})
            assert both is not None
            assert both.source.marks.all.isdisjoint(both.source.encode("Two men </s>"))


# ---- SentencePiece


@pytest.mark.parametrize(
    "how",
    [
        {"model_type": "unigram"},
        {"model_type": "bpe"},
        {"model_type": "unigram", "byte_fallback": True},
        {"model_type": "bpe", "byte_fallback": True},
        {"model_type": "unigram", "normalization_rule_name": "identity", "remove_extra_whitespaces": False},
        {"model_type": "unigram", "add_dummy_prefix": False, "user_defined_symbols": ["<new>"]},
        {"model_type": "unigram", "normalization_rule_name": "nfkc_cf"},
    ],
)
def test_texts_are_cut_as_sentencepiece_cuts_them(how: dict[str, Any]) -> None:
    size = 500 if how.get("byte_fallback") else 200
    data = sentencepieces([*TEXTS, *HARD[1:8]], size, **how)
    original = pytest.importorskip("sentencepiece").SentencePieceProcessor(model_proto=data)
    model = spm.decode(data)
    inner = parse(json.dumps(spm.to_json(model)).encode())
    again = pytest.importorskip("sentencepiece").SentencePieceProcessor(model_proto=spm.encode(model))
    for some in (*TEXTS, *HARD, "unseen Ünsinn", "<new>a<new>"):
        if any(name in some for name in ("</s>", "\0", "\ufdd0")):
            continue
        assert inner.encode(some, add_special_tokens=False).ids == original.encode(some) == again.encode(some), some


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_reader(data: bytes) -> None:
    for some in (data, b"\x0a" + bytes([len(data) % 128]) + data):
        with contextlib.suppress(Unfit):
            assert spm.decode(some).pieces


def test_models_that_are_not_known() -> None:
    piece = spm.Piece("a")
    with pytest.raises(Unfit, match="neither a unigram model nor a BPE"):
        spm.decode(spm.encode(spm.Model((piece,), kind=4)))
    with pytest.raises(Unfit, match="a piece occurs twice"):
        spm.decode(spm.encode(spm.Model((piece, piece))))
