"""Recipes: a TOML file, then `--section.key value`, into frozen models that refuse what they do not know.

base    what every schema stands on
data    where examples come from: one schema for each kind of data
task    what is learnt: one schema for each task
recipe  a whole run
"""

from __future__ import annotations

from regard.config.base import Config, ModelConfig, fields, merge, read_toml, section, sentence, write_toml
from regard.config.data import DataConfig, Split
from regard.config.recipe import (
    FORMAT,
    DecodeConfig,
    Recipe,
    Schema,
    TokensConfig,
    TrainConfig,
    make_recipe,
    recipe_schema,
    task_of,
)
from regard.config.task import TASKS, TaskConfig

__all__ = [
    "FORMAT",
    "TASKS",
    "Config",
    "DataConfig",
    "DecodeConfig",
    "ModelConfig",
    "Recipe",
    "Schema",
    "Split",
    "TaskConfig",
    "TokensConfig",
    "TrainConfig",
    "fields",
    "make_recipe",
    "merge",
    "read_toml",
    "recipe_schema",
    "section",
    "sentence",
    "task_of",
    "write_toml",
]
