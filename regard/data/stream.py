"""Running text as one stream of tokens on disk, an end mark after each document, read in windows.

    tokens       all ids, one behind the other
    stream.json  format, count, end mark, fingerprint

A stream is written beside its place and moved there when it is whole; neither writing nor reading holds it in memory.
In training an epoch is all windows one behind the other, in random order (`Windows`) or in lanes that are read side by
side (`Lanes`); each epoch begins at another token, so that what was the border of a window once is its middle later.
Which windows a batch has is computed and never listed.

The first `context` tokens of a window may be there to be read only: windows then overlap by as many, and each token
is still predicted once.

    context = 0    |········|········|········|         context = 4    |----····|
                                                                           |----····|
                                                                               |----····|
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.bucket import room
from regard.data.corpora import restored
from regard.data.shuffle import shuffled
from regard.data.store import AGAIN, Mapped, beside
from regard.data.text import ENCODING, BadLines, OnBad, reading
from regard.data.tokenizer import Tokenizer
from regard.errors import ConfigError, DataError

FORMAT = 2  # of 1, the last line had no end mark
PIECE = 1 << 16  # letters of a long document that are looked at at once
BLOCK = 1 << 20  # letters encoded at once
LONE_SPACE = re.compile(r"(?s:.*)\S( )\S")  # the last one; a word with the space before it is encoded by itself

SPELT = "<eos>"  # the end of a line where it is spelt, as the reader of the TCN's authors does

Documents: TypeAlias = Literal["file", "line", "every_line", "blank", "spelt"]


# ---- text in


class Piece(NamedTuple):
    """A document, or a part of a long one; the parts together are its text, letter by letter."""

    text: str
    ends: bool = True  # its document, so that an end mark follows


def read_text(files: Sequence[Path], documents: Documents, *, bad: BadLines, on_bad: OnBad = "skip") -> Iterator[Piece]:
    """The documents of some files, whose lines keep their ends. Lines that are not UTF-8 go to `bad`.

    A file is cut anywhere: between two there is an end mark, after the last there is none.
    """
    for number, path in enumerate(files, 1):
        lines = _lines(path, bad, on_bad)
        if documents == "file":
            yield from _pieces(lines, ends=number < len(files))
        elif documents == "spelt":
            yield from _pieces((line.replace("\n", SPELT) for line in lines), ends=number < len(files))
        elif documents == "line":
            yield from (Piece(line.rstrip("\r\n")) for line in lines if line.strip())
        elif documents == "every_line":
            yield from (Piece(line.rstrip("\r\n")) for line in lines)
        else:
            for filled, group in groupby(lines, lambda line: bool(line.strip())):
                yield from _pieces(group) if filled else ()


def _pieces(lines: Iterable[str], *, ends: bool = True) -> Iterator[Piece]:
    """A document of any length, cut before the space before a word."""
    waiting, enough = "", PIECE
    for line in lines:
        waiting += line
        if len(waiting) >= enough:
            found = LONE_SPACE.match(waiting)
            enough = PIECE if found else 2 * enough
            if found:
                yield Piece(waiting[: found.start(1)], ends=False)
                waiting = waiting[found.start(1) :]
    yield Piece(waiting, ends)


def _lines(path: Path, bad: BadLines, on_bad: OnBad) -> Iterator[str]:
    bad.file = path.name
    with reading(path) as file:
        number, before = 0, len(bad)
        for number, raw in enumerate(file, 1):
            bad.read += 1
            try:
                yield (raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw).decode()
            except UnicodeDecodeError as error:
                bad.add(ENCODING, number, f"not UTF-8 at byte {error.start} of the line", on_bad=on_bad)
    if not number:
        raise DataError(f"{path}: empty; {restored(path, 'name a file with text in it')}")
    if len(bad) - before == number:
        raise DataError(f"{path}: no line of it is UTF-8; save it as UTF-8")


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

    def parts(self, count: int) -> list[Stream]:
        """So many of equal length; what is left over at the end is in none."""
        length = len(self) // count
        starts = range(self.first, self.first + count * length, length) if length else ()
        return [self._part(start, start + length) for start in starts]

    def documents(self) -> Iterator[np.ndarray]:
        """The tokens before each end mark, one document after the other, and what stands after the last."""
        start = 0
        for first in range(0, len(self), BLOCK):
            some = self.file.array[self.first + first : min(self.first + first + BLOCK, self.last)]
            for end in (first + np.flatnonzero(some == self.end)).tolist():
                yield self.read(np.array([start]), end - start)[0]
                start = end + 1
        if start < len(self):
            yield self.read(np.array([start]), len(self) - start)[0]

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
    """The tokens of some documents at a time, an end mark after each that ends."""
    own_space = tokenizer.encode("a b") != tokenizer.encode("a") + tokenizer.encode(" b")  # put before every text
    mark = [tokenizer.marks.end]
    goes_on = False  # the document of the piece before
    for block in _blocks(pieces):
        texts = []
        for piece in block:
            texts.append(piece.text[1:] if goes_on and own_space else piece.text)
            goes_on = not piece.ends
        coded = zip(block, tokenizer.encode_many(texts), strict=True)
        yield np.fromiter(chain.from_iterable(tokens + mark * piece.ends for piece, tokens in coded), np.int64)


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
    documents: Tensor | None  # (B, T) numbers of the documents, where they do not see each other; 0 began before
    ids: tuple[int, ...]  # where the windows begin in the stream
    context: int = 0  # predictions at the beginning of each row that are not counted
    starts: Tensor | None = None  # of documents, rows one behind the other; then the end, as often as room is left

    @property
    def wanted(self) -> Tensor:
        """(B, T - context)"""
        return self.text[:, 1 + self.context :]

    @property
    def tokens(self) -> int:
        return self.wanted.numel()

    @property
    def count(self) -> int:
        """What the loss is summed over."""
        return self.tokens

    def steady(self, longest: int | None = None) -> Excerpts:
        """All windows of a text have one shape already; how many documents there are is rounded up."""
        if self.documents is None:
            return self
        first = F.pad(self.documents.diff() != 0, (1, 0), value=True)
        at = first.flatten().nonzero().squeeze(1)
        room = 1 << (len(at) - 1).bit_length()
        starts = F.pad(at, (0, room + 1 - len(at)), value=first.numel())
        return replace(self, starts=starts.to(torch.int32))

    @property
    def ends(self) -> list[int]:
        """Where windows would begin that go on with these."""
        return [start + self.text.shape[1] - 1 for start in self.ids]

    def to(self, device: torch.device | str) -> Excerpts:
        """On a GPU the copy goes on while the caller does."""
        pinned = torch.device(device).type == "cuda" and not self.text.is_cuda

        def move(tensor: Tensor) -> Tensor:
            return (tensor.pin_memory() if pinned else tensor).to(device, non_blocking=pinned)

        documents, starts = (None if t is None else move(t) for t in (self.documents, self.starts))
        return replace(self, text=move(self.text), documents=documents, starts=starts)


class Windows:
    """The batches of a stream, epoch after epoch, each of as many windows as `tokens` hold, and at most `rows`.

    All windows of all epochs stand in one endless row, of which each batch takes the next: so every batch has the same
    shape, and in an epoch each window comes exactly once, whatever the number of processes.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        window: int,
        tokens: int,
        rows: int = 0,
        seed: int = 0,
        apart: bool = False,
        context: int = 0,
    ) -> None:
        if window > tokens:
            either = f"write train.tokens = {window} or more, or data.longest = {tokens} or less"
            raise ConfigError(f"train.tokens = {tokens} cannot hold a window of data.longest = {window}; {either}")
        if len(stream) <= window:
            fewer = f"write data.longest = {len(stream) - 1} or less" if len(stream) > 1 else "give more"
            raise DataError(
                f"the text to learn from has {len(stream)} tokens where a window of data.longest = {window} "
                f"needs {window + 1}; {fewer}"
            )
        self.stream, self.window, self.seed = stream, window, seed
        self.apart, self.context, self.stride = apart, context, window - context
        self.rows = room(window, tokens, rows)
        self.count = max(1, (len(stream) - window) // self.stride)  # wherever the epoch begins

    def epoch(self, step: int, world: int = 1) -> float:
        """How often the data has been seen before this step."""
        return step * world * self.rows / self.count

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Excerpts:
        """What one of `world` processes learns from at this step."""
        first = (step * world + rank) * self.rows
        epochs, places = np.divmod(np.arange(first, first + self.rows), self.count)
        starts = [self._starts(epoch, places[epochs == epoch]) for epoch in np.unique(epochs).tolist()]
        return self._excerpts(np.concatenate(starts))

    def _starts(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """Where the windows at these places of an epoch's random order begin."""
        order = shuffled(places, self.count, f"{self.seed} {epoch}")
        return self._begin(epoch, self.count, self.stride - 1) + order * self.stride

    def _begin(self, epoch: int, count: int, most: int) -> int:
        """At which token the first of an epoch's windows begins: anywhere up to `most` that leaves room for all."""
        last = len(self.stream) - 1 - self.window - (count - 1) * self.stride
        chance = int.from_bytes(blake2b(f"{self.seed} {epoch}".encode(), digest_size=8).digest())
        return chance % (min(most, last) + 1)

    def _excerpts(self, starts: np.ndarray) -> Excerpts:
        return excerpts(self.stream, starts, self.window, apart=self.apart, context=self.context)


class Lanes(Windows):
    """The same windows, as many lanes of them as a batch has rows, over all processes: each step reads on in every
    lane where the last one ended, until the lanes are over and an epoch begins.

        lane 0   |········|········|········|        three steps of an epoch; lane 1 begins where lane 0 ends
        lane 1   |········|········|········|
    """

    def __init__(self, stream: Stream, **how: Any) -> None:
        super().__init__(stream, **how)
        self.steps()

    def steps(self, world: int = 1) -> int:
        """Steps in an epoch that so many processes share."""
        lanes = self.rows * world
        if self.count < lanes:
            few = f"the text to learn from has {self.count} windows of data.longest = {self.window}"
            less = f'write train.tokens = {self.window * (self.count // world) or self.window}, or order = "random"'
            raise DataError(f'{few}, too few for data.order = "lanes" with {lanes} lanes; {less}')
        return self.count // lanes

    def epoch(self, step: int, world: int = 1) -> float:
        return step / self.steps(world)

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Excerpts:
        steps, lanes = self.steps(world), self.rows * world
        epoch, turn = divmod(step, steps)
        begin = self._begin(epoch, lanes * steps, len(self.stream))
        number = (rank * self.rows + np.arange(self.rows)) * steps + turn
        return self._excerpts(begin + number * self.stride)


WINDOWS: dict[str, type[Windows]] = {"random": Windows, "lanes": Lanes}


def in_order(stream: Stream, *, window: int, tokens: int, apart: bool = False, context: int = 0) -> Iterator[Excerpts]:
    """Every token but the first once; the last window may be a shorter one, and the first counts its context too."""
    end, rows = len(stream) - 1, room(window, tokens)
    starts = np.arange(0, max(min(end, 1), end - context), window - context)
    whole = int((starts + window <= end).sum())
    alone = 1 if context else 0  # nothing before the first window has counted what the others only read
    for first, last in pairwise(sorted({0, *range(alone, whole, rows), whole, len(starts)})):
        some = starts[first:last]
        length = min(window, end - int(some[0]))
        yield excerpts(stream, some, length, apart=apart, context=context if first else 0)


def excerpts(stream: Stream, starts: np.ndarray, window: int, *, apart: bool, context: int = 0) -> Excerpts:
    """A document reads the end mark before it as its beginning."""
    text = torch.from_numpy(stream.read(starts, window + 1))
    documents = (text[:, :-1] == stream.end).cumsum(1) if apart else None
    return Excerpts(text, documents, tuple((stream.first + starts).tolist()), context)
