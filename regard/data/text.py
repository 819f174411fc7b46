"""Raw text in: pairs of sentences from two line-aligned files, one .tsv or one .jsonl, a line at a time; plain or
packed as .xz or .gz.

Only a line feed ends a line (U+2028 and its relatives are ordinary characters), so line 17 is what `sed -n 17p` prints.
Outer white space is taken off both sides, a byte order mark off the file.
A bad line is counted and named, then skipped or refused.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedIOBase
from itertools import zip_longest
from pathlib import Path
from typing import Literal, TypeAlias

from regard.data.corpora import restored, whence
from regard.data.dialogue import exchanges
from regard.errors import ConfigError, DataError

OnBad: TypeAlias = Literal["skip", "refuse"]
Fields: TypeAlias = tuple[int | str, int | str]
Pair: TypeAlias = tuple[int, str, str]  # line number, source, target

COLUMNS = "with wrong columns"
ENCODING = "not UTF-8"
EMPTY = "with an empty side"
JSON = "not JSON"
KEYS = "with a missing key"
SPEAKERS = "without two speakers"
SEEN = "seen in training"
TOO_LONG = "too long"


class BadLines:
    """How many lines of a file could not be used, why, and which ones."""

    SHOWN = 10

    def __init__(self) -> None:
        self.file = "the data"
        self.unit, self.one = "lines", "line"
        self.read = 0
        self.counts: dict[str, int] = {}
        self.first: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return sum(self.counts.values())

    def add(self, kind: str, line: int, what: str, *, on_bad: OnBad) -> None:
        """Count a line, or refuse it with a sentence about `what` is wrong."""
        if on_bad == "refuse":
            go_on = f'mend it, or set data.bad_lines = "skip" to go on without such {self.one}s'
            raise DataError(f"{self.file}, {self.one} {line}: {what}; {go_on}")
        self.counts[kind] = self.counts.get(kind, 0) + 1
        first = self.first.setdefault(kind, [])
        if len(first) < self.SHOWN:
            first.append(line)

    def __str__(self) -> str:
        kinds = [f"{count:,} {kind} ({self._lines(kind)})" for kind, count in self.counts.items()]
        return f"{len(self):,} of {self.read:,} {self.unit} skipped" + (f": {', '.join(kinds)}" if kinds else "")

    def _lines(self, kind: str) -> str:
        count, first = self.counts[kind], self.first[kind]
        lines, more = dict.fromkeys(first), ", …" if count > len(first) else ""
        return f"{self.one}{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines))}{more}"


def find(path: str) -> Path:
    """The file as it was given, else under $REGARD_DATA."""
    roots = [Path(), *(Path(root) for root in [os.environ.get("REGARD_DATA")] if root)]
    places = [(root / Path(path).expanduser()).absolute() for root in roots]
    for place in places:
        if place.exists():
            return place
    looked = " and ".join(dict.fromkeys(map(str, places)))
    go_on = whence(path) or "set REGARD_DATA to the folder that holds your data"
    raise DataError(f"{path}: no such file; looked for {looked}; {go_on}")


def read_pairs(
    files: Sequence[Path],
    *,
    fields: Fields | None = None,
    turns: str | None = None,
    bad: BadLines,
    on_bad: OnBad = "skip",
) -> Iterator[Pair]:
    """Every pair of every good line as (line number, source, target); the bad ones go to `bad`."""
    split = _split(files, fields, turns)
    bad.file, bad.unit = " + ".join(path.name for path in files), "lines" if turns is None else "exchanges"
    for number, raw in enumerate(_rows(files), 1):
        try:
            row = [decoded(path, side) for path, side in zip(files, raw, strict=True)]
            pairs = [_filled(*pair) for pair in split(row)]
        except Bad as error:
            bad.read += 1
            bad.add(error.kind, number, error.what, on_bad=on_bad)
        else:
            bad.read += len(pairs)
            yield from ((number, *pair) for pair in pairs)


def unseen(held: Iterable[Pair], shown: Iterable[Pair], *, bad: BadLines, on_bad: OnBad = "skip") -> Iterator[Pair]:
    """The held-out pairs that training has not shown; only what is held out is kept in memory."""
    pairs = list(held)
    ours = {_gist(pair) for pair in pairs}
    seen = {gist for pair in shown if (gist := _gist(pair)) in ours}
    for pair in pairs:
        if _gist(pair) in seen:
            bad.add(SEEN, pair[0], f"training shows it too: {shortened(pair[1])}", on_bad=on_bad)
        else:
            yield pair


def _gist(pair: Pair) -> tuple[str, ...]:
    """Letters and digits of both sides: another comma or capital makes nothing new."""
    return tuple("".join(filter(str.isalnum, side.casefold())) for side in pair[1:])


class Bad(Exception):
    """One line that cannot be used."""

    def __init__(self, kind: str, what: str) -> None:
        self.kind, self.what = kind, what


Split: TypeAlias = Callable[[list[str]], list[tuple[str, str]]]


def _split(files: Sequence[Path], fields: Fields | None, turns: str | None) -> Split:
    """How a row of these files becomes pairs: one, or all exchanges of a dialogue."""
    match [kind(path) for path in files]:
        case _ if turns is not None and fields is not None:
            raise ConfigError(f"data.turns = {turns!r} beside data.fields = {list(fields)}: leave one of them out")
        case [".jsonl"] if turns is not None:
            return _turns(turns)
        case _ if turns is not None:
            raise ConfigError(f"data.turns = {turns!r} is for one .jsonl; leave it out for other files")
        case [".tsv"]:
            return _columns(fields)
        case [".jsonl"]:
            return _keys(fields)
        case [_, _] if fields is None:
            return lambda row: [(row[0], row[1])]
        case [_, _]:
            raise ConfigError(f"data.fields = {fields} is for one .tsv or .jsonl; leave it out for two files")
    names = ", ".join(str(path) for path in files) or "no file"
    raise DataError(f"{names}: give two line-aligned files (source, target), one .tsv or one .jsonl")


def _columns(fields: Fields | None) -> Split:
    if fields and not all(isinstance(field, int) and field >= 0 for field in fields):
        raise ConfigError(f"data.fields = {list(fields)}: a .tsv has columns 0, 1, …; write for example [0, 1]")
    first, second = (int(field) for field in fields or (0, 1))

    def split(row: list[str]) -> list[tuple[str, str]]:
        columns = row[0].split("\t")
        if fields is None and len(columns) != 2:
            wrong = "where 2 were wanted (data.fields picks two of many)"
        elif len(columns) <= max(first, second):
            wrong = f"where data.fields asks for {first} and {second}, counted from 0"
        else:
            return [(columns[first], columns[second])]
        raise Bad(COLUMNS, f"{len(columns)} column{'s'[: len(columns) > 1]} {wrong}: {shortened(row[0])}")

    return split


def _keys(fields: Fields | None) -> Split:
    if fields and not all(isinstance(field, str) for field in fields):
        raise ConfigError(f'data.fields = {list(fields)}: a .jsonl has keys; write for example ["source", "target"]')
    first, second = (str(field) for field in fields or ("source", "target"))

    def split(row: list[str]) -> list[tuple[str, str]]:
        source, target = _values(row[0], first, second, named="data.fields names the two keys")
        return [(source, target)]

    return split


def _turns(key: str) -> Split:
    def split(row: list[str]) -> list[tuple[str, str]]:
        (dialogue,) = _values(row[0], key, named="data.turns names the key")
        found = exchanges(dialogue)
        if not found:
            wanted = 'where lines "speaker: words" of two speakers were wanted'
            raise Bad(SPEAKERS, f"nobody answers {wanted}, under the key {key!r}: {shortened(dialogue)}")
        return found

    return split


def _values(line: str, *keys: str, named: str) -> list[str]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        raise Bad(JSON, f"not JSON: {shortened(line)}") from None
    return [value_at(values, key, named, line) for key in keys]


def value_at(values: object, key: str, named: str, line: str) -> str:
    text = values.get(key) if isinstance(values, dict) else None
    if not isinstance(text, str):
        raise Bad(KEYS, f"no text under the key {key!r} ({named}): {shortened(line)}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Bad(
            ENCODING, f"half a character, which UTF-8 cannot hold, under the key {key!r}: {shortened(line)}"
        ) from None
    return text


def _rows(files: Sequence[Path]) -> Iterator[tuple[bytes, ...]]:
    """The lines of all files side by side."""
    columns = [raw_lines(path) for path in files]
    for count, row in enumerate(zip_longest(*columns)):
        if None in row:
            rest = [(line is not None) + sum(1 for _ in column) for line, column in zip(row, columns, strict=True)]
            have = " and ".join(f"{path} has {count + more:,} lines" for path, more in zip(files, rest, strict=True))
            raise DataError(f"{have}; line n of one must translate line n of the other, so give equally many lines")
        yield row


def raw_lines(path: Path) -> Iterator[bytes]:
    with reading(path) as file:
        line = None
        for number, line in enumerate(file):
            yield (line.removeprefix(b"\xef\xbb\xbf") if number == 0 else line).rstrip(b"\r\n")
    if line is None:
        raise DataError(f"{path}: empty; {restored(path, 'name a file with a sentence on every line')}")


@contextmanager
def reading(path: Path) -> Iterator[BufferedIOBase]:
    """A file that is open; whatever keeps it from being read is told in a sentence."""
    try:
        with opened(path) as file:
            yield file
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; name one that is there") from None
    except IsADirectoryError:
        raise DataError(f"{path}: a folder; name the files in it") from None
    except (lzma.LZMAError, zlib.error, gzip.BadGzipFile, EOFError) as error:
        what = f"not a whole {path.suffix.lower()} file ({error})"
        raise DataError(f"{path}: {what}; {restored(path, 'compress it again, or name the plain file')}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}; name a file that can") from None


def kind(path: Path) -> str:
    """The ending that says what is in a file: .tsv, be it packed or not."""
    name = Path(path.name.lower())
    return Path(name.stem).suffix if name.suffix in (".xz", ".gz") else name.suffix


def opened(path: Path) -> BufferedIOBase:
    match path.suffix.lower():
        case ".xz":
            return lzma.open(path)
        case ".gz":
            return gzip.open(path)
    return path.open("rb")


def decoded(path: Path, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        text = shortened(raw.decode(errors="replace"))
        raise Bad(ENCODING, f"{path.name} is not UTF-8 at byte {error.start} of the line: {text}") from None


def _filled(source: str, target: str) -> tuple[str, str]:
    sides = source.strip(), target.strip()
    for name, side, other in (("source", *sides), ("target", *sides[::-1])):
        if not side:
            raise Bad(EMPTY, f"the {name} side is empty beside {shortened(other)}")
    return sides


def shortened(line: str) -> str:
    return repr(line if len(line) <= 60 else line[:59] + "…")
