from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from regard.view.capture import Trace, sides

NAMES = ("encoder.0.attention", "decoder.0.attention", "decoder.0.cross", "decoder.1.attention", "decoder.1.cross")
Make = Callable[..., Trace]


def make_trace(
    source: Sequence[str] = ("the", "old", "house", "<eos>"),
    target: Sequence[str] = ("das", "alte", "Haus", ".", "<eos>"),
    *,
    heads: int = 3,
    names: Sequence[str] = NAMES,
    title: str = "a run",
) -> Trace:
    """Random weights whose rows sum to one; a decoder looks back only."""
    draw = np.random.default_rng(len(source) * 100 + len(target))
    lengths = {"source": len(source), "target": len(target), "prefix": len(target)}
    maps = {}
    for name in names:
        queries, keys = (lengths[side] for side in sides(name))
        weights = draw.random((heads, queries, keys)) ** 3 + 1e-3
        weights = np.tril(weights) if sides(name)[1] == "prefix" else weights
        maps[name] = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
    return Trace(tuple(source), tuple(target), maps, title, -1.25, f"{' '.join(source)} → {' '.join(target)}")


@pytest.fixture(scope="session")
def make() -> Make:
    return make_trace
