"""From what a file has beside its series to what is wanted of them; there are four kinds (`data.series`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np

from regard.data.numbers import Recorded
from regard.data.text import BadLines, OnBad, shortened
from regard.errors import ConfigError, DataError

Kind: TypeAlias = Literal["number", "label", "labels", "keys"]
Names: TypeAlias = tuple[str, ...]
Prepared: TypeAlias = tuple[Recorded, np.ndarray, Names]  # what can be used, what is wanted of it, names of outputs

NO_NUMBER = "without a number"
UNKNOWN = "with an unknown label"
SILENT = "without a next step"
MOST_LABELS = 1_000_000


def numbers(found: Recorded, names: Names, bad: BadLines, on_bad: OnBad) -> Prepared:
    y = _y(found, bad, "number", "a number for each example")
    if y.dtype.kind == "U":
        raise DataError(f'{bad.file}: y has texts, where task.kind = "number" wants numbers; save it as float32')
    finite = np.isfinite(y)
    found = found.without(~finite, NO_NUMBER, lambda place: f"y is {y[place]}", bad, on_bad)
    return found, y[finite].astype(np.float32), ()


def labels(found: Recorded, names: Names, bad: BadLines, on_bad: OnBad) -> Prepared:
    y = _y(found, bad, "label", "a label for each example")
    wanted, names = _numbered(y, names, bad)
    found = found.without(wanted < 0, UNKNOWN, lambda place: _unknown(y[place], names), bad, on_bad)
    return found, wanted[wanted >= 0], names


def labels_of_steps(found: Recorded, names: Names, bad: BadLines, on_bad: OnBad) -> Prepared:
    y = _y(found, bad, "labels", "a label for each step", stepwise=True)
    wanted, names = _numbered(y, names, bad)
    wrong, starts, lengths = found.any_step(wanted < 0), found.starts, found.lengths

    def what(place: int) -> str:
        steps = slice(starts[place], starts[place] + lengths[place])
        return _unknown(y[steps][wanted[steps] < 0][0], names)

    return found.without(wrong, UNKNOWN, what, bad, on_bad), wanted[np.repeat(~wrong, lengths)], names


def keys(found: Recorded, names: Names, bad: BadLines, on_bad: OnBad) -> Prepared:
    """Nothing is kept: what is wanted are the series themselves, one step later."""
    if len(names) not in (0, found.x.shape[1]):
        what = f"data.labels names {len(names)} keys, but {bad.file} has {found.x.shape[1]}"
        raise ConfigError(f"{what}; name each, or leave it out")
    if not np.isin(found.x, (0, 1)).all():
        what = 'x has other numbers than 0 and 1, where task.kind = "keys" wants to know which keys are down'
        raise DataError(f"{bad.file}: {what}; save it so")
    found = found.without(found.lengths < 2, SILENT, lambda place: "one step, and nothing follows it", bad, on_bad)
    return replace(found, x=found.x.astype(np.uint8)), np.empty(0, np.uint8), names or found.channels


PREPARED: Mapping[Kind, Callable[[Recorded, Names, BadLines, OnBad], Prepared]] = {
    "number": numbers,
    "label": labels,
    "labels": labels_of_steps,
    "keys": keys,
}


def _y(found: Recorded, bad: BadLines, kind: Kind, wanted: str, *, stepwise: bool = False) -> np.ndarray:
    if found.y is None or len(found.y) != len(found.x if stepwise else found.lengths):
        has = "no y" if found.y is None else f"a y for each {'step' if found.stepwise else 'example'}"
        raise DataError(f'{bad.file}: has {has}, where task.kind = "{kind}" wants {wanted}; save it beside x')
    return found.y


def _numbered(y: np.ndarray, names: Names, bad: BadLines) -> tuple[np.ndarray, Names]:
    """The number of each label, -1 of one that is unknown; and all labels, those of the data where none are given."""
    if not names and (y == y.flat[0]).all():
        raise DataError(
            f"{bad.file}: y has one label alone, {y.flat[0]}, and there is nothing to tell; give two or more"
        )
    if y.dtype.kind == "U":
        names = names or tuple(np.unique(y).tolist())
        known = {name: number for number, name in enumerate(names)}
        return np.array([known.get(label, -1) for label in y.tolist()], np.int64), names
    if y.dtype.kind == "f" and not (y == np.round(y)).all():
        raise DataError(f"{bad.file}: y has fractions, where labels were wanted; save whole numbers or texts")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= MOST_LABELS:
        what = f"y goes from {low} to {high}, where labels are numbered from 0"
        raise DataError(f"{bad.file}: {what}; number them so, or save them as texts")
    names = names or tuple(map(str, range(high + 1)))
    return np.where(y < len(names), y.astype(np.int64), -1), names


def _unknown(label: object, names: Sequence[str]) -> str:
    some = ", ".join(names[:5]) + ", …" * (len(names) > 5)
    return f"label {shortened(str(label))} is none of {some}"
