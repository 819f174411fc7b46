"""How well labels and numbers are told: the five measures of GLUE, times 100 as its tables print them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from regard.metrics import Measure

Labels: TypeAlias = Sequence[int] | npt.NDArray[np.integer]
Numbers: TypeAlias = Sequence[float] | npt.NDArray[np.floating]


def accuracy(told: Labels, wanted: Labels) -> Measure:
    hits = np.equal(*_both(told, wanted))
    return Measure(100 * hits.mean(), f"labels told right, in % of {len(hits)}")


def f1(told: Labels, wanted: Labels, positive: int = 1, name: str | None = None) -> Measure:
    """Of one label: 2·hits / (times told + times wanted), the harmonic mean of precision and recall."""
    says, is_so = (labels == positive for labels in _both(told, wanted))
    times = says.sum() + is_so.sum()
    definition = (
        f"100 · 2·hits / (times told + times wanted) of the label {name or positive!r}, over {len(told)} examples"
    )
    if not times:
        return Measure(0.0, f"{definition}; 0, since it was neither told nor wanted")
    return Measure(100 * 2 * (says & is_so).sum() / times, definition)


def matthews(told: Labels, wanted: Labels) -> Measure:
    """The correlation of labels, two or more of them (Matthews 1975, Gorodkin 2004):

    (c·n - Σ tₖwₖ) / √((n² - Σ tₖ²)(n² - Σ wₖ²)), with c of n right, label k told tₖ times and wanted wₖ times.
    """
    told, wanted = _both(told, wanted)
    n, hits = len(told), int((told == wanted).sum())
    t, w = ([int((labels == k).sum()) for k in np.union1d(told, wanted)] for labels in (told, wanted))
    spread = (n * n - sum(k * k for k in t)) * (n * n - sum(k * k for k in w))
    definition = f"100 · Matthews correlation of told and wanted labels, over {n} examples"
    if not spread:
        return Measure(0.0, f"{definition}; 0, since all told or all wanted labels are the same")
    return Measure(100 * (hits * n - sum(x * y for x, y in zip(t, w, strict=True))) / spread**0.5, definition)


def pearson(told: Numbers, wanted: Numbers) -> Measure:
    """The linear correlation: Σ(x - x̄)(y - ȳ) / √(Σ(x - x̄)² Σ(y - ȳ)²)."""
    return _correlation(*_both(told, wanted), "Pearson correlation of told and wanted numbers")


def spearman(told: Numbers, wanted: Numbers) -> Measure:
    """Pearson's of the ranks; equal numbers share the mean of theirs."""
    x, y = (_ranks(numbers) for numbers in _both(told, wanted))
    return _correlation(x, y, "Spearman correlation (Pearson's of ranks, ties averaged) of told and wanted numbers")


def _correlation(x: np.ndarray, y: np.ndarray, name: str) -> Measure:
    definition = f"100 · {name}, over {len(x)} examples"
    if not np.ptp(x) or not np.ptp(y):  # a constant minus its mean need not be zero
        return Measure(0.0, f"{definition}; 0, since all told or all wanted numbers are the same")
    x, y = (_unit(numbers - numbers.mean()) for numbers in (x, y))
    return Measure(100 * float(np.clip(x @ y, -1, 1)), definition)


def _unit(x: np.ndarray) -> np.ndarray:
    x = x / np.abs(x).max()  # so that no square is too small or too large to be a number
    return np.asarray(x / np.linalg.norm(x))


def _ranks(numbers: np.ndarray) -> np.ndarray:
    _, place, times = np.unique(numbers, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(times) - (times - 1) / 2)[place])


def _both(told: Labels | Numbers, wanted: Labels | Numbers) -> tuple[np.ndarray, np.ndarray]:
    both = np.asarray(told), np.asarray(wanted)
    if both[0].shape != both[1].shape or not len(both[0]):
        raise ValueError(
            f"{len(both[0])} told and {len(both[1])} wanted; give as many of one as of the other, one or more"
        )
    return both
