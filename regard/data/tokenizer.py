"""Text to tokens and back, on Hugging Face's tokenizers.

All that a vocabulary needs stands in its `tokenizer.json`, which `tokenizers.Tokenizer.from_file` reads as well.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b, file_digest
from itertools import chain
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers

from regard.data.marks import Marks
from regard.data.suspicion import MOST_TOKENS, Unfit, inspected, panic, read_bytes
from regard.data.vocabulary import BOS, EOS, PAD, SPACED, SPECIAL, TRAINERS, UNK, Kind
from regard.errors import CheckpointError, ConfigError, DataError, RegardError

__all__ = ["BOS", "EOS", "PAD", "SPECIAL", "UNK", "Kind", "Marks", "Tokenizer", "Tokenizers", "join"]

# Many texts are encoded by many threads; a forked child has none of them and would wait for ever.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
os.register_at_fork(after_in_child=lambda: os.environ.update(TOKENIZERS_PARALLELISM="false"))

EXTRA = {"mask": "<mask>", "delimiter": "<delimiter>", "extract": "<extract>"}  # marks that some tasks need besides
ELSEWHERE = "\ufdd0"  # before a piece that only the other side cuts its texts into; no character of any text
TARGET_FILE, SOURCE_FILE = "tokenizer.json", "tokenizer.source.json"
FILES = (TARGET_FILE, SOURCE_FILE, "marks.json", "marks.source.json")  # of the vocabularies of a run


class Tokenizer:
    """One vocabulary.

    `size` is how many rows the tables of its model have. A foreign one may have numbers without a token, rows that pad
    the table, and tokens beyond it, which are unknown to the model.
    """

    def __init__(self, inner: tokenizers.Tokenizer, marks: Marks | None = None, size: int = 0) -> None:
        inner.encode_special_tokens = True  # "<eos>" in a text is five letters, not the end
        inner.no_truncation()
        inner.no_padding()
        self.inner = inner
        self.marks = marks or _ours(inner)
        self._settle(size)

    def _settle(self, size: int) -> None:
        vocabulary = self.inner.get_vocab()
        end = max(vocabulary.values(), default=-1) + 1
        self.size: int = size or end
        self.special = self.marks.all.union(range(self.size, end))
        other = [name for name in vocabulary if name.startswith(ELSEWHERE)]
        self.elsewhere = {name.removeprefix(ELSEWHERE): vocabulary[name] for name in other}
        self.fingerprint = blake2b((self.to_str() + self._about()).encode(), digest_size=16).hexdigest()

    def _about(self) -> str:
        """What marks.json says; nothing where the marks are ours."""
        if self.marks == _ours(self.inner) and self.size == self.inner.get_vocab_size():
            return ""
        return json.dumps({**self.marks.names(self.inner.id_to_token), "size": self.size}, ensure_ascii=False)

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        kind: Kind,
        size: int,
        least: int = 1,
        lowercase: bool = False,
        continuation: str = "",
        marks: Sequence[str] = (),
    ) -> Tokenizer:
        """A vocabulary of at most `size` entries, special ones included. The same texts give the same vocabulary.

        `marks` names those that are wanted besides the four that each has, as in EXTRA.
        """
        if continuation and kind != "word":
            wanted = 'is for text that was split beforehand: write tokens.kind = "word"'
            raise ConfigError(f'tokens.continuation = "{continuation}" {wanted}, or leave it out')
        rare = {"least": least} if least > 1 else {}
        if rare and kind not in ("word", "char"):
            wanted = f'is for whole words or letters: write tokens.kind = "word", or leave it out, since {kind} spells'
            raise ConfigError(f"tokens.least = {least} {wanted} rare words")
        normal = [normalizers.Lowercase()] if lowercase else []
        inner = TRAINERS[kind](map(encodable, texts), size - len(marks), normal, **rare)
        inner.add_special_tokens([EXTRA[mark] for mark in marks])
        if continuation:
            unfinished = decoders.Replace(tokenizers.Regex(_unfinished(continuation)), "")
            inner.decoder = decoders.Sequence([SPACED, decoders.Fuse(), unfinished])
        return cls(inner)

    def add(self, marks: Sequence[str]) -> None:
        """Gives it the marks that it lacks, after all others."""
        lacking = [mark for mark in marks if getattr(self.marks, mark) is None]
        used = {number: name for name, number in self.inner.get_vocab().items()}
        self.inner.add_special_tokens([EXTRA[mark] for mark in lacking])
        numbers: dict[str, Any] = {mark: self.inner.token_to_id(EXTRA[mark]) for mark in lacking}
        for mark, number in numbers.items():
            if used.get(number, EXTRA[mark]) != EXTRA[mark]:
                problem = f"{EXTRA[mark]!r} would get the number of {used[number]!r}, since numbers before it are free"
                raise ConfigError(f"{problem}; give a vocabulary that is numbered without holes")
        self.marks = replace(self.marks, **numbers)
        self._settle(max(self.size, max(self.marks.all) + 1))

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without marks of beginning and end."""
        with calm():
            return self._numbers(self.inner.encode(encodable(text), add_special_tokens=False))

    def encode_many(self, texts: Iterable[str]) -> list[list[int]]:
        with calm():
            found = self.inner.encode_batch_fast([encodable(text) for text in texts], add_special_tokens=False)
        return [self._numbers(one) for one in found]

    def _numbers(self, found: tokenizers.Encoding) -> list[int]:
        """What this side cannot spell has a number all the same if it is, as it stands, a piece of the other side."""
        ids = found.ids
        if self.elsewhere and (unknown := self.marks.unknown) in ids:
            spelt = zip(ids, found.tokens, strict=True)
            ids = [self.elsewhere.get(piece, i) if i == unknown else i for i, piece in spelt]
        return self.ordinary(ids)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of tokens; marks say nothing."""
        with calm():
            return self.inner.decode([i for i in map(int, ids) if i not in self.special], skip_special_tokens=False)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Pieces to be looked at: one for each token, with ▁ for a space."""
        bytewise = isinstance(self.inner.pre_tokenizer, pre_tokenizers.ByteLevel)
        return [_visible(self._piece(int(i), bytewise)) for i in ids]

    def _piece(self, number: int, bytewise: bool) -> str:
        piece = (self.inner.id_to_token(number) or "\ufffd").removeprefix(ELSEWHERE)
        return decoders.ByteLevel().decode([piece]) if bytewise and number not in self.special else piece

    def ordinary(self, ids: list[int]) -> list[int]:
        """No text may contain a mark, even if it spells a word of that name: it is unknown, or left out."""
        if self.special.isdisjoint(ids):
            return ids
        unknown = [] if self.marks.unknown is None else [self.marks.unknown]
        return list(chain.from_iterable(unknown if i in self.special else [i] for i in ids))

    def words(self) -> dict[int, str]:
        """Each token of the model by its number."""
        found = self.inner.get_vocab().items()
        return {number: name.removeprefix(ELSEWHERE) for name, number in found if number < self.size}

    @property
    def glued(self) -> bool:
        """Whether a word and the space before it are one token, while a text begins without: GPT-2's way."""
        return self.tokens(self.encode(" a")) == ["▁a"] != self.tokens(self.encode("a"))

    def to_str(self) -> str:
        return self.inner.to_str()

    def save(self, path: Path) -> None:
        """With `marks.json` beside it where the marks are not ours; the vocabulary last."""
        if about := self._about():
            _write(_marks_of(path), about)
        else:
            _marks_of(path).unlink(missing_ok=True)
        _write(path, self.to_str())

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        inner, beside = inspected(path), _marks_of(path)
        if beside.exists():
            return cls(inner, *_foreign(inner, beside))
        special = [inner.id_to_token(i) for i in range(len(SPECIAL))]
        if special != SPECIAL:
            wanted = f"a vocabulary of ours begins with {SPECIAL}, and any other has a {beside.name} beside it"
            raise CheckpointError(f"{path}: begins with {special}; {wanted}")
        largest, count = max(inner.get_vocab().values()), inner.get_vocab_size()
        if largest + 1 != count:
            raise CheckpointError(f"{path}: {count} tokens are numbered up to {largest}; restore the file")
        return cls(inner)


