"""The token store: a corpus of encoded pairs on disk, read through memory maps, laid out for batches.

    tokens      each pair as  source … end begin target … end
    listing     a record of each pair: where it begins, its two lengths, its line in the data
    store.json  format, counts, buckets, fingerprint

Both files hold the pairs bucket by bucket (similar lengths together), and shuffled inside a bucket.
A length counts the end mark but not the beginning: the tokens that a model reads (source) or predicts (target).
A store is written beside its place and moved there when it is whole; no step holds the corpus in memory.
"""

from __future__ import annotations

import json
import mmap
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from regard.data.bucket import Bucket
from regard.data.text import TOO_LONG, BadLines, OnBad, Pair
from regard.data.tokenizer import Tokenizers
from regard.data.writer import FORMAT, RECORD, Writer, spans
from regard.disk import to_disk
from regard.errors import DataError, RegardError

BLOCK = 4096  # pairs encoded at once
RESIDENT = 64 << 20  # bytes of a file that may stay in memory
AGAIN = "delete the folder and train again, which builds it anew"


class Ragged(NamedTuple):
    """Sequences one behind the other."""

    tokens: np.ndarray
    lengths: np.ndarray


class Store:
    """Pairs by their place on disk, from short to long."""

    def __init__(self, folder: Path, dtype: np.dtype, buckets: Iterable[Bucket], fingerprint: str) -> None:
        self.folder = folder
        self.buckets = tuple(buckets)
        self.fingerprint = fingerprint
        self.tokens = Mapped(folder / "tokens", dtype)
        self.listing = Mapped(folder / "listing", RECORD)

    def __len__(self) -> int:
        return len(self.listing.array)

    def pair(self, place: int) -> tuple[np.ndarray, np.ndarray]:
        """Source (… end) and target (begin … end), as views of the file."""
        start, source, target, _ = self.listing.array[place].item()
        tokens = self.tokens.array[start : start + source + 1 + target]
        return tokens[:source], tokens[source:]

    @property
    def lines(self) -> list[int]:
        """The line in the data of each pair."""
        return self.listing.array["line"].tolist()

    def gather(self, places: np.ndarray) -> tuple[Ragged, Ragged, list[int]]:
        """Sources, targets and line numbers of many pairs."""
        records = self.listing.array[places]
        starts, sources, targets = (records[name].astype(np.int64) for name in ("start", "source", "target"))
        source = Ragged(self.tokens.array[spans(starts, sources)], sources)
        target = Ragged(self.tokens.array[spans(starts + sources, targets + 1)], targets + 1)
        self.listing.let_go()
        self.tokens.let_go()
        return source, target, records["line"].tolist()

    @classmethod
    def build(
        cls,
        folder: Path,
        pairs: Iterable[Pair],
        tokenizers: Tokenizers,
        *,
        longest: int,
        bad: BadLines,
        on_bad: OnBad = "skip",
        progress: Callable[[int], None] | None = None,
    ) -> Store:
        """Encode pairs into `folder`; a side of more than `longest` tokens makes a pair bad."""
        with beside(folder) as work:
            writer = Writer(work, vocabulary=max(tokenizers.source.size, tokenizers.target.size), longest=longest)
            writer.sign(f"{tokenizers.fingerprint} {longest}".encode())
            waiting = iter(pairs)
            while block := list(islice(waiting, BLOCK)):
                writer.add(*_encode(block, tokenizers, longest, bad, on_bad))
                if progress:
                    progress(writer.draft.count)
            if not writer.draft.count:
                raise DataError(f"{bad.file}: no pair is left ({bad}); give other data or raise data.longest")
            writer.finish()
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> Store:
        try:
            about = json.loads((folder / "store.json").read_text("utf-8"))
            if about["format"] != FORMAT:
                raise DataError(f"{folder}: store of format {about['format']} where {FORMAT} was wanted; {AGAIN}")
            buckets = [Bucket(*bucket) for bucket in about["buckets"]]
            store = cls(folder, np.dtype(f"<u{about['bytes']}"), buckets, about["fingerprint"])
            wanted = about["tokens"], about["pairs"], about["pairs"]
        except FileNotFoundError as error:
            raise DataError(f"{error.filename}: no such file, so this is no token store; {AGAIN}") from None
        except (ValueError, TypeError, KeyError, OSError) as error:
            raise DataError(f"{folder}: cannot be read as a token store ({error!r}); {AGAIN}") from None
        found = len(store.tokens.array), len(store), sum(bucket.count for bucket in buckets)
        if found != wanted:
            raise DataError(f"{folder}: {found} tokens, pairs and places where store.json has {wanted}; {AGAIN}")
        return store


class Mapped:
    """A file as an array. What was read counts as our memory until it is let go; the system caches it all the same."""

    def __init__(self, path: Path, dtype: np.dtype) -> None:
        with path.open("rb") as file:
            self._pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.array: np.ndarray = np.frombuffer(self._pages, dtype)

    def let_go(self) -> None:
        if len(self._pages) > RESIDENT:
            self._pages.madvise(mmap.MADV_DONTNEED)


def _encode(
    block: list[Pair], tokenizers: Tokenizers, longest: int, bad: BadLines, on_bad: OnBad
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and records of those pairs that are short enough."""
    lines, *texts = zip(*block, strict=True)
    sources = map(tokenizers.source.marks.source, tokenizers.source.encode_many(texts[0]))
    targets = map(tokenizers.target.marks.target, tokenizers.target.encode_many(texts[1]))
    kept = [pair for pair in zip(lines, sources, targets, strict=True) if _fits(pair, longest, bad, on_bad)]
    tokens = chain.from_iterable((*source, *target) for _, source, target in kept)
    counts = [(0, len(source), len(target) - 1, line) for line, source, target in kept]
    return np.fromiter(tokens, np.int64), np.array(counts, RECORD)


def _fits(pair: tuple[int, list[int], list[int]], longest: int, bad: BadLines, on_bad: OnBad) -> bool:
    line, source, target = pair
    for name, length in (("source", len(source)), ("target", len(target) - 1)):
        if length > longest:
            what = f"{length:,} tokens on the {name} side where data.longest is {longest:,}"
            bad.add(TOO_LONG, line, what, on_bad=on_bad)
            return False
    return True


@contextmanager
def beside(folder: Path) -> Iterator[Path]:
    """A folder to work in that takes its place only when all went well."""
    work = folder.with_name(f".{folder.name}.part")
    try:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        yield work
        for path in work.iterdir():
            to_disk(path)
        shutil.rmtree(folder, ignore_errors=True)
        work.rename(folder)
        to_disk(folder.parent)
    except OSError as error:
        raise RegardError(
            f"{folder}: cannot be written: {error.strerror}; make room or choose another folder"
        ) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
