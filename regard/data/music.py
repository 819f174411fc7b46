"""Chorales as text, so that a language model can write music.

    45 57 64 69 . 45 57 64 69 . 45 57 62 71 .

One word a note (its MIDI number, from low to high) and a full stop after each frame. A word for each chord would be
shorter, but of Bach's held-out chorales a tenth of all frames would be unknown words, and there would be nothing to
learn of what chords have in common. In notes each chord can be spelt, and has one spelling.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from regard.data.corpora import restored
from regard.errors import DataError, RegardError

Split: TypeAlias = Literal["train", "valid", "test"]

LOWEST = 21  # the MIDI number of a piano's first key
KEYS = 88
STOP = "."
WORDS = " ".join([*map(str, range(LOWEST, LOWEST + KEYS)), STOP])  # all there are, for a vocabulary that knows them


def chorales(path: Path, split: Split) -> list[str]:
    """The pieces of a split, each as text, of a .mat with traindata, validdata and testdata (frames, 88) each."""
    return [to_text(frames) for frames in pieces(path, split)]


def pieces(path: Path, split: Split) -> list[np.ndarray]:
    """Likewise as frames (T, 88), True where a key is down."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise RegardError(f"{path}: reading .mat needs scipy; write pip install 'regard[music]'") from None
    name = f"{split}data"
    try:
        with path.open("rb") as file:
            found = loadmat(file)[name].flatten()
        return [_checked(np.asarray(piece, np.float64) > 0) for piece in found]
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; name one that is there") from None
    except KeyError:
        mend = restored(path, "name a .mat with traindata, validdata and testdata")
        raise DataError(f"{path}: has no {name}; {mend}") from None
    except Exception as error:  # a damaged file fails in many ways inside scipy
        mend = restored(path, "restore the file")
        raise DataError(f"{path}: cannot be read as chorales ({error}); {mend}") from None


def to_text(frames: np.ndarray) -> str:
    """Frames (T, 88), True where a key is down, as words."""
    rows = _checked(frames)
    return " ".join(word for frame in rows for word in (*map(str, LOWEST + np.flatnonzero(frame)), STOP))


def to_frames(words: Iterable[str]) -> np.ndarray:
    """Words as frames (T, 88). A last frame without its stop sounds too; a note that is said twice sounds once."""
    frames: list[list[int]] = [[]]
    for word in words:
        if word == STOP:
            frames.append([])
        else:
            frames[-1].append(_key(word))
    if not frames[-1]:
        frames.pop()
    found = np.zeros((len(frames), KEYS), bool)
    for frame, keys in zip(found, frames, strict=True):
        frame[keys] = True
    return found


def _key(word: str) -> int:
    if not (word.isascii() and word.isdigit() and LOWEST <= int(word) < LOWEST + KEYS):
        notes = f"a note from {LOWEST} to {LOWEST + KEYS - 1} or {STOP!r}"
        raise DataError(f"{word!r} is no word of music; write {notes}")
    return int(word) - LOWEST


def _checked(frames: np.ndarray) -> np.ndarray:
    if frames.ndim != 2 or frames.shape[1] != KEYS:
        raise DataError(f"frames of shape {list(frames.shape)} where [frames, {KEYS}] was wanted; give one row a frame")
    return frames
