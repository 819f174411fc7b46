"""A table to reproduce, as a value: its cells, and how each is made and read. Nothing here needs torch.

study   one table on one data set: cells × seeds, all from one recipe
cell    what is compared: a name, and settings laid over the recipe
part    one data set of several, on each of which every cell is trained
own     what a cell has for one part alone: settings, a published figure
job     a cell with a seed: an ordinary run folder, OUT/CELL/seed-N or OUT/CELL/PART/seed-N
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from regard.config import Recipe, Split, make_recipe, merge, read_toml
from regard.errors import CheckpointError, ConfigError, DataError, nearest
from regard.recipes import find_recipe

if TYPE_CHECKING:
    from regard.reproduce.layout import Sheet
    from regard.reproduce.results import Row

Report = dict[str, dict[str, Any]]  # measures with value and definition, as in evaluation.json

AVERAGE = "average"  # the column over all parts
COSTS = ("parameters", "minutes", "flops")  # columns besides what the task measures
QUICK = "quick"  # the table for little time


@dataclass(frozen=True)
class Published:
    """Somebody else's figure, of the table's first measure or of another."""

    printed: str
    """With the digits that it has there."""
    where: str
    measure: str = ""

    @property
    def value(self) -> float:
        return float(self.printed)


@dataclass(frozen=True)
class Part:
    """One data set of several: each cell is trained on each."""

    name: str
    recipe: str
    measure: str = ""
    """What is shown of it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    """As a table calls it; its name when left out."""
    notes: tuple[str, ...] = ()
    """What is to be said where it is shown."""


