"""Where examples come from: one schema for each kind of data."""

from __future__ import annotations

from typing import Literal, Self, get_args

from pydantic import Field, model_validator

from regard.config.base import Config
from regard.errors import ConfigError

Split = Literal["train", "valid", "test"]


class DataConfig(Config):
    """What all kinds have: files, looked for here, then under REGARD_DATA; plain or .xz."""

    train: tuple[str, ...] = ()
    """Files to learn from."""
    valid: tuple[str, ...] = ()
    """Likewise, to choose the best checkpoint by."""
    test: tuple[str, ...] = ()
    """Likewise, for the result."""
    bad_lines: Literal["skip", "refuse"] = "skip"
    """What to do with an example that cannot be used."""
    longest: int = Field(256, ge=2, le=65_536)
    """Most tokens of an example, its marks included."""

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.train:
            raise ConfigError("train: missing; name the files to learn from")
        return self


class PairsData(DataConfig):
    """Sources and targets: two line-aligned files, one .tsv or one .jsonl, or made."""

    made: Literal["spoken", "copy"] | None = None
    """A made task instead of files: "spoken" (numbers, dates, times and prices in words) or "copy" (random letters, up
    to as many as `longest` lets in)."""
    languages: tuple[str, str] = ("en", "de")
    """Source and target language of a made task."""
    train: tuple[str, ...] = ()
    """Two line-aligned files (source, target), or one .tsv or .jsonl; plain or .xz;
    looked for here, then under REGARD_DATA."""
    fields: tuple[int | str, int | str] | None = None
    """Columns (TSV: 0, 1) or keys (JSONL: "source", "target") that hold the two sides."""
    turns: str | None = None
    """Instead of fields, the key of a JSONL that holds a dialogue, "speaker: words" a line:
    each turn answers the one before."""
    unseen: bool = False
    """Leave out of the held-out splits what training shows too, but for punctuation and capitals."""
    bad_lines: Literal["skip", "refuse"] = "skip"
    """What to do with a line of wrong columns, not UTF-8, an empty side, without two speakers, or too long."""
    count: int = Field(60_000, ge=1)
    """Training examples of a made task."""
    held: int = Field(1000, ge=1)
    """Examples in each held-out split of a made task."""
    longest: int = Field(256, ge=2, le=65_536)
    """Most tokens on a side of a training example, its end mark included."""

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.made is None and not self.train:
            raise ConfigError(
                'train: missing; write two line-aligned files, one .tsv or one .jsonl, or set made = "spoken"'
            )
        for split in get_args(Split):
            if len(getattr(self, split)) > 2:
                raise ConfigError(
                    f"{split}: {len(getattr(self, split))} files; write two line-aligned files, one .tsv or one .jsonl"
                )
        return self


class StreamData(DataConfig):
    """Running text, read as one stream of tokens and cut into windows."""

    made: Literal["maps"] | None = None
    """A made task instead of files: "maps" (random keys with values, asked for after some demonstrations)."""
    count: int = Field(60_000, ge=1)
    """Training examples of a made task."""
    documents: Literal["file", "line", "blank"] = "file"
    """What a document is: a whole file, a line, or what stands between blank lines. An end mark follows each."""
    apart: bool = False
    """Documents that share a window do not see each other."""
    held: float = Field(0.0, ge=0, lt=1)
    """Share of the training text, at its end, that is kept for validation when `valid` names no files."""
    longest: int = Field(256, ge=2, le=65_536)
    """Tokens of a window."""

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.made is None and not self.train:
            raise ConfigError('train: missing; name files of running text, or set made = "maps"')
        return self


class DocumentsData(DataConfig):
    """Documents of sentences, a blank line between documents."""

    sentences: Literal["line", "split"] = "line"
    """One sentence a line, or to be split at full stops, question and exclamation marks."""
    longest: int = Field(128, ge=8, le=65_536)
    """Tokens of a sequence, its marks included."""


class LabelledData(DataConfig):
    """Texts with a label: .tsv, .csv or .jsonl."""

    texts: tuple[int | str, ...] = (0,)
    """The column (a number, or its name in the first line) or key of the text; two of a pair; more are choices, of
    which the first is what they continue."""
    label: int | str = 1
    """Likewise, of the label."""
    labels: tuple[str, ...] = ()
    """All labels, in the order in which the model numbers them; sorted as the training data has them when left out."""
    longest: int = Field(128, ge=4, le=65_536)
    """Most tokens of an example, its marks included; longer ones are cut, the longer text first."""


class QuestionsData(DataConfig):
    """Questions with passages and answers, as SQuAD has them (.json)."""

    longest: int = Field(384, ge=16, le=65_536)
    """Tokens of a window: marks, question and a part of the passage."""


class TaggedData(DataConfig):
    """Words with tags in columns, a blank line between sentences, as CoNLL has them."""

    word: int = 0
    """The column of the word."""
    tag: int = -1
    """The column of the tag."""
    labels: tuple[str, ...] = ()
    """All tags, in the order in which the model numbers them; as the training data has them when left out."""
    longest: int = Field(128, ge=4, le=65_536)
    """Most tokens of a sentence, its marks included; longer ones are read in pieces."""