def _ours(inner: tokenizers.Tokenizer) -> Marks:
    extra: dict[str, Any] = {mark: inner.token_to_id(name) for mark, name in EXTRA.items()}
    return Marks(PAD, BOS, EOS, UNK, **extra)


def _foreign(inner: tokenizers.Tokenizer, path: Path) -> tuple[Marks, int]:
    """Marks by their names, and the size of the model's tables."""
    try:
        about: dict[str, Any] = dict(json.loads(read_bytes(path, 1 << 20)))
    except (OSError, ValueError, TypeError, RecursionError, Unfit) as error:
        raise CheckpointError(f"{path}: cannot be read as marks ({error}); restore the file") from None
    size = about.pop("size", 0)
    if not isinstance(size, int) or not 0 <= size <= MOST_TOKENS:
        raise CheckpointError(f"{path}: size is {size!r}, where a number up to {MOST_TOKENS:,} was wanted; restore it")
    marks, count = Marks.named(about, inner.token_to_id, str(path)), max(inner.get_vocab().values()) + 1
    needed = count if marks.unknown is None else max(marks.unknown, *marks.all) + 1
    if size and size < needed:
        problem = f"size is {size}, but the tokens are numbered up to {count - 1}"
        raise CheckpointError(f"{path}: {problem}; restore the file")
    return marks, size