@dataclass(frozen=True)
class Own:
    settings: Mapping[str, Any] = field(default_factory=dict)
    published: Published | None = None
    times: int = 1
    """Its batches are so many times as large: where other steps are asked for, it makes as many fewer."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell:
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Laid over the recipe; of another system's [model] nothing is kept."""
    published: Published | None = None
    begin: str = ""
    """A recipe that is trained first, once for the whole table: its tokens and model are the cell's, and its weights
    are begun with."""
    each: Mapping[str, Own] = field(default_factory=dict)
    """What it has for a part of this name alone."""
    notes: tuple[str, ...] = ()
    """What is to be said where it is shown."""

    def on(self, part: Part) -> Cell:
        """The cell as it is for this part."""
        own = self.each.get(part.name, Own())
        settings = merge(dict(self.settings), dict(own.settings))
        return replace(self, settings=settings, published=own.published, notes=own.notes)

    def paced(self, part: Part, train: Mapping[str, Any]) -> dict[str, Any]:
        """Steps that are asked of all are fewer where batches are larger, so that all learn from as many examples."""
        times = self.each.get(part.name, Own()).times
        return {**train, **({"steps": max(1, train["steps"] // times)} if "steps" in train else {})}


Named = TypeVar("Named", Cell, Part)


@dataclass(frozen=True)
class Job:
    cell: Cell
    part: Part
    seed: int
    folder: Path
    values: dict[str, Any]
    """Of its recipe."""
    begins: Job | None = None
    """With the weights of this one."""

    @property
    def name(self) -> str:
        return ", ".join(filter(None, (self.cell.name, self.part.name, f"seed {self.seed}")))

    def with_first(self) -> list[Job]:
        """And the one that it begins with."""
        return [self, self.begins] if self.begins is not None else [self]

    @property
    def begun(self) -> bool:
        return (self.folder / "recipe.toml").exists()

    @property
    def finished(self) -> bool:
        return (self.folder / "evaluation.json").exists()

    @property
    def busy(self) -> bool:
        """Whether a process trains it now: it then has the lock of the folder."""
        import fcntl

        if not self.folder.is_dir():
            return False
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def recipe(self) -> Recipe:
        from regard.models import schema

        return make_recipe(self.values, schema)

    def missing(self) -> str:
        """The first of its files that is not there; none where all of them are."""
        from regard.data.text import find

        data = self.recipe().data
        for name in (name for split in get_args(Split) for name in getattr(data, split)):
            try:
                find(name)
            except DataError:
                return str(name)
        return self.begins.missing() if self.begins is not None and not self.begins.finished else ""


def evaluation(folder: Path) -> Report:
    """What the run measured of its test split."""
    return read_report(folder / "evaluation.json")


def read_report(path: Path) -> Report:
    found = read_json(path)
    if not isinstance(found, dict) or not all(map(_is_measure, found.values())):
        raise damaged(path, "it is no table of measures with value and definition")
    return found


def _is_measure(told: Any) -> bool:
    return isinstance(told, dict) and isinstance(told.get("value"), int | float) and "definition" in told


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise damaged(path, str(error)) from None


def damaged(path: Path, why: str) -> CheckpointError:
    """Of a file of a run that cannot be used."""
    mend = f"put a good copy back, or remove {path.parent}, and the same command makes it anew"
    return CheckpointError(f"{path} cannot be used: {why}; {mend}")


@dataclass(frozen=True)
class Study:
    title: str
    cells: tuple[Cell, ...]
    columns: tuple[str, ...]
    """Measures, costs and parts to show; the first is what the table is about."""
    lay: Callable[[Study, Sequence[Row]], Sheet]
    """Into lines and columns."""
    draw: Callable[[Study, Sequence[Row], Path], list[Path]]
    recipe: str = ""
    """That of all cells; or there are parts, each with its own."""
    parts: tuple[Part, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Laid over the recipe for all cells."""
    measure: Callable[[Path], Report] = evaluation
    """What is read off a finished run."""
    seeds: tuple[int, ...] = (0, 1, 2)
    quick: tuple[str, ...] = ()
    """Cells that tell the story when there is little time."""
    quick_parts: tuple[Part, ...] = ()
    """Parts that do so; all when left out."""
    notes: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    """What was chosen of it, by name."""

    def brief(self) -> Study:
        """The table for little time, of which `quick` names the cells: parts that are soon done, and one seed."""
        if not self.quick_parts:
            return replace(self, seeds=self.seeds[:1], asked=(QUICK,))
        names = tuple(part.name for part in self.quick_parts)
        return replace(self, parts=self.quick_parts, columns=names, seeds=self.seeds[:1], asked=(QUICK,))

    def only(self, cells: Sequence[str] = (), parts: Sequence[str] = ()) -> Study:
        """The table with these cells and parts, in its own order; with all of them where none is named. A part that
        only the table for little time has can be named too."""
        every = {part.name: part for part in (*self.parts, *self.quick_parts)}
        some, left = _named("cells", self.cells, cells), self.parts
        if parts:
            left = _named("parts", tuple(every.values()), parts)
        names = [part.name for part in left]
        columns = tuple(name for name in dict.fromkeys((*self.columns, *names)) if name not in every or name in names)
        usual = self.quick if QUICK in self.asked else ()
        chosen = tuple(cell.name for cell in some) if tuple(cells) != usual else ()
        asked = (*self.asked, *chosen, *(names if parts else ()))
        return replace(self, cells=some, parts=left, columns=columns, asked=asked)

    def jobs(self, seeds: Sequence[int], out: Path, train: Mapping[str, Any]) -> Iterator[Job]:
        """Seed by seed, so that the whole table is there early; `train` is laid over every recipe's [train]."""
        for seed in seeds:
            for cell in self.cells:
                for part in self.parts or (Part("", self.recipe),):
                    yield self._job(cell, part, seed, out, train)

    def _job(self, cell: Cell, part: Part, seed: int, out: Path, train: Mapping[str, Any]) -> Job:
        values = merge(merge(read_toml(find_recipe(part.recipe)), dict(self.settings)), dict(part.settings))
        begins = self._first(cell.begin, out, train) if cell.begin else None
        if begins is not None:
            values |= {name: begins.values.get(name, {}) for name in ("system", "tokens", "model")}
            values = merge(values, {"train": {"begin": str(begins.folder)}})
        own = dict(cell.on(part).settings)
        if own.get("system", values["system"]) != values["system"]:
            values = {**values, "model": {}}
        folder = out / cell.name / part.name / f"seed-{seed}"
        return self._settled(Job(cell, part, seed, folder, merge(values, own), begins), cell.paced(part, train))

    def _first(self, recipe: str, out: Path, train: Mapping[str, Any]) -> Job:
        """A run that others begin with has one seed: theirs are those of what comes after it."""
        name = Path(recipe).stem
        return self._settled(Job(Cell(name), Part("", recipe), 0, out / name, read_toml(find_recipe(recipe))), train)

    def _settled(self, job: Job, train: Mapping[str, Any]) -> Job:
        title = ": ".join(filter(None, (self.title, job.cell.name, job.part.name)))
        head = {"title": title, "command": "", "machine": "", "minutes": 0, "result": ""}
        return replace(job, values=merge(job.values, {**head, "train": {**train, "seed": job.seed}}))


def _named(flag: str, some: tuple[Named, ...], names: Sequence[str]) -> tuple[Named, ...]:
    known = {one.name: one for one in some}
    for name in names:
        if name not in known:
            raise ConfigError(f"--{flag}: no {flag[:-1]} {name!r} in this table; {nearest(name, known)}")
    return tuple(one for one in some if one.name in names) if names else some
