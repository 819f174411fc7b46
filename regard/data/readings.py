"""Labelled examples as a system reads them, encoded once and read through memory maps; and batches of them.

    tokens, segments              all sequences, one behind the other
    lengths, summaries            of each sequence: how long it is, and where it is summed up
    wanted, lines                 of each example: the number of its label or its number, and its line in the data

Every example has equally many sequences: one, two, or one for each choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regard.data.arrays import Arrays
from regard.data.forms import lengthen, longer
from regard.data.labelled import Example
from regard.data.layout import Layout, Reading, lay_out
from regard.data.text import BadLines
from regard.data.tokenizer import Tokenizer
from regard.errors import DataError

BLOCK = 4096  # examples encoded at once


@dataclass(frozen=True, eq=False)
class Batch:
    """B examples of n sequences each, padded to the longest among them. True in `real` is a token."""

    sequences: Tensor  # (B·n, T)
    real: Tensor  # (B·n, T)
    segments: Tensor  # (B·n, T)
    summaries: Tensor  # (B·n,) where each is summed up
    wanted: Tensor  # (B,)
    ids: tuple[int, ...]  # line numbers in the data
    tokens: int  # that are read

    @property
    def count(self) -> int:
        """What the loss is summed over."""
        return len(self.ids)

    def steady(self, longest: int | None = None) -> Batch:
        """The same in one of few shapes."""
        length = longer(self.sequences.shape[1], longest)
        sequences, real, segments = (lengthen(t, length) for t in (self.sequences, self.real, self.segments))
        return replace(self, sequences=sequences, real=real, segments=segments)

    def to(self, device: torch.device | str) -> Batch:
        """On a GPU the copy goes on while the caller does."""
        pinned = torch.device(device).type == "cuda" and not self.sequences.is_cuda

        def move(tensor: Tensor) -> Tensor:
            return (tensor.pin_memory() if pinned else tensor).to(device, non_blocking=pinned)

        return replace(
            self, sequences=move(self.sequences), real=move(self.real), segments=move(self.segments),
            summaries=move(self.summaries), wanted=move(self.wanted),
        )  # fmt: skip


class Readings:
    """Encoded examples by their place."""

    def __init__(self, arrays: Mapping[str, np.ndarray], *, padding: int, fingerprint: str = "") -> None:
        self.arrays, self.padding, self.fingerprint = arrays, padding, fingerprint
        self.ends = np.cumsum(arrays["lengths"], dtype=np.int64)
        self.each = len(self.ends) // max(1, len(self))  # sequences to an example
        longest = arrays["lengths"].reshape(len(self), self.each).max(1, initial=0)
        self.lengths = self.each * longest.astype(np.int64)  # of an example, padded

    def __len__(self) -> int:
        return len(self.arrays["wanted"])

    def batch(self, places: np.ndarray) -> Batch:
        rows = (places[:, None] * self.each + np.arange(self.each)).flatten()
        lengths = self.arrays["lengths"][rows]
        across = np.arange(lengths.max())
        real = across < lengths[:, None]
        at = ((self.ends[rows] - lengths)[:, None] + across)[real]

        def fill(name: str, padding: int) -> Tensor:
            table = np.full(real.shape, padding, np.int64)
            table[real] = self.arrays[name][at]
            return torch.from_numpy(table)

        return Batch(
            sequences=fill("tokens", self.padding),
            real=torch.from_numpy(real),
            segments=fill("segments", 0),
            summaries=torch.from_numpy(self.arrays["summaries"][rows].astype(np.int64)),
            wanted=torch.from_numpy(self.arrays["wanted"][places]),
            ids=tuple(self.arrays["lines"][places].tolist()),
            tokens=len(at),
        )

    @classmethod
    def of(cls, readings: Sequence[Sequence[Reading]], *, padding: int) -> Readings:
        """Of examples that are only asked about: in memory, and nothing is wanted of them."""
        count = len(readings)
        arrays = _arrays(readings) | {"wanted": np.zeros(count, np.int64), "lines": np.arange(1, count + 1)}
        return cls(arrays, padding=padding)

    @classmethod
    def open(cls, folder: Path) -> Readings:
        stored = Arrays.open(folder)
        return cls(stored.arrays, padding=stored.about["padding"], fingerprint=stored.fingerprint)

    @classmethod
    def build(
        cls,
        folder: Path,
        examples: Iterable[Example],
        labels: Sequence[str],
        tokenizer: Tokenizer,
        layout: Layout,
        *,
        bad: BadLines,
        progress: Callable[[int], None] | None = None,
    ) -> Readings:
        """Encodes what was read; where there are no labels, each example has a number instead."""
        numbers = {label: number for number, label in enumerate(labels)}
        blocks, wanted, lines = [], [], []
        waiting = iter(examples)
        while block := list(islice(waiting, BLOCK)):
            blocks.append(_arrays(lay_out(tokenizer, [example.texts for example in block], layout)))
            wanted += [numbers[example.label] if labels else float(example.label) for example in block]
            lines += [example.line for example in block]
            if progress:
                progress(len(lines))
        if not lines:
            raise DataError(f"{bad.file}: no example is left ({bad}); give other data")
        arrays = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
        arrays |= {"wanted": np.array(wanted, np.int64 if labels else np.float32), "lines": np.array(lines, np.int64)}
        Arrays.build(folder, arrays, {"padding": layout.marks.pad, "labels": [*labels]})
        return cls.open(folder)


def _arrays(readings: Sequence[Sequence[Reading]]) -> dict[str, np.ndarray]:
    every = [reading for some in readings for reading in some]
    return {
        "tokens": np.array([token for reading in every for token in reading.tokens], np.int32),
        "segments": np.array([segment for reading in every for segment in reading.segments], np.uint8),
        "lengths": np.array([len(reading.tokens) for reading in every], np.int32),
        "summaries": np.array([reading.summary for reading in every], np.int32),
    }