def _marks_of(path: Path) -> Path:
    """marks.json beside tokenizer.json, marks.source.json beside tokenizer.source.json."""
    return path.with_name(path.name.replace("tokenizer", "marks", 1))


def _write(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_text(text, "utf-8")
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        problem = f"cannot be written: {error.strerror}; make room or choose another folder"
        raise RegardError(f"{path}: {problem}") from None


@contextmanager
def calm() -> Iterator[None]:
    """A vocabulary that fails in the middle of a text does so with a sentence."""
    try:
        yield
    except BaseException as error:
        if not panic(error):
            raise
        raise DataError(f"the vocabulary fails on this text ({error}); it is damaged, give another") from None


def encodable(text: str) -> str:
    """The text with `?` for half characters (lone surrogates), which no UTF-8 can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def join(text: str, continuation: str) -> str:
    """Text that was split beforehand, whole again: "pul@@ ley" is "pulley"."""
    return re.sub(_unfinished(continuation), "", text) if continuation else text


def _unfinished(continuation: str) -> str:
    return re.escape(continuation) + "( |$)"


def _visible(piece: str) -> str:
    return "".join("▁" if letter.isspace() else letter if letter.isprintable() else "�" for letter in piece)


@dataclass(frozen=True)
class Tokenizers:
    """The vocabularies of the two sides; one and the same when they are joint."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        """Whether a number means the same on both sides, however each side cuts its texts."""
        return self.source is self.target or self.source.words() == self.target.words()

    @property
    def fingerprint(self) -> str:
        return f"{self.source.fingerprint}-{self.target.fingerprint}"

    @classmethod
    def train(
        cls,
        source: Iterable[str],
        target: Iterable[str],
        *,
        joint: bool = True,
        kind: Kind,
        size: int,
        least: int = 1,
        lowercase: bool = False,
        continuation: str = "",
    ) -> Tokenizers:
        """Learnt from the texts of both sides; each is read once, the source first."""

        def learn(texts: Iterable[str]) -> Tokenizer:
            return Tokenizer.train(
                texts, kind=kind, size=size, least=least, lowercase=lowercase, continuation=continuation
            )

        if joint:
            both = learn(chain(source, target))
            return cls(both, both)
        return cls(learn(source), learn(target))

    def save(self, folder: Path) -> None:
        """`tokenizer.json` for the target or for both; `tokenizer.source.json` when the source has its own."""
        if self.source is self.target:
            (folder / SOURCE_FILE).unlink(missing_ok=True)
            _marks_of(folder / SOURCE_FILE).unlink(missing_ok=True)
        else:
            self.source.save(folder / SOURCE_FILE)
        self.target.save(folder / TARGET_FILE)  # last: whoever finds it finds both

    @classmethod
    def load(cls, folder: Path) -> Tokenizers:
        target = Tokenizer.load(folder / TARGET_FILE)
        own = (folder / SOURCE_FILE).exists()
        return cls(Tokenizer.load(folder / SOURCE_FILE) if own else target, target)


def signatures(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file that `Tokenizers.save` has written."""
    return {name: _sha256(folder / name) for name in FILES if (folder / name).exists()}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def check_signatures(folder: Path, signed: Mapping[str, str]) -> None:
    """In another vocabulary the same numbers are other words. Older runs have signed none, and are believed."""
    now = signatures(folder)
    wrong = [name for name in FILES if now.get(name) != signed.get(name)]
    if TARGET_FILE in signed and wrong:
        what = f"{folder / wrong[0]}: not the file that the weights of this run were learnt with"
        raise CheckpointError(f"{what}; put that one back, or make the run anew")
