"""A folder of arrays: each a flat file that is read through a memory map, and `about.json` beside them.

It is written beside its place and moved there when it is whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.store import AGAIN, Mapped, beside
from regard.errors import DataError


class Arrays:
    """Arrays by name, and what was written about them."""

    def __init__(self, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any], fingerprint: str) -> None:
        self.arrays, self.about, self.fingerprint = arrays, about, fingerprint

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    @classmethod
    def build(cls, folder: Path, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> Arrays:
        """`about` is part of what the fingerprint says."""
        mark = blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=16)
        with beside(folder) as work:
            for name, array in arrays.items():
                (work / name).write_bytes(array.tobytes())
                mark.update(array.tobytes())
            listed = {name: (array.dtype.descr, len(array)) for name, array in arrays.items()}
            text = json.dumps({"arrays": listed, "about": about, "fingerprint": mark.hexdigest()}, ensure_ascii=False)
            (work / "about.json").write_text(text, "utf-8")
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> Arrays:
        try:
            told = json.loads((folder / "about.json").read_text("utf-8"))
            arrays = {name: _mapped(folder / name, *how) for name, how in told["arrays"].items()}
            return cls(arrays, told["about"], told["fingerprint"])
        except FileNotFoundError as error:
            raise DataError(f"{error.filename}: no such file, so the data is not whole; {AGAIN}") from None
        except (ValueError, TypeError, KeyError, OSError) as error:
            raise DataError(f"{folder}: cannot be read as encoded data ({error}); {AGAIN}") from None


def _mapped(path: Path, descr: list[list[str]], count: int) -> np.ndarray:
    dtype = np.dtype([(name, kind) for name, kind in descr]) if descr[0][0] else np.dtype(descr[0][1])
    array = Mapped(path, dtype).array if count else np.empty(0, dtype)
    if len(array) != count:
        raise ValueError(f"{path.name} has {len(array)} entries where {count} were written")
    return array
