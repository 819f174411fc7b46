"""Documents of sentences: raw text in, and tokens on disk that are read through memory maps.

A text file has a sentence a line, or whole paragraphs that are split into sentences, and a blank line between
documents. Two kinds of file are read as they are published, and their paragraphs are always split:

    .tokens     WikiText: `= Title =` begins a document; headings and blank lines are left out
    .json       SQuAD: an article is a document, its passages are the paragraphs; questions are left out

What is stored:

    tokens      of all sentences one behind the other, without marks
    sentences   where each begins among the tokens, and where the last one ends
    documents   where each begins among the sentences, and where the last one ends
    store.json  format, counts, fingerprint
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from regard.data.store import AGAIN, BLOCK, Mapped, beside
from regard.data.text import Bad, BadLines, OnBad, decoded, kind, raw_lines
from regard.data.tokenizer import Tokenizer
from regard.errors import DataError

FORMAT = 1
NO_SENTENCE = "without a sentence"
NO_TOKEN = "without a token"
WHERE = np.dtype("<i8")


class Sentence(NamedTuple):
    """One sentence, and the line of the file in which it stands."""

    line: int
    text: str
    first: bool  # of its document


# ---- reading


def read_documents(
    files: Sequence[Path], *, sentences: Literal["line", "split"] = "line", bad: BadLines, on_bad: OnBad = "skip"
) -> Iterator[Sentence]:
    """Every sentence of every document, in order. A file ends a document; what cannot be read goes to `bad`."""
    for path in files:
        bad.file = path.name
        paragraphs, split = _reader(path, sentences)
        first = True
        for line, paragraph in paragraphs(path, bad, on_bad):
            if paragraph is None:
                first = True
                continue
            for text in split(paragraph):
                yield Sentence(line, text, first)
                first = False
    bad.file = " + ".join(path.name for path in files)


def sentences_of(paragraph: str) -> list[str]:
    """A paragraph cut after each full stop, question or exclamation mark that a space follows.

    Not after a single letter or a title ("J. Smith", "Dr. Watson"), nor where a small letter goes on.
    """
    cuts = [end.end() for end in ENDS.finditer(paragraph) if not _goes_on(paragraph, end)]
    parts = (paragraph[start:end].strip() for start, end in zip([0, *cuts], [*cuts, None], strict=True))
    return [part for part in parts if part]


ENDS = re.compile(r"""[.!?…]+["'”’»)\]]*\s+|[。！？]+[」』”’）]*\s*""")
TITLES = re.compile(r"\b([^\W\d_]|Mr|Mrs|Ms|Dr|Prof|St|Mt|Gen|Col|Capt|Lt|Sgt|Rev|Hon|Sen|Gov|No|Jr|vs)$")


def _goes_on(paragraph: str, end: re.Match[str]) -> bool:
    if paragraph[end.end() : end.end() + 1].islower():
        return True
    before = paragraph[max(0, end.start() - 8) : end.start()]
    return end[0].startswith(".") and TITLES.search(before) is not None


Paragraphs: TypeAlias = Iterator[tuple[int, str | None]]  # with their line; None stands between two documents
Split: TypeAlias = Callable[[str], list[str]]


def _reader(path: Path, sentences: str) -> tuple[Callable[[Path, BadLines, OnBad], Paragraphs], Split]:
    match kind(path):
        case ".tokens":
            return _wikitext, sentences_of
        case ".json":
            return _squad, sentences_of
        case _:
            return _plain, sentences_of if sentences == "split" else lambda line: [line]


def _plain(path: Path, bad: BadLines, on_bad: OnBad) -> Paragraphs:
    """A line, or None where it is blank."""
    for number, raw in enumerate(raw_lines(path), 1):
        bad.read += 1
        try:
            yield number, decoded(path, raw).strip() or None
        except Bad as error:
            bad.add(error.kind, number, error.what, on_bad=on_bad)


def _wikitext(path: Path, bad: BadLines, on_bad: OnBad) -> Paragraphs:
    for number, line in _plain(path, bad, on_bad):
        if line is None or re.fullmatch("= = .* = =", line):
            continue
        if re.fullmatch("= .* =", line):
            yield number, None
        else:
            yield number, _as_printed(line)


def _as_printed(line: str) -> str:
    """WikiText writes 1 @,@ 000 for 1,000, and <unk> for a rare word, which is one sign here and not five letters."""
    return re.sub(" @([-,.])@ ", r"\1", line).replace("<unk>", "\ufffd")


def _squad(path: Path, bad: BadLines, on_bad: OnBad) -> Paragraphs:
    """Articles take the place of lines: they are what is counted, skipped and refused."""
    bad.unit, bad.one = "lines and articles", "article"
    for number, passages in enumerate(_articles(path), 1):
        bad.read += 1
        if not any(passages):
            bad.add(NO_SENTENCE, number, "has no text", on_bad=on_bad)
        yield number, None
        yield from ((number, passage) for passage in passages)
    bad.one = "line"  # of the next file


