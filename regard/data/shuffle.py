"""A random order that is never listed: where each place goes is computed, so that it costs the same for any count."""

from __future__ import annotations

from hashlib import blake2b
from math import isqrt

import numpy as np

ROUNDS = 8


def shuffled(places: np.ndarray, count: int, key: str, *, run: int = 1) -> np.ndarray:
    """Where the random permutation of range(count) that `key` names takes each place; runs of neighbours stay together.

    A Feistel network on the rows and columns of a table just large enough: what is added to a row depends on the column
    only, and the other way round, so nothing is lost. Whoever lands outside the count walks on until inside.
    """
    runs = -(-count // run)
    columns = isqrt(runs - 1) + 1
    rows = -(-runs // columns)
    keys = np.frombuffer(blake2b(key.encode(), digest_size=8 * ROUNDS).digest(), "<u8").reshape(-1, 2)

    def walk(places: np.ndarray) -> np.ndarray:
        row, column = np.divmod(places // run, columns)
        for one, other in keys:
            row = (row + _scrambled(column, one)) % rows
            column = (column + _scrambled(row, other)) % columns
        there: np.ndarray = (row * columns + column) * run + places % run
        return there

    places = walk(places.astype(np.uint64))
    while len(outside := np.flatnonzero(places >= count)):
        places[outside] = walk(places[outside])
    return places.astype(np.int64)


def _scrambled(values: np.ndarray, key: np.uint64) -> np.ndarray:
    values = (values ^ key) * np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return values >> np.uint64(16)  # leaves room for a sum
