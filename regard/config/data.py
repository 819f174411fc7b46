"""Where examples come from: one schema for each kind of data."""

from __future__ import annotations

from typing import Literal, Self, get_args

from pydantic import Field, model_validator

from regard.config.base import Config
from regard.errors import ConfigError

Split = Literal["train", "valid", "test"]


class DataConfig(Config):
    """What all kinds have: files, looked for here, then under REGARD_DATA; plain, .xz or .gz."""

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
    """Two line-aligned files (source, target), or one .tsv or .jsonl; plain, .xz or .gz;
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
    documents: Literal["file", "line", "every_line", "blank", "spelt"] = "file"
    """What a document is: a whole file, a line, or what stands between blank lines. An end mark follows each, but for
    the last file, which is cut off anywhere. Blank lines are no documents; with "every_line" each is an end mark alone,
    as WikiText is counted. "spelt" is a file in which <eos> stands for the end of each line, letter by letter."""
    apart: bool = False
    """Documents that share a window do not see each other."""
    held: float = Field(0.0, ge=0, lt=1)
    """Share of the training text, at its end, that is kept for validation when `valid` names no files."""
    order: Literal["random", "lanes"] = "random"
    """How training goes through the text: windows at random, or lanes side by side, each read on from where its last
    window ended; a recurrent state is carried from window to window, its gradient is not."""
    context: int = Field(0, ge=0, le=65_535)
    """Tokens at the beginning of a window that are read and not counted; windows overlap by as many."""
    longest: int = Field(256, ge=2, le=65_536)
    """Tokens of a window."""

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.made is None and not self.train:
            raise ConfigError('train: missing; name files of running text, or set made = "maps"')
        return self


class SeriesData(DataConfig):
    """Series of numbers: .npz, music as .mat, images as idx files, or made."""

    made: Literal["adding", "copy", "order"] | None = None
    """A made task instead of files: "adding" (two of many numbers are marked, and their sum is asked for), "copy"
    (ten digits, to be said again after a long wait) or "order" (which two of many symbols came, and in which order)."""
    train: tuple[str, ...] = ()
    """One .npz with x (examples, steps, channels) and y, one .mat of music, or the idx files of images and labels;
    looked for here, then under REGARD_DATA."""
    length: int = Field(600, ge=1, le=1_000_000)
    """Steps of a made example: the T of its literature."""
    count: int = Field(50_000, ge=1)
    """Training examples of a made task."""
    held: float = Field(0.0, ge=0, lt=1)
    """Share of the training examples, the last ones, that is kept for validation when `valid` names no files."""
    labels: tuple[str, ...] = ()
    """Names of all that can be told, in the order in which the model numbers them; as the data has them when left
    out."""
    permute: int | None = Field(None, ge=0)
    """Seed of one order in which the steps of all examples are read; left out, they are read as they come."""
    longest: int = Field(65_536, ge=2, le=1_000_000)
    """Most steps of an example."""

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.made is None and not self.train:
            raise ConfigError('train: missing; name an .npz, a .mat or two idx files, or set made = "adding"')
        return self


class DocumentsData(DataConfig):
    """Documents of sentences, a blank line between documents."""

    sentences: Literal["line", "split"] = "line"
    """One sentence a line, or to be split at full stops, question and exclamation marks."""
    longest: int = Field(128, ge=8, le=65_536)
    """Tokens of a sequence, its marks included."""


class LabelledData(DataConfig):
    """Texts with a label: .tsv, .csv or .jsonl, or another table whose separator is named."""

    texts: tuple[int | str, ...] = (0,)
    """The column (a number, or its name in the first line) or key of the text; two of a pair; more are choices, of
    which the first is what they continue."""
    label: int | str = 1
    """Likewise, of the label."""
    labels: tuple[str, ...] = ()
    """All labels, in the order in which the model numbers them; sorted as the training data has them when left out."""
    separator: Literal["\t", ",", " "] | None = None
    """What stands between columns; told by the file's ending when left out. A space parts as many columns as are asked
    for, and the last of them is all the rest."""
    folds: int = Field(0, ge=0, le=1000)
    """Where splits name the same files: so many parts, into which examples fall by their texts. One is for the test,
    the next for validation, the others to learn from; 0: every split has files of its own."""
    fold: int = Field(0, ge=0, le=999)
    """Which part is for the test."""
    longest: int = Field(128, ge=4, le=65_536)
    """Most tokens of an example, its marks included; longer ones are cut, the longer text first."""

    @model_validator(mode="after")
    def _folded(self) -> Self:
        if self.folds and not self.fold < self.folds >= 3:
            what = f"folds: {self.folds} with fold = {self.fold}"
            raise ConfigError(f"{what}; write three or more folds, and a fold from 0 on that is one of them")
        return self


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
