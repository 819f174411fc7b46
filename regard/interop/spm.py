"""SentencePiece models (Kudo and Richardson 2018) in and out, without the library: a file is a small protobuf.

A model becomes a `tokenizer.json` that cuts texts as SentencePiece does: its table of characters, its spaces, and its
pieces with their scores (unigram) or the merges that lead to them (BPE). Marian numbers the pieces of two models in one
list of its own. A piece that only the other side knows keeps its number, and a sign before it that no text contains.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from regard.data.suspicion import LARGEST_FILE, LONGEST_TOKEN, MOST_BYTES, MOST_TOKENS, Unfit
from regard.data.tokenizer import ELSEWHERE

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE = 1, 2
LONGEST_MERGED = 256  # letters of a piece that is made of two others
SPACE, TILDE = "▁", "～"


@dataclass(frozen=True)
class Piece:
    text: str
    score: float = 0.0
    kind: int = NORMAL


@dataclass(frozen=True)
class Model:
    pieces: tuple[Piece, ...]
    kind: int = UNIGRAM
    rules: str = ""
    """What the table of characters is called: nmt_nfkc, most often."""
    charsmap: bytes = b""
    prefix: bool = True
    """Whether a space goes before every text."""
    tidy: bool = True
    """Whether spaces are dropped around a text, and all but one between words."""
    bytewise: bool = False
    """Whether what is unknown is spelt in bytes."""

    @property
    def unknown(self) -> str:
        return next((piece.text for piece in self.pieces if piece.kind == UNKNOWN), "<unk>")


# ---- the file


def decode(data: bytes) -> Model:
    pieces, kind = [], UNIGRAM
    more: dict[str, Any] = {}
    for number, value in _fields(data):
        if number == 1:
            given = dict(_fields(_bytes(value)))
            score = struct.unpack("<f", _bytes(given.get(2, b"\0\0\0\0"), 4))[0]
            pieces.append(Piece(_text(given.get(1, b"")), score, _whole(given.get(3, NORMAL))))
            if len(pieces[-1].text) > LONGEST_TOKEN:
                raise Unfit(f"a piece has more than {LONGEST_TOKEN:,} letters")
        elif number == 2:
            given = dict(_fields(_bytes(value)))
            kind, more["bytewise"] = _whole(given.get(3, UNIGRAM)), bool(given.get(35, 0))
            if given.get(24):
                raise Unfit("it puts spaces behind words")
        elif number == 3:
            given = dict(_fields(_bytes(value)))
            more |= {"rules": _text(given.get(1, b"")), "charsmap": _bytes(given.get(2, b""))}
            more |= {"prefix": bool(given.get(3, 1)), "tidy": bool(given.get(4, 1))}
            if not given.get(5, 1):
                raise Unfit("it keeps spaces as they are")
    if kind not in (UNIGRAM, BPE):
        raise Unfit("it is neither a unigram model nor a BPE")
    if not pieces:
        raise Unfit("it has no pieces")
    if len({piece.text for piece in pieces}) < len(pieces):
        raise Unfit("a piece occurs twice")
    return Model(tuple(pieces), kind, **more)


def encode(model: Model) -> bytes:
    pieces = [
        _field(1, piece.text.encode()) + bytes([2 << 3 | 5]) + struct.pack("<f", piece.score) + _field(3, piece.kind)
        for piece in model.pieces
    ]
    trainer = _field(3, model.kind) + _field(35, int(model.bytewise))
    normalizer = _field(1, model.rules.encode()) + _field(2, model.charsmap)
    normalizer += _field(3, int(model.prefix)) + _field(4, int(model.tidy)) + _field(5, 1)
    return b"".join(_field(1, piece) for piece in pieces) + _field(2, trainer) + _field(3, normalizer)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a message."""
    at = count = 0
    while at < len(data):
        count += 1
        if count > MOST_TOKENS:
            raise Unfit(f"it has more than {MOST_TOKENS:,} pieces")
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == 2:
            length, at = _varint(data, at)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise Unfit("it is no SentencePiece model")
        if length > len(data) - at:
            raise Unfit("it is cut short")
        yield number, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for turn, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << 7 * turn
        if byte < 128:
            return value, at + turn + 1
    raise Unfit("it is cut short")


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _packed(number << 3) + _packed(value)
    return _packed(number << 3 | 2) + _packed(len(value)) + value


def _packed(value: int) -> bytes:
    found = b""
    while value > 127:
        found, value = found + bytes([value & 127 | 128]), value >> 7
    return found + bytes([value])


def _bytes(value: int | bytes, length: int | None = None) -> bytes:
    if isinstance(value, int) or length not in (None, len(value)):
        raise Unfit("it is no SentencePiece model")
    return value