def _articles(path: Path) -> list[list[str]]:
    """The passages of each article."""
    try:
        articles: Any = json.loads(b"\n".join(raw_lines(path)))["data"]
        return [[str(paragraph["context"]).strip() for paragraph in one["paragraphs"]] for one in articles]
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: not JSON ({error}); name a file in SQuAD's form, or text with the ending .txt"
        ) from None
    except (KeyError, TypeError):
        form = '{"data": [{"paragraphs": [{"context": "…"}]}]}'
        raise DataError(f"{path}: JSON of another form; SQuAD's is wanted, which is {form}") from None


# ---- the store


class Documents:
    """Sentences by number, as stretches of one long array of tokens."""

    def __init__(self, folder: Path, dtype: np.dtype, fingerprint: str) -> None:
        self.folder, self.fingerprint = folder, fingerprint
        self.tokens = Mapped(folder / "tokens", dtype)
        self.sentences = Mapped(folder / "sentences", WHERE)
        self.documents = Mapped(folder / "documents", WHERE)

    def __len__(self) -> int:
        return len(self.documents.array) - 1

    def span(self, number: int) -> tuple[int, int]:
        """The first sentence of a document, and the first that is no longer in it."""
        return int(self.documents.array[number]), int(self.documents.array[number + 1])

    @classmethod
    def build(
        cls,
        folder: Path,
        sentences: Iterable[Sentence],
        tokenizer: Tokenizer,
        *,
        bad: BadLines,
        on_bad: OnBad = "skip",
        progress: Callable[[int], None] | None = None,
    ) -> Documents:
        """Encode sentences into `folder`, some at a time. `progress` hears how many there are."""
        with beside(folder) as work:
            writer = _Writer(work, tokenizer)
            waiting = iter(sentences)
            while block := list(islice(waiting, BLOCK)):
                writer.add(block, bad, on_bad)
                if progress:
                    progress(writer.sentences)
            if not writer.sentences:
                raise DataError(f"{bad.file}: no sentence is left ({bad}); name files with text")
            writer.finish()
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> Documents:
        try:
            about = json.loads((folder / "store.json").read_text("utf-8"))
            if about["format"] != FORMAT:
                raise DataError(f"{folder}: documents of format {about['format']} where {FORMAT} was wanted; {AGAIN}")
            store = cls(folder, np.dtype(f"<u{about['bytes']}"), about["fingerprint"])
            wanted = about["tokens"], about["sentences"], about["documents"]
        except FileNotFoundError as error:
            raise DataError(f"{error.filename}: no such file, so these are no stored documents; {AGAIN}") from None
        except (ValueError, TypeError, KeyError, OSError) as error:
            raise DataError(f"{folder}: cannot be read as stored documents ({error!r}); {AGAIN}") from None
        found = len(store.tokens.array), len(store.sentences.array) - 1, len(store)
        if found != wanted:
            raise DataError(f"{folder}: {found} tokens, sentences and documents where store.json has {wanted}; {AGAIN}")
        return store


class _Writer:
    """Appends to the three files, and counts."""

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        self.folder, self.tokenizer = folder, tokenizer
        self.dtype = np.dtype("<u2" if tokenizer.size <= 1 << 16 else "<u4")
        self.tokens = self.sentences = self.documents = 0
        self.first = True  # the sentence to come begins a document
        self._hash = blake2b(f"{FORMAT} {tokenizer.fingerprint}".encode(), digest_size=16)

    def add(self, block: list[Sentence], bad: BadLines, on_bad: OnBad) -> None:
        tokens: list[int] = []
        sentences: list[int] = []
        documents: list[int] = []
        for sentence, ids in zip(block, self.tokenizer.encode_many([one.text for one in block]), strict=True):
            self.first |= sentence.first
            if not ids:
                bad.add(NO_TOKEN, sentence.line, f"no token in {sentence.text!r}", on_bad=on_bad)
                continue
            if self.first:
                documents.append(self.sentences + len(sentences))
            self.first = False
            sentences.append(self.tokens + len(tokens))
            tokens += ids
        self._append("tokens", np.array(tokens, self.dtype))
        self._append("sentences", np.array(sentences, WHERE))
        self._append("documents", np.array(documents, WHERE))
        self.tokens += len(tokens)
        self.sentences += len(sentences)
        self.documents += len(documents)

    def finish(self) -> None:
        """The two ends, then store.json, without which there is no store."""
        self._append("sentences", np.array([self.tokens], WHERE))
        self._append("documents", np.array([self.sentences], WHERE))
        about = {
            "format": FORMAT,
            "tokens": self.tokens,
            "sentences": self.sentences,
            "documents": self.documents,
            "bytes": self.dtype.itemsize,
            "fingerprint": self._hash.hexdigest(),
        }
        (self.folder / "store.json").write_text(json.dumps(about), "utf-8")

    def _append(self, name: str, values: np.ndarray) -> None:
        self._hash.update(values.tobytes())
        with (self.folder / name).open("ab") as file:
            file.write(values.tobytes())
