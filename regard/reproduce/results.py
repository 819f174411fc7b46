"""What finished runs say: measures, costs, and their mean and spread over the seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch

from regard.errors import RegardError
from regard.models import build
from regard.pipeline import read_run
from regard.prepare import DOUBTS
from regard.reproduce.study import AVERAGE, Cell, Job, Report, Study, damaged, read_json
from regard.reproduce.work import difference
from regard.training import checkpoint
from regard.training.log import Line, read_metrics

SUMMED = ("minutes", "flops")  # over data sets


@dataclass(frozen=True)
class Found:
    """All that is known of one finished run."""

    report: Report
    device: str
    steps: int
    doubts: tuple[str, ...] = ()
    """Which of its files are not the published ones."""

    @cached_property
    def numbers(self) -> dict[str, float]:
        return {name: measure["value"] for name, measure in self.report.items()}


@dataclass(frozen=True)
class Row:
    """A cell, with the runs of it that are finished."""

    cell: Cell
    seeds: tuple[int, ...]
    """That are asked for."""
    found: dict[int, Found]
    """By seed."""
    missing: str = ""
    """A file that those which are not finished lack."""
    begun: str = ""
    """How far the first of them came."""
    damaged: tuple[str, ...] = ()
    """Which runs cannot be read, and why."""
    others: tuple[str, ...] = ()
    """What is to be said of runs with other settings than the table's."""
    each: dict[str, Row] = field(default_factory=dict)
    """The same on one part alone, by its name."""

    @property
    def doubts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(text for found in self.found.values() for text in found.doubts))

    def values(self, name: str) -> list[float]:
        return [found.numbers[name] for found in self.found.values() if name in found.numbers]

    def mean(self, name: str) -> float | None:
        values = self.values(name)
        return statistics.fmean(values) if values else None

    def spread(self, name: str) -> float | None:
        """The standard deviation of the sample; one run has none."""
        values = self.values(name)
        return statistics.stdev(values) if len(values) > 1 else None


def read(study: Study, jobs: Sequence[Job]) -> list[Row]:
    """One row a cell, in the order of the table, run or not."""
    rows = []
    for name in dict.fromkeys(job.cell.name for job in jobs):
        mine = [job for job in jobs if job.cell.name == name]
        rows.append(_joined(study, mine) if study.parts else _row(study, mine[0].cell, mine))
    return rows


def _row(study: Study, cell: Cell, jobs: Sequence[Job]) -> Row:
    """A run that cannot be read is told of, and holds up no other."""
    found: dict[int, Found] = {}
    others: list[str] = []
    damaged: list[str] = []
    for job in jobs:
        try:
            others += _others(job)
            found |= {job.seed: _read(study, job)} if job.finished else {}
        except (RegardError, OSError) as error:
            damaged.append(f"{job.name}: {error}")
    left = [job for job in jobs if not job.finished]
    missing = next((job.missing() for job in left), "")
    begun = next((_progress(job) for job in left if job.begun), "")
    return Row(cell, tuple(job.seed for job in jobs), found, missing, begun, tuple(damaged), tuple(others))


def _others(job: Job) -> list[str]:
    return [f"{one.name}: {text}" for one in job.with_first() if (text := difference(one))]


def _progress(job: Job) -> str:
    logged = [line["step"] for line in read_metrics(job.folder / "metrics.jsonl")]
    saved = [checkpoint.step_of(path) for path in checkpoint.found(job.folder / "checkpoints")]
    return f"{'in training, at' if job.busy else 'stopped at'} step {max([0, *logged, *saved]):,}"


def _joined(study: Study, jobs: Sequence[Job]) -> Row:
    """The runs of a cell on several data sets, together."""
    cell, each = jobs[0].cell, {}
    for part in study.parts:
        each[part.name] = _row(study, cell.on(part), [job for job in jobs if job.part.name == part.name])
    seeds = tuple(dict.fromkeys(job.seed for job in jobs))
    done = {seed: {name: row.found[seed] for name, row in each.items() if seed in row.found} for seed in seeds}
    found = {seed: _together(study, some) for seed, some in done.items() if some}
    return Row(cell, seeds, found, each=each)


def _together(study: Study, each: dict[str, Found]) -> Found:
    report = {part.name: each[part.name].report[part.measure] for part in study.parts if part.name in each}
    if AVERAGE in study.columns and len(each) == len(study.parts):
        mean = statistics.fmean(measure["value"] for measure in report.values())
        report[AVERAGE] = {"value": mean, "definition": f"unweighted mean of {', '.join(report)}"}
    for cost in SUMMED:
        first, *_ = (one.report[cost] for one in each.values())
        report[cost] = {**first, "value": sum(one.report[cost]["value"] for one in each.values())}
    device = ", ".join(dict.fromkeys(one.device for one in each.values()))
    doubts = tuple(dict.fromkeys(text for one in each.values() for text in one.doubts))
    return Found(report, device, sum(one.steps for one in each.values()), doubts)


def _read(study: Study, job: Job) -> Found:
    folder, measure = job.folder, job.part.measure
    report = study.measure(folder)
    if measure and measure not in report:
        raise damaged(folder / "evaluation.json", f"it does not tell the {measure}")
    last = _last_line(folder / "metrics.jsonl")
    doubts = tuple(text for one in job.with_first() for text in _doubts(one.folder / DOUBTS))
    return Found({**report, **_costs(folder, last)}, _device(folder / "env.json"), last["step"], doubts)


def _last_line(path: Path) -> Line:
    """Of a training step, which tells what all of them cost."""
    lines = [line for line in read_metrics(path) if {"flops", "seconds"} <= line.keys()]
    if not lines:
        raise damaged(path, "it has no whole line of a training step")
    return lines[-1]


def _device(path: Path) -> str:
    environment = read_json(path)
    if not isinstance(environment, dict) or "device" not in environment:
        raise damaged(path, "it does not tell the device")
    return str(environment["device"])


def _doubts(path: Path) -> list[str]:
    doubts = read_json(path) if path.exists() else []
    if not isinstance(doubts, list):
        raise damaged(path, "it is no list of sentences")
    return list(map(str, doubts))


def _costs(folder: Path, last: Line) -> Report:
    recipe = read_run(folder)
    with torch.device("meta"):
        model = build(recipe.system, recipe.model)  # type: ignore[arg-type]
    size = sum(parameter.numel() for parameter in model.parameters())
    minutes = "of training steps, evaluations not counted; longer where runs shared the machine"
    return {
        "parameters": {"value": size, "definition": "numbers that were trained"},
        "minutes": {"value": last["seconds"] / 60, "definition": minutes},
        "flops": {"value": last["flops"], "definition": "of all training steps, counted on one batch"},
    }
