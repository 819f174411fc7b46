"""Texts with a label: .tsv, .csv or .jsonl, an example a line; plain, .xz or .gz.

A column goes by its number, counted from 0, or by its name; where one goes by its name, the first line holds names.
A .tsv knows no quotes: whatever stands between two tabs is the text. A .csv has commas and quotes, unless there is a
tab in its first line: some tables of tabs bear that name. Columns that nobody asks for may be there or not.
Files with another ending are read where it is said what stands between their columns.

Where there is one file for all, its examples are told apart by their texts (`in_fold`): the same text is always on the
same side, however often and wherever it occurs.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from regard.data.corpora import restored
from regard.data.text import COLUMNS, JSON, Bad, BadLines, OnBad, decoded, kind, raw_lines, shortened, value_at
from regard.errors import ConfigError, DataError, nearest

EMPTY_TEXT = "with an empty text"
LABEL = "with an unknown label"
NUMBER = "without a number"

Column: TypeAlias = int | str
Cells: TypeAlias = Callable[[str], list[str]]  # a line to the texts and the label


class Example(NamedTuple):
    """One or two texts and their label; or what comes first, the ways to go on, and which of them is right."""

    line: int
    texts: tuple[str, ...]
    label: str


def read_labelled(
    files: Sequence[Path],
    *,
    texts: Sequence[Column],
    label: Column,
    separator: str | None = None,
    bad: BadLines,
    on_bad: OnBad = "skip",
) -> Iterator[Example]:
    """Every example of every good line, file by file; the bad ones go to `bad`."""
    for path in files:
        bad.file = path.name
        cells, begin = _cells(path, (*texts, label), separator)
        for number, raw in enumerate(raw_lines(path), 1):
            if number < begin:
                continue
            bad.read += 1
            try:
                yield _example(number, cells(decoded(path, raw)))
            except Bad as error:
                bad.add(error.kind, number, error.what, on_bad=on_bad)
        if number < begin:
            raise DataError(f"{path}: names of columns, and no example behind them; name a file with some")


def in_fold(
    examples: Iterable[Example], split: Literal["train", "valid", "test"], fold: int, folds: int
) -> Iterator[Example]:
    """Those of a split, where one of `folds` parts is for the test, the next for validation, and the others to learn
    from."""
    for example in examples:
        part = int.from_bytes(blake2b("\t".join(example.texts).encode(), digest_size=8).digest()) % folds
        if {fold: "test", (fold + 1) % folds: "valid"}.get(part, "train") == split:
            yield example


def find_labels(examples: Iterable[Example], bad: BadLines) -> tuple[str, ...]:
    """All that occur, sorted; numbers by their size. `bad` hears of the lines that gave no example."""
    labels = sorted({example.label for example in examples}, key=_size)
    if len(labels) < 2:
        came = f"{bad.file}: {f'the label {labels[0]!r} alone' if labels else 'no example is left'}"
        if bad:
            otherwise = "mend these lines, or name other columns by data.texts and data.label"
            raise DataError(f"{came} ({bad}); {restored(Path(bad.file), otherwise)}")
        raise DataError(f"{came}, and there is nothing to tell; name another column by data.label")
    return tuple(labels)


def with_labels(
    examples: Iterable[Example], labels: Sequence[str], *, bad: BadLines, on_bad: OnBad = "skip"
) -> Iterator[Example]:
    """The examples whose label is one of these."""
    known = set(labels)
    for example in examples:
        if example.label in known:
            yield example
        else:
            only = ", ".join(labels[:20]) + ", …" * (len(labels) > 20)
            bad.add(LABEL, example.line, f"the label {example.label!r}, but the only ones are: {only}", on_bad=on_bad)


def with_numbers(examples: Iterable[Example], *, bad: BadLines, on_bad: OnBad = "skip") -> Iterator[Example]:
    """The examples whose label is a number."""
    for example in examples:
        if _is_number(example.label):
            yield example
        else:
            what = f"{shortened(example.label)} where a number was wanted (data.label names the column)"
            bad.add(NUMBER, example.line, what, on_bad=on_bad)


def _example(number: int, cells: list[str]) -> Example:
    *texts, label = (cell.strip() for cell in cells)
    if not all(texts):
        which = f"text {texts.index('') + 1} of {len(texts)}" if len(texts) > 1 else "the text"
        raise Bad(EMPTY_TEXT, f"{which} is empty beside the label {shortened(label)}")
    if not label:
        raise Bad(LABEL, f"no label beside {shortened(texts[0])}")
    return Example(number, tuple(texts), label)


def _cells(path: Path, wanted: Sequence[Column], separator: str | None) -> tuple[Cells, int]:
    """How a line of this file is taken apart, and the number of the first that holds an example."""
    suffix = kind(path)
    if suffix == ".jsonl":
        return _keys(wanted), 1
    if suffix not in (".tsv", ".csv") and separator is None:
        what = f"{path}: a file of labelled texts is a .tsv, .csv or .jsonl"
        raise DataError(f'{what}; rename it to what it is, or write for example data.separator = ","')
    first = next(raw_lines(path)).decode(errors="replace")
    split = _split(separator or ("," if suffix == ".csv" and "\t" not in first else "\t"), wanted)
    names = split(first) if any(isinstance(column, str) for column in wanted) else None
    return _columns(split, [_number(path, column, names) for column in wanted]), 1 if names is None else 2


def _split(separator: str, wanted: Sequence[Column]) -> Cells:
    """What a space parts has as many columns as are asked for: the last of them is all the rest."""
    if separator == ",":
        return _commas
    most = max((column for column in wanted if isinstance(column, int)), default=0) if separator == " " else -1
    return lambda line: line.split(separator, most)


def _number(path: Path, column: Column, names: list[str] | None) -> int:
    if isinstance(column, int):
        if column < 0:
            raise ConfigError(f"data: no column {column}; columns are counted from 0")
        return column
    assert names is not None
    if column not in names:
        raise ConfigError(f"data: {path.name} has no column {column!r} in its first line; {nearest(column, names)}")
    return names.index(column)


def _columns(split: Cells, wanted: Sequence[int]) -> Cells:
    def cells(line: str) -> list[str]:
        columns = split(line)
        if len(columns) <= max(wanted):
            asked = f"where column {max(wanted)}, counted from 0, was asked for"
            raise Bad(COLUMNS, f"{len(columns)} column{'s'[: len(columns) > 1]} {asked}: {shortened(line)}")
        return [columns[column] for column in wanted]

    return cells


def _commas(line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True), [""])
    except csv.Error as error:
        raise Bad(COLUMNS, f"columns that cannot be told apart ({error}): {shortened(line)}") from None


def _keys(wanted: Sequence[Column]) -> Cells:
    if not all(isinstance(key, str) for key in wanted):
        example = 'data.texts = ["sentence"] and data.label = "label"'
        raise ConfigError(f"data: {list(wanted)} names columns, but a .jsonl has keys; write for example {example}")
    *texts, label = (str(key) for key in wanted)

    def cells(line: str) -> list[str]:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            raise Bad(JSON, f"not JSON: {shortened(line)}") from None
        found = [value_at(values, key, "data.texts names the keys", line) for key in texts]
        if isinstance(values.get(label), int | float):
            return [*found, json.dumps(values[label])]
        return [*found, value_at(values, label, "data.label names it", line)]

    return cells


def _size(label: str) -> tuple[float, str]:
    return (float(label) if _is_number(label) else math.inf), label


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