def _whole(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise Unfit("it is no SentencePiece model")
    return value


def _text(value: int | bytes) -> str:
    try:
        return _bytes(value).decode()
    except UnicodeDecodeError:
        raise Unfit("a piece is not in UTF-8") from None


# ---- to a tokenizer.json and back


def to_json(
    model: Model, numbers: Mapping[str, int] | None = None, marks: Collection[str] = (), codes: Collection[str] = ()
) -> dict[str, Any]:
    """`numbers` is the list that both sides share, where there is one; `marks` are those of its tokens that are no
    text, and `codes` those that are never cut: a language to write, as >>deu<<."""
    numbers = numbers or {piece.text: number for number, piece in enumerate(model.pieces)}
    if max(numbers.values()) > 2 * len(numbers) + len(model.pieces):
        raise Unfit("most of the numbers of its list have no token")
    own = {piece.text: piece for piece in model.pieces if piece.kind in (NORMAL, USER, BYTE)}
    whole = {*marks, *(piece.text for piece in model.pieces if piece.kind in (UNKNOWN, CONTROL))}
    user = {*codes, *(piece.text for piece in model.pieces if piece.kind == USER)}
    names = {number: f"{ELSEWHERE}{ELSEWHERE}{number}" for number in range(max(numbers.values()) + 1)}
    plain = {*own, *whole, *codes}
    names |= {i: text if text in plain else ELSEWHERE + text for text, i in numbers.items()}
    names |= dict(enumerate((text for text in own if text not in numbers), len(names)))
    found = {name: number for number, name in names.items()}
    if len(found) < len(names) or len({*numbers.values()}) < len(numbers) or model.unknown not in found:
        raise Unfit("its list of tokens names one twice, or has no unknown one")
    if model.kind == UNIGRAM:
        table = [[names[i], own[names[i]].score if names[i] in own else 0.0] for i in range(len(names))]
        inside = {"type": "Unigram", "unk_id": found[model.unknown], "vocab": table, "byte_fallback": model.bytewise}
    else:
        inside = {"type": "BPE", "unk_token": model.unknown, "fuse_unk": True, "byte_fallback": model.bytewise}
        inside |= {"vocab": found, "merges": [list(pair) for pair in _merges(own)]}
    kept = [text for text in sorted(whole | user, key=lambda text: found.get(text, 0)) if text in found]
    return {
        "version": "1.0", "truncation": None, "padding": None, "pre_tokenizer": None, "post_processor": None,
        "added_tokens": [_added(found[text], text, special=text in whole) for text in kept],
        "normalizer": {"type": "Sequence", "normalizers": list(_normalizers(model))},
        "decoder": {"type": "Sequence", "decoders": list(_decoders(model))},
        "model": inside,
    }  # fmt: skip


def is_code(text: str) -> bool:
    """What tells Marian which language to write."""
    return text.startswith(">>") and text.endswith("<<")


def _added(number: int, text: str, *, special: bool) -> dict[str, Any]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": number, "content": text, **plain, "special": special}


def _normalizers(model: Model) -> Iterator[dict[str, Any]]:
    yield _replace({"String": ELSEWHERE}, "\ufdd1")  # no character either
    if model.charsmap:
        if "nfkc" in model.rules:
            yield from _composed()
        yield {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.charsmap).decode()}
    if model.tidy:
        yield _replace({"Regex": " {2,}"}, " ")
        yield _replace({"Regex": r"\A +| +\z"}, "")
    if model.prefix:
        yield {"type": "Prepend", "prepend": SPACE}
    yield _replace({"String": " "}, SPACE)


def _composed() -> Iterator[dict[str, Any]]:
    """The library looks up a letter with all its accents and drops those that the table does not know; so they come as
    the table would have them. The wide tilde alone, which the table leaves as it is, steps aside meanwhile."""
    yield _replace({"String": TILDE}, ELSEWHERE)
    yield {"type": "NFKC"}
    yield _replace({"String": ELSEWHERE}, TILDE)


def _decoders(model: Model) -> Iterator[dict[str, Any]]:
    yield _replace({"String": ELSEWHERE}, "")
    yield _replace({"String": SPACE}, " ")
    if model.bytewise:
        yield {"type": "ByteFallback"}
    yield {"type": "Fuse"}
    if model.prefix:
        yield {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _merges(pieces: Mapping[str, Piece]) -> Iterator[tuple[str, str]]:
    """Every way to make a piece of two; SentencePiece makes the one with the best score first."""
    if max(map(len, pieces), default=0) > LONGEST_MERGED or sum(map(len, pieces)) > MOST_BYTES:
        raise Unfit(f"its pieces have more than {LONGEST_MERGED} letters, or more than {MOST_BYTES:,} in all")
    ranks = {text: rank for rank, text in enumerate(sorted(pieces, key=lambda text: -pieces[text].score))}
    left = LARGEST_FILE
    for text in ranks:
        halves = [(text[:cut], text[cut:]) for cut in range(1, len(text))]
        found = [pair for pair in halves if pair[0] in ranks and pair[1] in ranks]
        left -= len(found) * len(text)
        if left < 0:
            raise Unfit("its pieces can be made in too many ways")
        yield from sorted(found, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))


def from_json(about: Mapping[str, Any]) -> Model | None:
    """The model that `to_json` made this of, up to the order of its pieces; None where it is of another kind."""
    inside, parts = about["model"], (about.get("normalizer") or {}).get("normalizers", [])
    if inside["type"] != "Unigram" or not any(part.get("content") == SPACE for part in parts):
        return None
    whole = {token["content"] for token in about["added_tokens"] if token["special"]}
    user = {token["content"] for token in about["added_tokens"]} - whole
    known = {text: score for text, score in inside["vocab"] if not text.startswith(ELSEWHERE) and text not in whole}
    scores = {text: score for text, score in known.items() if not is_code(text)}
    unknown = inside["vocab"][inside["unk_id"]][0]
    pieces = [Piece(unknown, kind=UNKNOWN), *(Piece(text, kind=CONTROL) for text in sorted(whole - {unknown}))]
    for text, score in sorted(scores.items(), key=lambda entry: -entry[1]):
        byte = inside["byte_fallback"] and len(text) == 6 and text.startswith("<0x")
        pieces.append(Piece(text, score, USER if text in user else BYTE if byte else NORMAL))
    charsmap = next((part["precompiled_charsmap"] for part in parts if part["type"] == "Precompiled"), "")
    kinds = {part["type"] for part in parts}
    return Model(
        tuple(pieces),
        rules="nmt_nfkc" if "NFKC" in kinds else "",
        charsmap=base64.b64decode(charsmap),
        prefix="Prepend" in kinds,
        tidy=any("Regex" in part.get("pattern", {}) for part in parts),
        bytewise=inside["byte_fallback"],
    )
