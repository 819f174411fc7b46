"""A tokenizer.json of somebody else's: what could hang, grow or crash is refused, and what is harmless is taken."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from regard.data import suspicion
from regard.data.suspicion import Unfit, parse
from regard.data.tokenizer import Tokenizer
from regard.errors import CheckpointError, DataError

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
OURS: dict[str, Any] = json.loads(Tokenizer.train(["a b c"], kind="word", size=9).to_str())


def changed(**parts: Any) -> bytes:
    return json.dumps({**OURS, **parts}).encode()


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(parts)}


def in_model(**parts: Any) -> bytes:
    return changed(model={**OURS["model"], **parts})


def charsmap(trie: int, *texts: bytes) -> str:
    return base64.b64encode(trie.to_bytes(4, "little") + bytes(8) + b"\0".join(texts)).decode()


@pytest.mark.parametrize(
    "pattern", [GPT2, GPT4, r"[\s\S]", r"@@( |$)", r"\A +| +\z", r"(?=\p{M})", r"(ab)+c?", r"a{2}[+*]+"]
)
def test_patterns_of_known_vocabularies_are_taken(pattern: str) -> None:
    assert parse(changed(pre_tokenizer=split(pattern))).encode("a b").ids


@pytest.mark.parametrize(
    "pattern",
    [r"(a+)+$", r"(?:a|a)*b", r"(a?a)+b", r"((a)*)*", r"(?:\p{L}{2,})+x", r"(a)\1+", r"(?<n>a)\k<n>", r"(?>x*){3}"],
)
def test_patterns_that_could_take_for_ever_are_refused(pattern: str) -> None:
    begun = time.monotonic()
    for part in (split(pattern), {"type": "Sequence", "pretokenizers": [split(pattern)]}):
        with pytest.raises(Unfit, match=r"the regular expression .* could take for ever"):
            parse(changed(pre_tokenizer=part))
    assert time.monotonic() - begun < 1


REPLACED = [replace({"String": "a"}, "aa")] * 7
BOMBS = {
    "cut short": (changed()[:-9], "delimiter|Expecting|Unterminated"),
    "no object": (b"[]", "it has no model"),
    "nested": (b"[" * 100_000, "recursion"),
    "too large": (b" " * (suspicion.LARGEST_FILE + 1), "more than 64 MB"),
    "many values": (b'{"model": {"x": [' + b"[]," * 4_000_001 + b"[]]}}", "more than 8,000,000 values"),
    "parts": (changed(normalizer=sequence(*[{"type": "NFC"}] * 64)), "more than 64 parts"),
    "unknown part": (changed(normalizer={"type": "Exec"}), "the unknown type 'Exec'"),
    "no table": (changed(decoder=[1]), "where a table was wanted"),
    "doubling": (changed(normalizer=sequence(*REPLACED)), "more than 64 times as long"),
    "regex": (changed(normalizer=replace({"Regex": "a"}, "b" * 99)), "more than 64 times as long"),
    "nothing": (changed(normalizer=replace({"String": ""}, "b")), "replaces what is empty"),
    "prepended": (changed(normalizer={"type": "Prepend", "prepend": "b" * 9999}), "more than 4096 letters before"),
    "long pattern": (changed(pre_tokenizer=split("a" * 3000)), "more than 2000 letters"),
    "many repetitions": (changed(pre_tokenizer=split(r"a*a*a*a*a*b")), "more than two repetitions"),
    "no pattern": (changed(pre_tokenizer=split("(a")), "Unfit|regex|end pattern|paren"),
    "charsmap": (changed(normalizer={"type": "Precompiled", "precompiled_charsmap": "?"}), "not in base64"),
    "short charsmap": (changed(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}), "is cut short"),
    "lying charsmap": (
        changed(normalizer={"type": "Precompiled", "precompiled_charsmap": charsmap(1 << 20)}),
        "is cut short",
    ),
    "long letter": (
        changed(normalizer={"type": "Precompiled", "precompiled_charsmap": charsmap(8, b"x" * 999)}),
        "more than 256 bytes of one letter",
    ),
    "no unknown word": (in_model(unk_token="<x>"), "unknown word '<x>' is none of its tokens"),
    "unigram": (changed(model={"type": "Unigram", "vocab": [["a", 0.0]]}), "does not say what an unknown word is"),
    "outside": (changed(model={"type": "Unigram", "unk_id": 9, "vocab": [["a", 0.0]]}), "UnkIdNotInVocabulary"),
    "far away": (in_model(vocab={**OURS["model"]["vocab"], "far": 4_000_000_000}), "numbered up to 4,000,000,000"),
    "long token": (in_model(vocab={**OURS["model"]["vocab"], "x" * 9999: 8}), "more than 4,096 letters"),
    "long words": (in_model(type="WordPiece", max_input_chars_per_word=10**9), "is more than 1,000"),
    "no tokens": (in_model(vocab=7), "no list of up to"),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_what_could_do_harm_is_refused(name: str, tmp_path: Path) -> None:
    data, reason = BOMBS[name]
    path = tmp_path / "tokenizer.json"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"cannot be read as a vocabulary \((?s:.*)({reason})") as told:
        Tokenizer.load(path)
    assert "restore the file" in str(told.value)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(CheckpointError, match="it is no plain file"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_nothing_is_put_around_or_cut_off_but_by_us(tmp_path: Path) -> None:
    thrice = {"Sequence": {"id": "A", "type_id": 0}}
    framed = {"type": "TemplateProcessing", "single": [thrice] * 3, "pair": [thrice], "special_tokens": {}}
    cut = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_bytes(changed(post_processor=framed, truncation=cut))
    assert Tokenizer.load(tmp_path / "tokenizer.json").encode("a b c a") == [4, 5, 6, 4]


def test_chance_is_taken_out() -> None:
    about = json.loads(Tokenizer.train(["abab"] * 9, kind="bpe", size=270).to_str())
    about["model"]["dropout"] = 0.9
    inner = parse(json.dumps(about).encode())
    assert len({tuple(inner.encode("abab" * 20).ids) for _ in range(20)}) == 1


def test_a_failure_inside_of_the_library_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspicion, "_check_pattern", lambda pattern: None)
    inner = parse(changed(normalizer=replace({"Regex": "(a+)+$"}, "x")))
    with pytest.raises(DataError, match=r"the vocabulary fails on this text \(.*retry-limit.*\); it is damaged, give"):
        Tokenizer(inner).encode("a" * 40 + "b")
