"""Files that are whole or not there, and on the disk when it is said so."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, data: bytes) -> None:
    """The file is the old one or the new one, never half of either. What is no plain file is written to as it is."""
    path = path.resolve()
    if path.exists() and not path.is_file():
        write_through(path, data)
        return
    beside = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    try:
        write_through(beside, data)
        os.replace(beside, path)
        to_disk(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def write_through(path: Path, data: bytes) -> None:
    """On the disk, and not only on its way there, when this returns."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        if path.is_file():
            os.fsync(file.fileno())


def to_disk(path: Path) -> None:
    """A file, or the names in a folder, are on the disk only after this."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
