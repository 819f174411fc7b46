"""Shipped recipes: TOML files whose head says command, machine, minutes and the measured result."""

from __future__ import annotations

from pathlib import Path

from regard.errors import ConfigError, nearest

HERE = Path(__file__).parent


def list_recipes() -> list[str]:
    return sorted(path.stem for path in HERE.glob("*.toml"))


def find_recipe(name: str) -> Path:
    """A shipped recipe by name, or a TOML file by path."""
    if name.endswith(".toml") or "/" in name:
        return Path(name)
    if name not in list_recipes():
        raise ConfigError(
            f"no recipe {name!r}; {nearest(name, list_recipes())} A file of your own is named with its .toml"
        )
    return HERE / f"{name}.toml"


def recipe_text(name: str) -> str:
    return find_recipe(name).read_text("utf-8")
