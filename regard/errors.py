"""What can go wrong, one class per exit code. The text of each is one sentence: what came, what was wanted,
what to write instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class RegardError(Exception):
    """The work failed."""

    code = 1


class ConfigError(RegardError, ValueError):
    """The command or the configuration was wrong."""

    code = 2


class DataError(RegardError):
    """The data could not be used."""

    code = 3


class CheckpointError(RegardError):
    """A run folder or a checkpoint could not be used."""

    code = 4


class Diverged(RegardError):
    """The loss or a gradient is no longer a number."""

    code = 5


@contextmanager
def writing(folder: Path, instead: str = "choose another folder") -> Iterator[None]:
    """Inside, a disk that refuses is one sentence."""
    try:
        yield
    except OSError as error:
        what = f"{folder}: cannot be written: {error.strerror or error}"
        raise RegardError(f"{what}; make room, or {instead}") from None


def nearest(name: str, known: Iterable[str]) -> str:
    """ "did you mean 'heads'?", or the whole list where nothing is near."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, 1)
    if not close:
        close = [k for k in names if k.rpartition(".")[2] == name][:1]
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names) or 'none'}"
