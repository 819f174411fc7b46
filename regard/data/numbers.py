"""Files of numbers: what a user has as .npz, images and their labels as idx files, music as .mat.

    .npz   x (examples, steps, channels) or (examples, steps); y, if any, for each example or each step; and lengths, if
           any: how many steps of each example are real
    idx    two files, images and labels, plain, .gz or .xz: an image is read pixel by pixel, line by line
    .mat   pieces of music, frames × 88 keys, all splits in one file

Numbers stay as small as they are in the file: pixels and keys are bytes. Nothing is unpickled.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np

from regard.data import music
from regard.data.corpora import restored
from regard.data.music import Split
from regard.data.shuffle import shuffled
from regard.data.text import TOO_LONG, BadLines, OnBad, reading
from regard.errors import DataError

Scale = tuple[float, float]

MEAN, SPREAD = 0.1307, 0.3081  # of MNIST's pixels from 0 to 1, as published
PIXELS: Scale = (1 / (255 * SPREAD), -MEAN / SPREAD)  # times the first, plus the second
AS_IT_IS: Scale = (1.0, 0.0)
MOST = 1 << 31  # bytes of an idx file
NOT_FINITE = "with a number that is none"


@dataclass(frozen=True, eq=False)
class Recorded:
    """Examples one behind the other."""

    x: np.ndarray  # (all steps, channels), uint8 or float32
    lengths: np.ndarray  # (examples,)
    y: np.ndarray | None  # (examples,); or (all steps,), where each step has its own
    numbers: np.ndarray  # (examples,) of each in its file, from 1
    scale: Scale = AS_IT_IS  # from what is kept to what is read
    channels: tuple[str, ...] = ()  # their names

    @property
    def starts(self) -> np.ndarray:
        return np.asarray(np.cumsum(self.lengths) - self.lengths)

    @property
    def stepwise(self) -> bool:
        """Whether there is a y for each step. Where all examples have one step, the two are the same."""
        return self.y is not None and len(self.y) == len(self.x) != len(self.lengths)

    def some(self, keep: np.ndarray) -> Recorded:
        """The examples for which `keep` is True."""
        if keep.all():
            return self
        steps = np.repeat(keep, self.lengths)
        y = self.y if self.y is None else self.y[steps if self.stepwise else keep]
        return replace(self, x=self.x[steps], lengths=self.lengths[keep], y=y, numbers=self.numbers[keep])

    def any_step(self, steps: np.ndarray) -> np.ndarray:
        """(all steps,) -> (examples,): whether it is so at any step of an example."""
        return np.asarray(np.logical_or.reduceat(steps, self.starts))

    def without(
        self, wrong: np.ndarray, kind: str, what: Callable[[int], str], bad: BadLines, on_bad: OnBad
    ) -> Recorded:
        """All but the examples that are wrong in this way; `what` says it of a place."""
        for place in np.flatnonzero(wrong).tolist():
            bad.add(kind, int(self.numbers[place]), what(place), on_bad=on_bad)
        if wrong.all():
            raise DataError(f"{bad.file}: no example is left ({bad}); give other data")
        return self.some(~wrong)


def read_numbers(
    files: Sequence[Path], split: Split, *, longest: int, bad: BadLines, on_bad: OnBad = "skip"
) -> Recorded:
    """The usable examples of a split; the others go to `bad`."""
    found = _read(files, split)
    bad.file, bad.unit, bad.one = " + ".join(path.name for path in files), "examples", "example"
    bad.read += len(found.lengths)
    wrong = found.any_step(~np.isfinite(found.x).all(1))
    found = found.without(wrong, NOT_FINITE, lambda place: "x has a number that is not finite", bad, on_bad)
    too_long = "{:,} steps where data.longest is {:,}".format
    return found.without(
        found.lengths > longest, TOO_LONG, lambda place: too_long(found.lengths[place], longest), bad, on_bad
    )  # fmt: skip


def permuted(found: Recorded, seed: int, file: str) -> Recorded:
    """Every example with its steps in one and the same random order, which the seed names."""
    steps = int(found.lengths[0])
    if (found.lengths != steps).any() or found.stepwise:
        wanted = "data.permute is for examples of equally many steps, with one answer each; leave it out"
        raise DataError(f"{file}: {wanted}")
    order = order_of(steps, seed)
    return replace(found, x=found.x.reshape(-1, steps, found.x.shape[1])[:, order].reshape(found.x.shape))


def order_of(steps: int, seed: int) -> np.ndarray:
    """Which step is read first, second, …"""
    return shuffled(np.arange(steps), steps, f"steps {seed}")


def read_inputs(path: Path) -> list[np.ndarray]:
    """The examples that a user asks about, (steps, channels) each, as the file has them: nothing is wanted of them."""
    match path.suffix.lower():
        case ".npz":
            found = _npz(path)
        case ".mat":
            found = _music(path, "test")
        case _:
            found = _pixels(read_idx(path), None)
    return np.split(found.x, np.cumsum(found.lengths)[:-1])


def scale_of(file: str) -> Scale:
    """What is done to the numbers of a file, by its name."""
    return AS_IT_IS if Path(file).suffix.lower() in (".npz", ".mat") else PIXELS


def _read(files: Sequence[Path], split: Split) -> Recorded:
    match [path.suffix.lower() for path in files]:
        case [".npz"]:
            return _npz(files[0])
        case [".mat"]:
            return _music(files[0], split)
        case [one, other] if not {one, other} & {".npz", ".mat"}:
            return _images(*files)
    names = ", ".join(str(path) for path in files) or "no file"
    raise DataError(f"{names}: give one .npz, one .mat of music, or two idx files, images and labels")


# ---- .npz


def _npz(path: Path) -> Recorded:
    arrays = read_arrays(path)
    if "x" not in arrays:
        found = ", ".join(arrays) or "nothing"
        raise DataError(f"{path}: has {found}, but no x; save it with np.savez({path.name!r}, x=…, y=…)")
    x = arrays["x"]
    if x.dtype.kind not in "biuf":
        raise DataError(f"{path}: x is of type {x.dtype}, where numbers were wanted; save it as float32 or uint8")
    if x.ndim not in (2, 3) or not x.size:
        wanted = "where (examples, steps, channels) or (examples, steps) was wanted, with something in it"
        raise DataError(f"{path}: x has shape {x.shape}, {wanted}")
    x = x[..., None] if x.ndim == 2 else x
    count, steps = x.shape[:2]
    lengths = _lengths(path, arrays.get("lengths"), count, steps)
    real = np.arange(steps) < lengths[:, None]
    return Recorded(small(x)[real], lengths, _y(path, arrays.get("y"), real), np.arange(1, count + 1))


def small(x: np.ndarray) -> np.ndarray:
    """Bytes as they are, anything else as float32."""
    if x.dtype.kind == "b":
        return x.astype(np.uint8)
    with np.errstate(over="ignore"):  # too large is not finite, which is told later
        return x if x.dtype == np.uint8 else x.astype(np.float32)


def _lengths(path: Path, lengths: np.ndarray | None, count: int, steps: int) -> np.ndarray:
    if lengths is None:
        return np.full(count, steps, np.int64)
    if lengths.shape != (count,) or lengths.dtype.kind not in "iu":
        what = f"lengths is {_form(lengths)}, where whole numbers of shape ({count},) were wanted"
        raise DataError(f"{path}: {what}, one for each example of x")
    if not 1 <= lengths.min() <= lengths.max() <= steps:
        what = f"lengths go from {lengths.min()} to {lengths.max()}, but x has {steps} steps"
        raise DataError(f"{path}: {what}; give 1 to {steps}")
    return lengths.astype(np.int64)


def _y(path: Path, y: np.ndarray | None, real: np.ndarray) -> np.ndarray | None:
    """One for each example, or one for each step that is real."""
    if y is None:
        return None
    if y.dtype.kind not in "biufU":
        raise DataError(f"{path}: y is of type {y.dtype}, where numbers or texts were wanted; save it as such")
    y = y[:, 0] if y.shape == (len(real), 1) != real.shape else y
    if y.shape not in (real.shape, real.shape[:1]):
        wanted = f"{real.shape[:1]} or {real.shape} was wanted, one for each example or for each of its steps"
        raise DataError(f"{path}: y has shape {y.shape}, where {wanted}")
    return y if y.ndim == 1 else y[real]


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz; one of objects, which would be unpickled, is refused."""
    try:
        with reading(path) as file, zipfile.ZipFile(file) as archive:
            arrays = {}
            for name in archive.namelist():
                with archive.open(name) as member:
                    arrays[name.removesuffix(".npy")] = np.lib.format.read_array(member, allow_pickle=False)
            return arrays
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, MemoryError) as error:
        raise DataError(f"{path}: cannot be read as .npz ({error}); write it with np.savez") from None


