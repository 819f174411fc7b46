"""Running text as one stream of tokens on disk, an end mark between two documents, read in windows.

    tokens       all ids, one behind the other
    stream.json  format, count, end mark, fingerprint

A stream is written beside its place and moved there when it is whole; neither writing nor reading holds it in memory.
In training an epoch is all windows that do not overlap, in random order; each epoch begins at another token, so that
what was the border of a window once is its middle later. Which windows a batch has is computed and never listed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain, groupby
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from regard.data.shuffle import shuffled
from regard.data.store import AGAIN, Mapped, beside
from regard.data.text import ENCODING, BadLines, OnBad, reading
from regard.data.tokenizer import Tokenizer
from regard.errors import ConfigError, DataError

FORMAT = 1
PIECE = 1 << 16  # letters of a long document that are looked at at once
BLOCK = 1 << 20  # letters encoded at once
LONE_SPACE = re.compile(r"(?s:.*)\S( )\S")  # the last one; a word with the space before it is encoded by itself

Documents: TypeAlias = Literal["file", "line", "blank"]


# ---- text in


class Piece(NamedTuple):
    """A document, or a part of a long one; the parts together are its text, letter by letter."""

    text: str
    last: bool = True  # of its document


def read_text(files: Sequence[Path], documents: Documents, *, bad: BadLines, on_bad: OnBad = "skip") -> Iterator[Piece]:
    """The documents of some files, whose lines keep their ends. Lines that are not UTF-8 go to `bad`."""
    for path in files:
        lines = _lines(path, bad, on_bad)
        if documents == "file":
            yield from _pieces(lines)
        elif documents == "line":
            yield from (Piece(line.rstrip("\r\n")) for line in lines if line.strip())
        else:
            for filled, group in groupby(lines, lambda line: bool(line.strip())):
                yield from _pieces(group) if filled else ()


def _pieces(lines: Iterable[str]) -> Iterator[Piece]:
    """A document of any length, cut before the space before a word."""
    waiting, enough = "", PIECE
    for line in lines:
        waiting += line
        if len(waiting) >= enough:
            found = LONE_SPACE.match(waiting)
            enough = PIECE if found else 2 * enough
            if found:
                yield Piece(waiting[: found.start(1)], last=False)
                waiting = waiting[found.start(1) :]
    yield Piece(waiting)


def _lines(path: Path, bad: BadLines, on_bad: OnBad) -> Iterator[str]:
    bad.file = path.name
    with reading(path) as file:
        number = 0
        for number, raw in enumerate(file, 1):
            bad.read += 1
            try:
                yield (raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw).decode()
            except UnicodeDecodeError as error:
                bad.add(ENCODING, number, f"not UTF-8 at byte {error.start} of the line", on_bad=on_bad)
    if not number:
        raise DataError(f"{path}: empty; name a file with text in it")


# ---- the stream


class Stream:
    """Tokens from `first` to before `last` of a file."""

    def __init__(self, file: Mapped, end: int, fingerprint: str, first: int, last: int) -> None:
        self.file, self.end, self.fingerprint = file, end, fingerprint
        self.first, self.last = first, last

    def __len__(self) -> int:
        return self.last - self.first

    def read(self, starts: np.ndarray, length: int) -> np.ndarray:
        """So many tokens from each start on, (rows, length)."""
        found = self.file.array[self.first + starts[:, None] + np.arange(length)].astype(np.int64)
        self.file.let_go()
        return found

    def split(self, held: float) -> tuple[Stream, Stream]:
        """All but a share at the end, and that share."""
        border = self.first + int(len(self) * (1 - held))
        return self._part(self.first, border), self._part(border, self.last)

    def _part(self, first: int, last: int) -> Stream:
        return Stream(self.file, self.end, f"{self.fingerprint}-{first}-{last}", first, last)

    @classmethod
    def build(
        cls,
        folder: Path,
        pieces: Iterable[Piece],
        tokenizer: Tokenizer,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> Stream:
        """Encodes documents into `folder`; `progress` hears how many tokens there are."""
        dtype = np.dtype("<u2" if tokenizer.size <= 1 << 16 else "<u4")
        signed = blake2b(f"{FORMAT} {tokenizer.fingerprint}".encode(), digest_size=16)
        count = 0
        with beside(folder) as work:
            with (work / "tokens").open("wb") as file:
                for tokens in _encode(pieces, tokenizer):
                    signed.update(tokens.astype("<u4").tobytes())
                    file.write(tokens.astype(dtype).tobytes())
                    count += len(tokens)
                    if progress:
                        progress(count)
            if not count:
                raise DataError(f"{folder.name}: no text is left; give files with text in them")
            about = {
                "format": FORMAT,
                "tokens": count,
                "bytes": dtype.itemsize,
                "end": tokenizer.marks.end,
                "fingerprint": signed.hexdigest(),
            }
            (work / "stream.json").write_text(json.dumps(about), "utf-8")
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> Stream:
        try:
            about = json.loads((folder / "stream.json").read_text("utf-8"))
            if about["format"] != FORMAT:
                raise DataError(f"{folder}: stream of format {about['format']} where {FORMAT} was wanted; {AGAIN}")
            file = Mapped(folder / "tokens", np.dtype(f"<u{about['bytes']}"))
            count, end, fingerprint = about["tokens"], about["end"], about["fingerprint"]
        except FileNotFoundError as error:
            raise DataError(f"{error.filename}: no such file, so this is no stream of tokens; {AGAIN}") from None
        except (ValueError, TypeError, KeyError, OSError) as error:
            raise DataError(f"{folder}: cannot be read as a stream of tokens ({error!r}); {AGAIN}") from None
        if len(file.array) != count:
            raise DataError(f"{folder}: {len(file.array)} tokens where stream.json has {count}; {AGAIN}")
        return cls(file, end, fingerprint, 0, count)


def _encode(pieces: Iterable[Piece], tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """The tokens of some documents at a time, an end mark before each but the first of all."""
    own_space = tokenizer.encode("a b") != tokenizer.encode("a") + tokenizer.encode(" b")  # put before every text
    mark: list[int] = []
    goes_on = False  # the document of the piece before
    for block in _blocks(pieces):
        marks, texts = [], []
        for piece in block:
            marks.append([] if goes_on else mark)
            texts.append(piece.text[1:] if goes_on and own_space else piece.text)
            goes_on, mark = not piece.last, [tokenizer.marks.end]
        coded = zip(marks, tokenizer.encode_many(texts), strict=True)
        yield np.fromiter(chain.from_iterable((*mark, *tokens) for mark, tokens in coded), np.int64)


def _blocks(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    block: list[Piece] = []
    size = 0
    for piece in pieces:
        block.append(piece)
        size += len(piece.text)
        if size >= BLOCK:
            yield block
            block, size = [], 0
    if block:
        yield block


# ---- windows


@dataclass(frozen=True, eq=False)
class Excerpts:
    """Windows side by side: each token but the first of a row is to be predicted from those before it."""

    text: Tensor  # (B, T + 1)
    documents: Tensor | None  # (B, T) numbers of the documents, where they do not see each other
    ids: tuple[int, ...]  # where the windows begin in the stream

    @property
    def tokens(self) -> int:
        return self.text[:, 1:].numel()

    def to(self, device: torch.device | str) -> Excerpts:
        """On a GPU the copy goes on while the caller does."""
        pinned = torch.device(device).type == "cuda" and not self.text.is_cuda

        def move(tensor: Tensor) -> Tensor:
            return (tensor.pin_memory() if pinned else tensor).to(device, non_blocking=pinned)

        documents = None if self.documents is None else move(self.documents)
        return replace(self, text=move(self.text), documents=documents)


class Windows:
    """The batches of a stream, epoch after epoch, each of as many windows as `tokens` hold.

    All windows of all epochs stand in one endless row, of which each batch takes the next: so every batch has the same
    shape, and in an epoch each window comes exactly once, whatever the number of processes.
    """

    def __init__(self, stream: Stream, *, window: int, tokens: int, seed: int = 0, apart: bool = False) -> None:
        if window > tokens:
            either = f"write train.tokens = {window} or more, or data.longest = {tokens} or less"
            raise ConfigError(f"train.tokens = {tokens} cannot hold a window of data.longest = {window}; {either}")
        if len(stream) <= window:
            fewer = f"write data.longest = {len(stream) - 1} or less" if len(stream) > 1 else "give more"
            raise DataError(
                f"the text to learn from has {len(stream)} tokens where a window of data.longest = {window} "
                f"needs {window + 1}; {fewer}"
            )
        self.stream, self.window, self.seed, self.apart = stream, window, seed, apart
        self.rows = tokens // window
        self.count = max(1, (len(stream) - window) // window)  # wherever the epoch begins
        self.shift = min(window - 1, len(stream) - 1 - self.count * window)  # at most

    def epoch(self, step: int, world: int = 1) -> float:
        """How often the data has been seen before this step."""
        return step * world * self.rows / self.count

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Excerpts:
        """What one of `world` processes learns from at this step."""
        first = (step * world + rank) * self.rows
        epochs, places = np.divmod(np.arange(first, first + self.rows), self.count)
        starts = [self._starts(epoch, places[epochs == epoch]) for epoch in np.unique(epochs).tolist()]
        return excerpts(self.stream, np.concatenate(starts), self.window, apart=self.apart)

    def _starts(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """Where the windows at these places of an epoch's random order begin."""
        chance = int.from_bytes(blake2b(f"{self.seed} {epoch}".encode(), digest_size=8).digest())
        order = shuffled(places, self.count, f"{self.seed} {epoch}")
        return chance % (self.shift + 1) + order * self.window


def in_order(stream: Stream, *, window: int, tokens: int, apart: bool = False) -> Iterator[Excerpts]:
    """Every token but the first once, in windows that do not overlap; the last may be a shorter one."""
    whole, rest = divmod(len(stream) - 1, window)
    rows = max(1, tokens // window)
    for first in range(0, whole, rows):
        starts = np.arange(first, min(first + rows, whole)) * window
        yield excerpts(stream, starts, window, apart=apart)
    if rest:
        yield excerpts(stream, np.array([whole * window]), rest, apart=apart)


def excerpts(stream: Stream, starts: np.ndarray, window: int, *, apart: bool) -> Excerpts:
    """A document reads the end mark before it as its beginning."""
    text = torch.from_numpy(stream.read(starts, window + 1))
    documents = (text[:, :-1] == stream.end).cumsum(1) if apart else None
    return Excerpts(text, documents, tuple((stream.first + starts).tolist()))
