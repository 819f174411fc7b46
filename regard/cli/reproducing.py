"""The verb that makes whole tables of runs: reproduce."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

from pydantic import Field

from regard.cli.flags import arguments
from regard.cli.shared import out
from regard.config import Config
from regard.errors import CheckpointError, ConfigError, RegardError
from regard.reproduce import STUDIES, find_study


class ReproduceOptions(Config):
    data: str | None = None
    """The data set; each table has its own: attention has spoken and multi30k, dna has splice, gpt-ablation has glue,
    ladder has multi30k, length has copy and spoken, sentiment has sst, tcn has sequences."""
    cells: tuple[str, ...] = ()
    """Some cells of the table only."""
    parts: tuple[str, ...] = ()
    """Some of its data sets only, where a table has several."""
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**31)], ...] = ()
    """Of the runs of each cell; those of the table when left out."""
    steps: int | None = Field(None, ge=1)
    """Train for so many steps instead of the recipe's."""
    quick: bool = False
    """A part of the table that tells the story, with one seed."""
    side_by_side: int | None = Field(None, ge=1, le=64)
    """So many runs at a time, each in a process of its own, as suits a GPU; left out: as many as a CPU has cores for,
    where all runs say how many threads they have, else one."""
    device: str = "auto"
    """cpu, cuda, or whichever is there."""
    threads: int | None = Field(None, ge=1, le=1024)
    """CPU threads of each run that is begun; those of its recipe when left out."""
    out: str | None = None
    """Where the runs and the table are; runs/TABLE-DATA when left out."""
    show: bool = False
    """Begin and write nothing: print what is there."""


def reproduce(argv: list[str]) -> None:
    words, values = arguments(argv, ReproduceOptions)
    options = ReproduceOptions(**values)
    if len(words) != 1:
        raise ConfigError(f"reproduce what? Name one table: {' or '.join(STUDIES)}")
    data, study = find_study(words[0], options.data)
    study = study.brief() if options.quick else study
    study = study.only(options.cells or (study.quick if options.quick else ()), options.parts)
    folder = Path(options.out or f"runs/{words[0]}-{data}")
    asked = {name: getattr(options, name) for name in ("device", "steps", "threads")}
    train = {name: value for name, value in asked.items() if value is not None}
    jobs = list(study.jobs(list(dict.fromkeys(options.seeds or study.seeds)), folder, train))

    from regard.device import find_device
    from regard.reproduce.results import read
    from regard.reproduce.table import print_table, write_table
    from regard.reproduce.work import check, room, work

    if options.show:
        print_table(study, read(study, jobs), out)
        return
    device = find_device(options.device)
    _check_place(folder)
    for job in jobs:
        check(job)
    failed = work(jobs, out, at_once=options.side_by_side or (room(jobs) if device.type == "cpu" else 1))
    rows = read(study, jobs)
    print_table(study, rows, out)
    write_table(study, rows, folder, out)
    if failed:
        names = "; ".join(job.name for job in failed)
        raise RegardError(f"{len(failed)} of {len(jobs)} runs failed: {names}; the same command tries them again")
    if damaged := [text for row in rows for one in (row, *row.each.values()) for text in one.damaged]:
        what = f"{len(damaged)} of {len(jobs)} runs are damaged and were left as they are"
        raise CheckpointError(f"{what}; what is written below the table names their files")


def _check_place(folder: Path) -> None:
    """What would fail each run is a mistake of the command, and told before the first. Nothing is left of the trial."""
    try:
        with TemporaryFile(dir=next(place for place in (folder, *folder.absolute().parents) if place.exists())):
            pass
    except OSError as error:
        raise ConfigError(f"--out: {folder} cannot be written: {error.strerror}; name another folder") from None
