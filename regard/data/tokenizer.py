"""Text to tokens and back, on Hugging Face's tokenizers.

All that a vocabulary needs stands in its `tokenizer.json`, which `tokenizers.Tokenizer.from_file` reads as well.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from pathlib import Path

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers

from regard.data.vocabulary import BOS, EOS, PAD, SPACED, SPECIAL, TRAINERS, UNK, Kind
from regard.errors import CheckpointError, ConfigError, RegardError

__all__ = ["BOS", "EOS", "PAD", "SPECIAL", "UNK", "Kind", "Tokenizer", "Tokenizers", "join"]

# Many texts are encoded by many threads; a forked child has none of them and would wait for ever.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
os.register_at_fork(after_in_child=lambda: os.environ.update(TOKENIZERS_PARALLELISM="false"))


@dataclass(frozen=True)
class Marks:
    """The numbers of the tokens that are no text, in one vocabulary; a BERT calls begin and end [CLS] and [SEP]."""

    pad: int
    begin: int
    end: int
    unknown: int
    mask: int | None = None
    """Stands for a hidden token."""
    delimiter: int | None = None
    """Stands between two texts that a GPT reads as one."""
    extract: int | None = None
    """Where a GPT is asked what it has read."""


EXTRA = {"mask": "<mask>", "delimiter": "<delimiter>", "extract": "<extract>"}  # marks that some tasks need besides
TARGET_FILE, SOURCE_FILE = "tokenizer.json", "tokenizer.source.json"


class Tokenizer:
    """One vocabulary."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        inner.encode_special_tokens = True  # "<eos>" in a text is five letters, not the end
        inner.no_truncation()
        inner.no_padding()
        self.inner = inner
        self._settle()

    def _settle(self) -> None:
        inner = self.inner
        self.size: int = inner.get_vocab_size()
        self.marks = Marks(PAD, BOS, EOS, UNK, **{mark: inner.token_to_id(name) for mark, name in EXTRA.items()})
        self.special = {PAD, BOS, EOS, self.marks.mask, self.marks.delimiter, self.marks.extract} - {None}
        self.fingerprint = blake2b(self.to_str().encode(), digest_size=16).hexdigest()

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
        self.inner.add_special_tokens([EXTRA[mark] for mark in marks if getattr(self.marks, mark) is None])
        self._settle()

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without marks of beginning and end."""
        return self._ordinary(self.inner.encode(encodable(text), add_special_tokens=False).ids)

    def encode_many(self, texts: Iterable[str]) -> list[list[int]]:
        found = self.inner.encode_batch_fast([encodable(text) for text in texts], add_special_tokens=False)
        return [self._ordinary(one.ids) for one in found]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of tokens; padding and marks of beginning and end say nothing."""
        return self.inner.decode([i for i in map(int, ids) if i >= UNK], skip_special_tokens=False)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Pieces to be looked at: one for each token, with ▁ for a space."""
        pieces = [self.inner.id_to_token(int(i)) or SPECIAL[UNK] for i in ids]
        if isinstance(self.inner.pre_tokenizer, pre_tokenizers.ByteLevel):
            pieces = [decoders.ByteLevel().decode([piece]) for piece in pieces]
        return [_visible(piece) for piece in pieces]

    def _ordinary(self, ids: list[int]) -> list[int]:
        """No text may contain a mark, even if it spells a word of that name."""
        return ids if self.special.isdisjoint(ids) else [UNK if i in self.special else i for i in ids]

    def to_str(self) -> str:
        return self.inner.to_str()

    def save(self, path: Path) -> None:
        beside = path.with_name(f".{path.name}.part")
        try:
            beside.write_text(self.to_str(), "utf-8")
            beside.replace(path)
        except OSError as error:
            with suppress(OSError):
                beside.unlink()
            problem = f"cannot be written: {error.strerror}; make room or choose another folder"
            raise RegardError(f"{path}: {problem}") from None

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        try:
            inner = tokenizers.Tokenizer.from_str(path.read_text("utf-8"))
            inner.encode("\ufffd")  # a file can be whole and yet fail at the first unknown word
        except FileNotFoundError:
            raise CheckpointError(f"{path}: no such vocabulary; name a folder that `regard train` has made") from None
        except Exception as error:  # tokenizers raises nothing narrower
            raise CheckpointError(f"{path}: cannot be read as a vocabulary ({error}); restore the file") from None
        vocabulary = inner.get_vocab()
        special = [inner.id_to_token(i) for i in range(len(SPECIAL))]
        if special != SPECIAL:
            raise CheckpointError(f"{path}: begins with {special}; a vocabulary of ours begins with {SPECIAL}")
        if max(vocabulary.values()) + 1 != len(vocabulary):
            gap = f"{len(vocabulary)} tokens are numbered up to {max(vocabulary.values())}"
            raise CheckpointError(f"{path}: {gap}; restore the file")
        return cls(inner)


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
        return self.source is self.target

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
        if self.joint:
            (folder / SOURCE_FILE).unlink(missing_ok=True)
        else:
            self.source.save(folder / SOURCE_FILE)
        self.target.save(folder / TARGET_FILE)  # last: whoever finds it finds both

    @classmethod
    def load(cls, folder: Path) -> Tokenizers:
        target = Tokenizer.load(folder / TARGET_FILE)
        own = (folder / SOURCE_FILE).exists()
        return cls(Tokenizer.load(folder / SOURCE_FILE) if own else target, target)