def _form(array: np.ndarray) -> str:
    return f"{array.dtype} of shape {array.shape}"


# ---- idx


def _images(*files: Path) -> Recorded:
    """Images and labels, whichever is named first."""
    labels, images = sorted((read_idx(path) for path in files), key=lambda array: array.ndim)
    if labels.ndim != 1 or images.ndim < 2 or len(labels) != len(images):
        names = " and ".join(str(path) for path in files)
        what = f"{names}: idx files of shapes {labels.shape} and {images.shape}"
        raise DataError(f"{what}, where labels (n,) and images (n, rows, columns) were wanted")
    return _pixels(images, labels)


def _pixels(images: np.ndarray, labels: np.ndarray | None) -> Recorded:
    lengths = np.full(len(images), prod(images.shape[1:]), np.int64)
    return Recorded(images.reshape(-1, 1), lengths, labels, np.arange(1, len(images) + 1), PIXELS)


def read_idx(path: Path) -> np.ndarray:
    """An array of bytes: two zeros, the type 8, the number of sides, each side as four bytes, large end first; data."""
    with reading(path) as file:
        head = file.read(4)
        if head[:3] != b"\0\0\x08" or not 1 <= head[3] <= 8:
            wanted = "not as an idx file of bytes, which has 00 00 08 and the number of its sides"
            mend = restored(path, "name one of images or labels")
            raise DataError(f"{path}: begins with {head.hex(' ') or 'nothing'}, {wanted}; {mend}")
        shape = np.frombuffer(file.read(4 * head[3]), ">u4").tolist()
        size = prod(shape) if len(shape) == head[3] else 0
        data = file.read(size + 1 if size <= MOST else 0)
    if not size or len(data) != size:
        have = f"{len(data):,}" if len(data) <= size else "more"
        what = f"its head says {size:,} bytes of shape {tuple(shape)}, but there are {have}"
        raise DataError(f"{path}: {what}; {restored(path, 'restore it')}")
    return np.frombuffer(data, np.uint8).reshape(shape)


# ---- music


def _music(path: Path, split: Split) -> Recorded:
    pieces = [piece for piece in music.pieces(path, split) if len(piece)]
    if not pieces:
        raise DataError(f"{path}: no piece in {split}data; name another file")
    return Recorded(
        np.concatenate(pieces).astype(np.uint8),
        np.array([len(piece) for piece in pieces], np.int64),
        None,
        np.arange(1, len(pieces) + 1),
        channels=tuple(str(music.LOWEST + key) for key in range(music.KEYS)),
    )
