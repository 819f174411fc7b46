"""Series of numbers by their place, made or stored; and batches of them.

What is wanted of a series is of one of four kinds:

    number   (B,) a number at the end                  label   (B,) the number of a label at the end
    labels   (B, T) the number of a label at each step   keys    (B, T, K) which keys are down at the next step

A stored split is a folder of arrays (`data.arrays`): x, all steps of all examples one behind the other; the length of
each; what is wanted; and the number of each example in its file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import log
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from regard.data.arrays import Arrays
from regard.data.forms import lengthen, longer
from regard.data.numbers import Recorded
from regard.data.synthetic import DIGITS, Drawn, Split, adding, check_length, copy_memory, order
from regard.data.text import BadLines, OnBad
from regard.data.wanted import PREPARED, Kind
from regard.errors import DataError


@dataclass(frozen=True, eq=False)
class Batch:
    """B series, padded to the longest among them. True in `real` is a step, in `scored` one whose output counts."""

    x: Tensor  # (B, T, C) float32
    real: Tensor  # (B, T)
    wanted: Tensor  # of one of the four kinds
    scored: Tensor  # (B, T)
    ids: tuple[int, ...]  # of the examples, from 1
    tokens: int  # outputs that count
    even: bool  # all rows have equally many steps

    @property
    def count(self) -> int:
        """What the loss is summed over."""
        return self.tokens

    def steady(self, longest: int | None = None) -> Batch:
        """The same in one of few shapes: rows of one length have the data's own."""
        if self.even:
            return self
        length = longer(self.x.shape[1], longest)
        x, real, scored = (lengthen(t, length) for t in (self.x, self.real, self.scored))
        wanted = self.wanted if self.wanted.dim() == 1 else lengthen(self.wanted, length)
        return replace(self, x=x, real=real, wanted=wanted, scored=scored)

    def to(self, device: torch.device | str) -> Batch:
        """On a GPU the copy goes on while the caller does."""
        pinned = torch.device(device).type == "cuda" and not self.x.is_cuda

        def move(tensor: Tensor) -> Tensor:
            return (tensor.pin_memory() if pinned else tensor).to(device, non_blocking=pinned)

        return replace(
            self, x=move(self.x), real=move(self.real), wanted=move(self.wanted), scored=move(self.scored)
        )  # fmt: skip


class Source(Protocol):
    """Series of one split, all of one kind."""

    kind: Kind
    lengths: np.ndarray  # steps of each
    channels: int
    outputs: int  # numbers that a model says of a step
    names: tuple[str, ...]  # of the outputs, where they have names
    blank: int | None  # the label that stands for nothing, where there is one
    chance: str  # what one gets without having learnt anything, where that is known
    fingerprint: str

    def __len__(self) -> int: ...
    def batch(self, places: np.ndarray) -> Batch: ...


def _batch(x: np.ndarray, real: np.ndarray, wanted: np.ndarray, scored: np.ndarray, ids: np.ndarray) -> Batch:
    tensors = {"x": x, "real": real, "wanted": wanted, "scored": scored}
    return Batch(
        **{name: torch.from_numpy(array) for name, array in tensors.items()},
        ids=tuple(ids.tolist()),
        tokens=int(scored.sum()),
        even=bool(real.all()),
    )


def _last(real: np.ndarray) -> np.ndarray:
    """True at the last real step of each row."""
    last = real.copy()
    last[:, :-1] &= ~real[:, 1:]
    return last


# ---- made


@dataclass(frozen=True)
class Making:
    """How a made task is drawn, and what it asks for."""

    draw: Callable[[Split, np.ndarray, int, int], Drawn]
    kind: Kind
    channels: int
    outputs: int
    chance: Callable[[int], str]  # of its T
    beyond: int = 0  # steps besides the T of its literature
    blank: int | None = None
    names: tuple[str, ...] = ()


MADE: dict[str, Making] = {
    "adding": Making(
        adding, "number", 2, 1, lambda _: "always to say 1 gives 1/6 = 0.1667, the paper's 0.1767 being a misprint",
    ),
    "copy": Making(
        copy_memory, "labels", 1, 10,
        lambda length: "blanks and then ten guesses among eight digits give 10 ln 8 / (T + 20) = "
        f"{DIGITS * log(8) / (length + 2 * DIGITS):.5f}",
        beyond=2 * DIGITS, blank=0,
    ),
    "order": Making(
        order, "label", 8, 4, lambda _: f"a guess among four gives ln 4 = {log(4):.4f}",
        names=("XX", "XY", "YX", "YY"),
    ),
}  # fmt: skip


