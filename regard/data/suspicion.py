"""A `tokenizer.json` read with suspicion: whoever wrote it may have meant harm, and the library trusts what it reads.

What is done before and after the library has it:
- the file has at most 64 MB, eight million values and two million tokens of at most 4,096 letters, and nests no deeper
  than the parser goes;
- what the library keeps byte by byte (tokens that were added, those of a unigram model) has at most four million;
- the parts that change a text (normalizer, pre-tokenizer, decoder) are of known kinds, 64 at most;
- a regular expression that could take for ever is refused: one with a repetition or a choice inside of a repetition,
  with a reference back, with more than two repetitions in one of its choices, or with comments that could hide them;
- replacements may make a text at most 64 times as long, those of SentencePiece a letter at most 256 bytes, and letters
  become bytes once;
- post-processor, truncation and padding are dropped: Regard sets its own marks;
- chance is taken out (the dropout of a BPE);
- what fails all the same is a `PanicException` of the library, which is no `Exception`; it is turned into a sentence.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models

from regard.errors import CheckpointError

LARGEST_FILE = 64 << 20  # bytes
MOST_VALUES, MOST_TOKENS, MOST_ADDED, MOST_BYTES = 8_000_000, 2_000_000, 100_000, 4_000_000
LONGEST_TOKEN, LONGEST_WORD, LONGEST_AFFIX = 4096, 1000, 64  # letters; a word costs the cube of them
MOST_PARTS, LONGEST_PATTERN, MOST_GROWTH, LONGEST_LETTER = 64, 2000, 64.0, 256
MOST_REPEATED, MOST_OPTIONAL = 2, 8  # in one choice of a pattern
SIMPLE = (
    "BertNormalizer Strip StripAccents NFC NFD NFKC NFKD Lowercase Nmt Precompiled Replace Prepend ByteLevel Sequence "
    "BertPreTokenizer Whitespace WhitespaceSplit Metaspace Split Punctuation Digits CharDelimiterSplit UnicodeScripts "
    "FixedLength BPEDecoder WordPiece CTC ByteFallback Fuse"
)
KNOWN = frozenset(SIMPLE.split())
PROBES = ("\ufffd", "a b", "Éa\u0301 中文 🏳️‍🌈 \0\t\n", "x" * 200)


class Unfit(Exception):
    """Why a vocabulary is not taken."""


def inspected(path: Path) -> tokenizers.Tokenizer:
    """The vocabulary of a file; what cannot be used is refused in one sentence."""
    try:
        return parse(read_bytes(path))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such vocabulary; name a folder that `regard train` has made") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    except Unfit as error:
        raise CheckpointError(f"{path}: cannot be read as a vocabulary ({error}); restore the file") from None


def read_bytes(path: Path, most: int = LARGEST_FILE) -> bytes:
    if path.exists() and not path.is_file():
        raise Unfit("it is no plain file")
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise Unfit(f"it has more than {most >> 20} MB")
    return data


def parse(data: bytes) -> tokenizers.Tokenizer:
    if sum(map(data.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise Unfit(f"it has more than {MOST_VALUES:,} values")
    try:
        about = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise Unfit(f"{error}") from None
    if not isinstance(about, dict) or not isinstance(about.get("model"), dict):
        raise Unfit("it has no model")
    with failures():
        _check_parts(about)
        _check_model(about["model"])
        _check_added(about.get("added_tokens"))
        about.update(post_processor=None, truncation=None, padding=None)
        inner = tokenizers.Tokenizer.from_str(json.dumps(about))
        if isinstance(inner.model, models.BPE):
            inner.model.dropout = None
        check(inner)
    return inner


def check(inner: tokenizers.Tokenizer) -> None:
    """What can be asked of a vocabulary once it is there."""
    with failures():
        _check_vocabulary(inner)
        for probe in PROBES:  # a file can be whole and yet fail at the first unknown word
            inner.decode(inner.encode(probe).ids)


@contextmanager
def failures() -> Iterator[None]:
    """Whatever the library says to nonsense; it raises nothing narrower."""
    try:
        yield
    except (Unfit, CheckpointError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not panic(error):
            raise
        raise Unfit(_line(error)) from None


def _line(error: BaseException) -> str:
    """What the library says, of which a hostile file may write the better part."""
    said = " ".join(str(error).split())
    return "".join(letter for letter in said if letter.isprintable())[:200] or type(error).__name__


def panic(error: BaseException) -> bool:
    """A failure inside of the library; its class cannot be imported."""
    return type(error).__name__ == "PanicException"


# ---- what changes a text


def _check_parts(about: dict[str, Any]) -> None:
    for role in ("normalizer", "pre_tokenizer", "decoder"):
        parts = list(_parts(about.get(role)))
        if len(parts) > MOST_PARTS:
            raise Unfit(f"its {role} has more than {MOST_PARTS} parts")
        kinds, growth = [str(part.get("type")) for part in parts], 1.0
        if strange := [kind for kind in kinds if kind not in KNOWN]:
            raise Unfit(f"its {role} has a part of the unknown type {strange[0][:40]!r}")
        for kind in ("ByteLevel", "Precompiled"):  # again and again they double a text again and again
            if kinds.count(kind) > 1:
                raise Unfit(f"its {role} has {kinds.count(kind)} parts of the type {kind}, of which one is enough")
        for part in parts:
            growth *= _growth(part)
            if part["type"] == "Precompiled":
                _check_charsmap(part.get("precompiled_charsmap"))
        if growth > MOST_GROWTH:
            raise Unfit(f"its {role} could make a text more than {MOST_GROWTH:.0f} times as long")


def _parts(part: Any) -> Iterator[dict[str, Any]]:
    """A part, and those that it is made of."""
    if part is None:
        return
    if not isinstance(part, dict):
        raise Unfit(f"a part of it is {str(part)[:40]!r}, where a table was wanted")
    yield part
    for key in ("normalizers", "pretokenizers", "decoders"):
        if isinstance(inside := part.get(key, []), list):
            for one in inside:
                yield from _parts(one)


def _growth(part: dict[str, Any]) -> float:
    """How many times as long a text can become."""
    if len(str(part.get("prepend", ""))) > LONGEST_TOKEN:
        raise Unfit(f"it puts more than {LONGEST_TOKEN} letters before each text")
    pattern = part.get("pattern")
    if isinstance(pattern, dict) and isinstance(regex := pattern.get("Regex"), str):
        _check_pattern(regex)
        return 1.0 + len(str(part.get("content", "")))
    if part.get("type") == "Replace":
        given = str(pattern.get("String", "")) if isinstance(pattern, dict) else ""
        if not given:
            raise Unfit("it replaces what is empty")
        return max(1.0, len(str(part.get("content", ""))) / len(given))
    return 1.0


def _check_charsmap(text: Any) -> None:
    """SentencePiece's table: the size of a trie, the trie, and what its leaves lead to, each with a zero behind it."""
    try:
        data = base64.b64decode(text, validate=True)
    except (ValueError, TypeError):
        raise Unfit("its table of characters is not in base64") from None
    size = int.from_bytes(data[:4], "little")
    if len(data) < 8 or size % 4 or not 4 <= size <= len(data) - 4:
        raise Unfit("its table of characters is cut short")
    if max(map(len, data[4 + size :].split(b"\0"))) > LONGEST_LETTER:
        raise Unfit(f"its table makes more than {LONGEST_LETTER} bytes of one letter")


