"""Tokens that know where they stand: each with the letters of the text that it says.

Offsets point into the text as it came, whatever was lower-cased or put before it; white space around a token is not
its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from regard.data.tokenizer import Tokenizer, calm, encodable


class Pieces(NamedTuple):
    """The tokens of a text. A token says text[start:end]; of white space alone it says nothing (start = end)."""

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def about(self, start: int, end: int) -> tuple[int, int] | None:
        """The first and the last token that say some of the letters from `start` to before `end`."""
        said = np.flatnonzero((self.starts < end) & (self.ends > start))
        return (int(said[0]), int(said[-1])) if len(said) else None


def pieces(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Pieces]:
    with calm():
        coded = tokenizer.inner.encode_batch([encodable(text) for text in texts], add_special_tokens=False)
    return [_pieces(tokenizer, text, one.ids, one.offsets) for text, one in zip(texts, coded, strict=True)]


def _pieces(tokenizer: Tokenizer, text: str, ids: list[int], offsets: list[tuple[int, int]]) -> Pieces:
    found = [
        (ordinary, *_trimmed(text, *span))
        for i, span in zip(ids, offsets, strict=True)
        for ordinary in tokenizer.ordinary([i])
    ]
    return Pieces(*np.array(found, np.int64).reshape(-1, 3).T)


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    said = text[start:end]
    start = end - len(said.lstrip())
    return start, start + len(said.strip())
