"""From a recipe's words about data to a task: read the text, train the tokenizers, fill the stores.

One module for each task. What is there already is kept, so that a run that was killed while it got ready goes on.
"""

from __future__ import annotations

import json
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import get_args

from regard.config import Recipe, Split
from regard.data.corpora import doubt
from regard.data.text import find
from regard.disk import write
from regard.errors import DataError
from regard.prepare.shared import HELD, Count, Say, has
from regard.tasks import Task

__all__ = ["DOUBTS", "HELD", "Count", "Say", "has", "prepare"]

DOUBTS = "doubts.json"  # sentences about files of a run; not there where there is nothing to doubt


def prepare(
    recipe: Recipe, folder: Path, say: Say = lambda text: None, count: Count | None = None
) -> tuple[Recipe, Task]:
    """The task of a recipe, and the recipe with what the data has taught: the sizes of vocabularies, the labels.

    `say` hears what is begun, `count` how many examples have been stored of it.
    """
    module = import_module(f"regard.prepare.{recipe.task.name}")
    _look_for_files(recipe, folder)
    if not (folder / "data").exists():
        _doubt(recipe, folder, say)
    found: tuple[Recipe, Task] = module.prepare(recipe, folder, say, count)
    return found


def _look_for_files(recipe: Recipe, folder: Path) -> None:
    """One that is missing is missed before anything is begun; a split that is stored or made needs none."""
    for split in () if getattr(recipe.data, "made", None) else get_args(Split):
        if not (folder / "data" / split).exists():
            for name in getattr(recipe.data, split):
                find(name)


def _doubt(recipe: Recipe, folder: Path, say: Say) -> None:
    """Tells of files that have the names of published ones and are others, and writes it down, for whoever compares the
    run with published figures; of what cannot be read it is told later."""
    data, doubts = recipe.data, []
    for name in dict.fromkeys([*data.train, *data.valid, *data.test]):
        with suppress(DataError, OSError):
            if wrong := doubt(name, find(name)):
                say(f"warning: {find(name)}: {wrong}; training goes on")
                doubts.append(f"{name}: {wrong}")
    place = folder / DOUBTS
    place.unlink(missing_ok=True)  # of files that have been replaced since
    if doubts:
        write(place, json.dumps(doubts, indent=1, ensure_ascii=False).encode())
