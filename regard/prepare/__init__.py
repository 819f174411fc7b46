"""From a recipe's words about data to a task: read the text, train the tokenizers, fill the stores.

One module for each task. What is there already is kept, so that a run that was killed while it got ready goes on.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from regard.config import Recipe
from regard.prepare.shared import HELD, Count, Say, has
from regard.tasks import Task

__all__ = ["HELD", "Count", "Say", "has", "prepare"]


def prepare(
    recipe: Recipe, folder: Path, say: Say = lambda text: None, count: Count | None = None
) -> tuple[Recipe, Task]:
    """The task of a recipe, and the recipe with what the data has taught: the sizes of vocabularies, the labels.

    `say` hears what is begun, `count` how many examples have been stored of it.
    """
    module = import_module(f"regard.prepare.{recipe.task.name}")
    found: tuple[Recipe, Task] = module.prepare(recipe, folder, say, count)
    return found
