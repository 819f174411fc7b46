"""A table to reproduce, as a value: its cells, and how each is made and read. Nothing here needs torch.

study   one table on one data set: cells × seeds, all from one recipe
cell    a line of it: a name, and settings laid over the recipe
job     a cell with a seed: an ordinary run folder, OUT/CELL/seed-N
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.config import Recipe, make_recipe, merge, read_toml
from regard.errors import ConfigError, nearest
from regard.recipes import find_recipe

if TYPE_CHECKING:
    from regard.reproduce.results import Row

Report = dict[str, dict[str, Any]]  # measures with value and definition, as in evaluation.json

COSTS = ("parameters", "minutes", "flops")  # columns besides what the task measures


@dataclass(frozen=True)
class Published:
    """Somebody else's figure, of the table's first measure or of another."""

    value: float
    where: str
    measure: str = ""


@dataclass(frozen=True)
class Cell:
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    published: Published | None = None


@dataclass(frozen=True)
class Job:
    cell: Cell
    seed: int
    folder: Path
    values: dict[str, Any]
    """Of its recipe."""

    @property
    def name(self) -> str:
        return f"{self.cell.name}, seed {self.seed}"

    @property
    def begun(self) -> bool:
        return (self.folder / "recipe.toml").exists()

    @property
    def finished(self) -> bool:
        return (self.folder / "evaluation.json").exists()

    def recipe(self) -> Recipe:
        from regard.models import schema

        return make_recipe(self.values, schema)


def evaluation(folder: Path) -> Report:
    """What the run measured of its test split."""
    found: Report = json.loads((folder / "evaluation.json").read_text("utf-8"))
    return found


@dataclass(frozen=True)
class Study:
    title: str
    recipe: str
    cells: tuple[Cell, ...]
    columns: tuple[str, ...]
    """Measures and costs to show; the first is what the table is about."""
    draw: Callable[[Study, Sequence[Row], Path], list[Path]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Laid over the recipe for all cells."""
    measure: Callable[[Path], Report] = evaluation
    """What is read off a finished run."""
    seeds: tuple[int, ...] = (0, 1, 2)
    quick: tuple[str, ...] = ()
    """Cells that tell the story when there is little time."""
    notes: tuple[str, ...] = ()

    def choose(self, names: Sequence[str]) -> list[Cell]:
        known = {cell.name: cell for cell in self.cells}
        for name in names:
            if name not in known:
                raise ConfigError(f"--cells: no cell {name!r} in this table; {nearest(name, known)}")
        return [cell for cell in self.cells if cell.name in names]

    def jobs(self, cells: Sequence[Cell], seeds: Sequence[int], out: Path, train: Mapping[str, Any]) -> Iterator[Job]:
        """Seed by seed, so that the whole table is there early; `train` is laid over every recipe's [train]."""
        base = merge(read_toml(find_recipe(self.recipe)), dict(self.settings))
        for seed in seeds:
            for cell in cells:
                head = {"title": f"{self.title}: {cell.name}", "command": "", "machine": "", "minutes": 0, "result": ""}
                values = merge(merge(base, dict(cell.settings)), {**head, "train": {**train, "seed": seed}})
                yield Job(cell, seed, out / cell.name / f"seed-{seed}", values)
