"""Words with tags in columns, a blank line between sentences, as the CoNLL tasks have them; plain, .xz or .gz.

    EU      NNP  I-NP  I-ORG          IOB1: I- for every word of an entity; B- only where it follows one of its kind
    rejects VBZ  I-VP  O              IOB2: B- for the first word of every entity, I- for the rest

Columns are parted by tabs, or where there are none by spaces. Lines of the word -DOCSTART- part documents and are no
sentence. What is read has IOB2 tags, whichever scheme the data has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from regard.data.text import COLUMNS, Bad, BadLines, OnBad, decoded, raw_lines, shortened
from regard.errors import DataError

Scheme: TypeAlias = Literal["iob1", "iob2", "plain"]
Line: TypeAlias = tuple[int, bytes]  # with its number

BROKEN = "with tags that break their scheme"
DOCUMENT = "-DOCSTART-"


@dataclass(frozen=True)
class Sentence:
    """Words, each with its tag; `line` is where the first stands in the file."""

    line: int
    words: tuple[str, ...]
    tags: tuple[str, ...]


def read_tagged(
    files: Sequence[Path],
    *,
    word: int = 0,
    tag: int = -1,
    scheme: Scheme = "iob2",
    bad: BadLines,
    on_bad: OnBad = "skip",
) -> Iterator[Sentence]:
    """Every good sentence of every file; a bad one goes to `bad` with the line that makes it bad."""
    bad.unit = "sentences"
    for path in files:
        bad.file = path.name
        for lines in _sentences(raw_lines(path)):
            bad.read += 1
            rows = _rows(path, lines, word, tag, scheme, bad, on_bad)
            if rows is not None:
                words, tags = zip(*rows, strict=True)
                yield Sentence(lines[0][0], words, tuple(to_iob2(tags)) if scheme == "iob1" else tags)
    if not bad.read:
        raise DataError(f"{bad.file}: no sentence; name a file with a word and its tag on every line")
    if 2 * bad.counts.get(BROKEN, 0) > bad.read:
        other = "iob2" if scheme == "iob1" else "iob1"
        mend = f'write task.scheme = "{other}", or "plain" where tags mark no entities'
        raise DataError(f"{bad.file}: most sentences break {scheme.upper()} ({bad}); {mend}")


def _rows(
    path: Path, lines: list[Line], word: int, tag: int, scheme: Scheme, bad: BadLines, on_bad: OnBad
) -> list[tuple[str, str]] | None:
    """Word and tag of each line of a sentence; None where one is bad."""
    rows: list[tuple[str, str]] = []
    for number, raw in lines:
        try:
            rows.append(_columns(decoded(path, raw), word, tag))
            check(rows[-1][1], rows[-2][1] if len(rows) > 1 else None, scheme)
        except Bad as error:
            bad.add(error.kind, number, error.what, on_bad=on_bad)
            return None
    return rows


def _sentences(lines: Iterable[bytes]) -> Iterator[list[Line]]:
    """Lines between blank ones."""
    sentence: list[Line] = []
    for number, raw in enumerate(lines, 1):
        if raw.strip() and not raw.startswith(DOCUMENT.encode()):
            sentence.append((number, raw))
        elif sentence:
            yield sentence
            sentence = []
    if sentence:
        yield sentence


def _columns(line: str, word: int, tag: int) -> tuple[str, str]:
    columns = [column for column in line.split("\t" if "\t" in line else " ") if column]
    for name, wanted in (("word", word), ("tag", tag)):
        if not -len(columns) <= wanted < len(columns):
            have = f"{len(columns)} column{'s'[: len(columns) > 1]}"
            raise Bad(COLUMNS, f"{have} where data.{name} = {wanted} asks for more, counted from 0: {shortened(line)}")
    if len(columns) == 1:
        raise Bad(COLUMNS, f"1 column where a word and a tag were wanted: {shortened(line)}")
    return columns[word], columns[tag]


# ---- schemes


def check(tag: str, before: str | None, scheme: Scheme) -> None:
    """Refuses a tag that the scheme does not know, or not behind the one before it; None begins a sentence."""
    if scheme == "plain" or tag == "O":
        return
    prefix, kind = tag[:2], tag[2:]
    if prefix not in ("B-", "I-") or not kind:
        raise Bad(BROKEN, f'the tag {tag!r} is none of O, B-… and I-…: write one, or task.scheme = "plain"')
    goes_on = before is not None and before[2:] == kind
    refused, right, other = {"iob1": ("B-", "I-", "iob2"), "iob2": ("I-", "B-", "iob1")}[scheme]
    if prefix == refused and not goes_on:
        follows = "begins a sentence" if before is None else f"follows {before}"
        mend = f'write {right}{kind}, or task.scheme = "{other}"'
        raise Bad(BROKEN, f"{tag} {follows}, which {scheme.upper()} does not allow: {mend}")


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Every entity begins with B-."""
    return [
        f"B{tag[1:]}" if tag[:1] == "I" and before[2:] != tag[2:] else tag
        for before, tag in zip(("O", *tags), tags, strict=False)
    ]


def to_iob1(tags: Sequence[str]) -> list[str]:
    """An entity begins with B- only right behind another of its kind."""
    return [
        f"I{tag[1:]}" if tag[:1] == "B" and before[2:] != tag[2:] else tag
        for before, tag in zip(("O", *tags), tags, strict=False)
    ]


def labels(sentences: Iterable[Sentence], scheme: Scheme) -> list[str]:
    """All tags that a model can choose from: those of the data; of each kind of entity both B- and I-."""
    seen = {tag for sentence in sentences for tag in sentence.tags}
    if scheme == "plain":
        return sorted(seen)
    kinds = sorted({tag[2:] for tag in seen if tag != "O"})
    return ["O", *(f"{prefix}-{kind}" for kind in kinds for prefix in "BI")]
