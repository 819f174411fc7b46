"""Hiding tokens that are to be guessed, as BERT does (Devlin et al. 2019, section 3.1 and its code).

Of a sequence of T tokens, marks included, exactly round(share · T) are chosen, at least one, and never a mark. Of the
chosen, 80 % are shown as the mask, 10 % as they are and 10 % as any token of the vocabulary.

Chance is computed and not drawn: a number for each (key, sequence, position), so that what is hidden of a sequence does
not depend on the batch in which it comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from regard.data.tokenizer import Marks
from regard.errors import ConfigError

MASKED, AS_IT_IS = 0.8, 0.1


@dataclass(frozen=True)
class Masking:
    """How tokens are hidden. `most` bounds those of a sequence, 0 does not; `later` is of each token of the vocabulary
    whether it goes on with a word, where whole words are to be hidden."""

    marks: Marks
    vocab: int
    share: float = 0.15
    most: int = 0
    later: np.ndarray | None = None

    @property
    def mask(self) -> int:
        if self.marks.mask is None:
            raise ConfigError("the vocabulary has no mask to hide a token behind; train one that has, or add it")
        return self.marks.mask

    def count(self, lengths: np.ndarray) -> np.ndarray:
        """How many tokens are chosen of a sequence, by its length with marks."""
        wanted = np.maximum(1, np.rint(self.share * lengths)).astype(np.int64)
        return np.minimum(wanted, self.most) if self.most else wanted

    def hide(self, tokens: np.ndarray, numbers: np.ndarray, key: str) -> tuple[np.ndarray, np.ndarray]:
        """What is shown of padded sequences (B, T), and which tokens were chosen. `numbers` names the sequences."""
        chosen = self.choose(tokens, numbers, key)
        row, at = chosen.nonzero()
        coin = chance(f"{key} coin", numbers[row], at) / 2.0**64
        anything = (chance(f"{key} word", numbers[row], at) % np.uint64(self.vocab)).astype(np.int64)
        shown = tokens.copy()
        kept = np.where(coin < MASKED + AS_IT_IS, tokens[row, at], anything)
        shown[row, at] = np.where(coin < MASKED, self.mask, kept)
        return shown, chosen

    def choose(self, tokens: np.ndarray, numbers: np.ndarray, key: str) -> np.ndarray:
        """The first so many in a random order, or as many whole words as find room among so many."""
        text = ~np.isin(tokens, (self.marks.pad, self.marks.begin, self.marks.end))
        wanted = np.minimum(self.count((tokens != self.marks.pad).sum(1)), text.sum(1))
        order = chance(key, numbers[:, None], np.arange(tokens.shape[1]))
        order[~text] = np.iinfo(np.uint64).max
        single = _first(order, wanted)
        if self.later is None:
            return single
        words = _whole_words(order, text, self.later[tokens], wanted)
        return np.where(words.any(1, keepdims=True), words, single)  # where no word finds room, pieces of some do


def later_pieces(pieces: Sequence[str]) -> np.ndarray:
    """Whether each piece of a vocabulary goes on with a word: it has ## before it, or lacks the ▁ that others have."""
    spaced = any(piece.startswith("▁") for piece in pieces)
    return np.array([not piece.startswith("▁") if spaced else piece.startswith("##") for piece in pieces])


def chance(key: str, numbers: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """64 random bits for each sequence and position, no two alike in a sequence: SplitMix64 (Steele et al. 2014)."""
    start = np.frombuffer(blake2b(key.encode(), digest_size=8).digest(), "<u8")[0]
    value = _mixed(numbers.astype(np.uint64) + start) + positions.astype(np.uint64)
    return _mixed(value)


def _mixed(value: np.ndarray) -> np.ndarray:
    value = value * np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _first(order: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The `wanted` smallest of each row."""
    last = np.take_along_axis(np.sort(order, 1), np.maximum(wanted, 1)[:, None] - 1, 1)
    return (order <= last) & (wanted > 0)[:, None]


def _whole_words(order: np.ndarray, text: np.ndarray, later: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Words in a random order, each taken if it still finds room."""
    goes_on = later & text & np.pad(text, ((0, 0), (1, 0)))[:, :-1]
    word = np.cumsum(~goes_on, 1) - 1  # (B, T) the word of each token; a mark is one of its own
    rows = np.arange(len(order))
    sizes = np.bincount((rows[:, None] * order.shape[1] + word)[text], minlength=order.size).reshape(order.shape)
    turn = np.full(order.shape, np.iinfo(np.uint64).max)
    row, at = (text & ~goes_on).nonzero()
    turn[row, word[row, at]] = order[row, at]
    taken = np.zeros(order.shape, bool)
    room = wanted.copy()
    for which in np.argsort(turn, 1).T:
        size = sizes[rows, which]
        fits = (size <= room) & (size > 0)
        taken[rows, which] = fits
        room -= size * fits
    return np.take_along_axis(taken, word, 1) & text