class Made:
    """A made task: its examples are drawn when they are asked for, and lie nowhere."""

    def __init__(self, task: str, split: Split, count: int, length: int, seed: int = 0) -> None:
        check_length(task, length)
        making = MADE[task]
        self.making, self.split, self.length, self.seed = making, split, length, seed
        self.kind, self.channels, self.outputs = making.kind, making.channels, making.outputs
        self.names, self.blank, self.chance = making.names, making.blank, making.chance(length)
        self.lengths = np.full(count, length + making.beyond, np.int64)
        self.fingerprint = blake2b(f"{task} {split} {count} {length} {seed}".encode(), digest_size=16).hexdigest()

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, places: np.ndarray) -> Batch:
        x, wanted = self.making.draw(self.split, places, self.length, self.seed)
        real = np.ones(x.shape[:2], bool)
        return _batch(x, real, wanted, real if self.kind == "labels" else _last(real), places + 1)


# ---- stored


class Stored:
    """Examples of files, encoded once and read through memory maps."""

    blank: int | None = None
    chance = ""

    def __init__(self, stored: Arrays, first: int = 0, last: int | None = None) -> None:
        about = stored.about
        self.stored, self.first, self.last = stored, first, len(stored["lengths"]) if last is None else last
        self.kind: Kind = about["kind"]
        self.channels, self.outputs, self.names = about["channels"], about["outputs"], tuple(about["names"])
        self.x = stored["x"].reshape(-1, self.channels)
        self.starts = np.cumsum(stored["lengths"]) - stored["lengths"]
        self.lengths = stored["lengths"][self.first : self.last]
        whole = (self.first, self.last) == (0, len(stored["lengths"]))
        self.fingerprint = stored.fingerprint if whole else f"{stored.fingerprint}-{self.first}-{self.last}"

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, places: np.ndarray) -> Batch:
        rows, lengths = self.first + places, self.lengths[places]
        across = np.arange(lengths.max())
        real = across < lengths[:, None]
        steps = np.minimum(self.starts[rows][:, None] + across, len(self.x) - 1)  # beyond an example, any
        times, plus = self.stored.about["scale"]
        x = self.x.take(steps, 0).astype(np.float32) * np.float32(times) + np.float32(plus)
        x[~real] = 0
        wanted, scored = WANTED[self.kind](self.stored["wanted"], rows, steps, x, real)
        return _batch(x, real, wanted, scored, self.stored["numbers"][rows])

    def split(self, share: float) -> tuple[Stored, Stored]:
        """All but a share at the end, and that share: one example at least."""
        border = self.last - max(1, round(len(self) * share))
        if border <= self.first:
            raise DataError(f"data.held = {share} leaves none of {len(self)} examples to learn from; write less")
        return Stored(self.stored, self.first, border), Stored(self.stored, border, self.last)

    @classmethod
    def open(cls, folder: Path) -> Stored:
        return cls(Arrays.open(folder))

    @classmethod
    def build(
        cls,
        folder: Path,
        found: Recorded,
        kind: Kind,
        labels: Sequence[str] = (),
        *,
        bad: BadLines,
        on_bad: OnBad = "skip",
    ) -> Stored:
        """Keeps what can be used. Where no labels are given, they are those of the data."""
        found, wanted, names = PREPARED[kind](found, tuple(labels), bad, on_bad)
        channels = found.x.shape[1]
        arrays = {"x": found.x.reshape(-1), "lengths": found.lengths, "wanted": wanted, "numbers": found.numbers}
        about = {"kind": kind, "channels": channels, "names": names, "scale": found.scale}
        outputs = {"number": 1, "keys": channels}.get(kind, len(names))
        return cls(Arrays.build(folder, arrays, {**about, "outputs": outputs}))


Laid: TypeAlias = tuple[np.ndarray, np.ndarray]  # wanted and scored


def _at_the_end(wanted: np.ndarray, rows: np.ndarray, steps: np.ndarray, x: np.ndarray, real: np.ndarray) -> Laid:
    return wanted[rows], _last(real)


def _at_each_step(wanted: np.ndarray, rows: np.ndarray, steps: np.ndarray, x: np.ndarray, real: np.ndarray) -> Laid:
    return wanted[steps] * real, real


def _next_step(wanted: np.ndarray, rows: np.ndarray, steps: np.ndarray, x: np.ndarray, real: np.ndarray) -> Laid:
    """The frame that follows; nothing follows the last."""
    following = np.zeros_like(x)
    following[:, :-1] = x[:, 1:]
    return following, real & ~_last(real)


WANTED: Mapping[str, Callable[..., Laid]] = {
    "number": _at_the_end, "label": _at_the_end, "labels": _at_each_step, "keys": _next_step,
}  # fmt: skip
