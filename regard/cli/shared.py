"""What the verbs share: where they print, and how they find their run."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from regard.cli.flags import arguments
from regard.config import Config, DecodeConfig
from regard.disk import write
from regard.errors import ConfigError, writing

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


ASKED = (
    "prefix",
    "top",
    "threshold",
    "embed",
    "pooling",
    "choices",
    "shots",
    "free_running",
    "counted",
)  # settings of an answer besides how it is decoded


def program() -> str:
    """How this program is called from here: by its name where the shell finds it, else by its path."""
    return "regard" if shutil.which("regard") else os.path.relpath(Path(sys.executable).parent / "regard")


class Nothing(Config):
    """No settings."""


def run_of(
    argv: list[str], schema: type[Config], *, inputs: bool = False
) -> tuple[Path, list[str], Any, dict[str, Any]]:
    """The run folder, the inputs, the options, and those of them that say how to decode."""
    words, values = arguments(argv, schema)
    options = schema(**values)
    if not words:
        raise ConfigError("which run? Name its folder, for example runs/demo")
    if words[1:] and not inputs:
        raise ConfigError(f"{words[1]!r}: one run folder at a time, and nothing else")
    how = {name: values[name] for name in values if name in DecodeConfig.model_fields or name in ASKED}
    clean = [word.encode("utf-8", "replace").decode() for word in words[1:]]  # bytes that are no UTF-8 become ?
    return Path(words[0]), clean, options, how


def free(folder: Path) -> Path:
    """The folder, or the first of folder-2, folder-3, … that does not exist."""
    candidates = (folder if n == 1 else folder.with_name(f"{folder.name}-{n}") for n in range(1, 10_000))
    return next(path for path in candidates if not path.exists())


def write_text(path: Path, text: str) -> None:
    """A file that a command was asked for: whole, or a sentence that names it."""
    with writing(path, "choose another place"):
        write(path, text.encode())