PIECE = re.compile(
    r"""
    (?P<set>   \[ \^? \]? (?: \\. | \[:\^?\w+:\] | [^\]\\] )* \] )
  | (?P<back>  \\ (?: [1-9] | [kg][<{'] ) )
  | (?P<one>   \\ [pP] \{ [^}]* \} | \\. )
  | (?P<hidden> \( \? (?: \# | [ims-]*x ) )
  | (?P<open>  \( (?: \? (?: [ims-]*:? | [=!>] | <[=!] | <\w+> ) )? )
  | (?P<close> \) )
  | (?P<many>  (?: [*+] | \{ \d* , \d* \} | \{ \d+ \} ) [?+]? )
  | (?P<maybe> \? [?+]? )
  | (?P<or>    \| )
  | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)


def _check_pattern(pattern: str) -> None:
    """Refuses what could go back over a text again and again; the patterns of known vocabularies have no such thing."""
    if len(pattern) > LONGEST_PATTERN:
        raise Unfit(f"a regular expression has more than {LONGEST_PATTERN} letters")
    groups, repeated, optional, closed = [False], 0, 0, False  # of each group whether it repeats or chooses inside
    for found in PIECE.finditer(pattern):
        kind = str(found.lastgroup)
        if kind in ("back", "hidden") or (kind == "many" and closed):
            raise Unfit(f"the regular expression {pattern[:60]!r} could take for ever")
        closed = False
        if kind == "open":
            groups.append(False)
        elif kind == "close" and len(groups) > 1:
            closed = groups.pop()
            groups[-1] = groups[-1] or closed
        elif kind in ("many", "maybe", "or"):
            groups[-1] = True
        if kind == "or" and len(groups) == 1:
            repeated = optional = 0
        repeated, optional = repeated + (kind == "many"), optional + (kind == "maybe")
        if repeated > MOST_REPEATED or optional > MOST_OPTIONAL:
            what = "more than two repetitions, or eight parts that may be left out"
            raise Unfit(f"the regular expression {pattern[:60]!r} has {what}, in a row")


# ---- what it knows


def _check_model(model: dict[str, Any]) -> None:
    kind, vocabulary = model.get("type"), model.get("vocab")
    if not isinstance(vocabulary, dict | list) or len(vocabulary) > MOST_TOKENS:
        raise Unfit(f"it has no list of up to {MOST_TOKENS:,} tokens")
    if kind == "Unigram":
        if type(model.get("unk_id")) is not int:
            raise Unfit("it does not say what an unknown word is")
        _check_bytes(str(entry[0]) for entry in vocabulary)
    unknown = model.get("unk_token")
    if kind in ("WordLevel", "WordPiece") and (not isinstance(unknown, str) or unknown not in vocabulary):
        raise Unfit(f"its unknown word {str(unknown)[:40]!r} is none of its tokens")
    for affix in ("continuing_subword_prefix", "end_of_word_suffix"):
        if len(str(model.get(affix, ""))) > LONGEST_AFFIX:
            raise Unfit(f"{affix} has more than {LONGEST_AFFIX} letters")
    longest = model.get("max_input_chars_per_word", 0)
    if not isinstance(longest, int) or longest > LONGEST_WORD:
        raise Unfit(f"max_input_chars_per_word is more than {LONGEST_WORD:,}")


def _check_added(tokens: Any) -> None:
    if tokens is not None and (not isinstance(tokens, list) or len(tokens) > MOST_ADDED):
        raise Unfit(f"its added tokens are no list of up to {MOST_ADDED:,}")
    _check_bytes(str(token["content"]) for token in tokens or ())


def _check_bytes(tokens: Iterable[str]) -> None:
    """The library makes a tree of them, in which each byte takes some hundred."""
    if sum(len(token.encode("utf-8", "replace")) for token in tokens) > MOST_BYTES:
        raise Unfit(f"its tokens have more than {MOST_BYTES:,} bytes")


def _check_vocabulary(inner: tokenizers.Tokenizer) -> None:
    vocabulary = inner.get_vocab()
    if not vocabulary:
        raise Unfit("it has no tokens")
    if len({*vocabulary.values()}) < len(vocabulary):
        raise Unfit("two of its tokens have one number")
    if max(vocabulary.values()) >= MOST_TOKENS:
        raise Unfit(f"its tokens are numbered up to {max(vocabulary.values()):,}")
    if max(map(len, vocabulary)) > LONGEST_TOKEN:
        raise Unfit(f"a token has more than {LONGEST_TOKEN:,} letters")
