"""What finished runs say: measures, costs, and their mean and spread over the seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch

from regard.models import build
from regard.pipeline import read_run
from regard.reproduce.study import AVERAGE, Cell, Job, Report, Study
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
    others: tuple[str, ...] = ()
    """What is to be said of runs with other settings than the table's."""
    each: dict[str, Row] = field(default_factory=dict)
    """The same on one part alone, by its name."""

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
    found = {job.seed: _read(study, job.folder) for job in jobs if job.finished}
    left = [job for job in jobs if not job.finished]
    missing = next((job.missing() for job in left), "")
    begun = next((_progress(job) for job in left if job.begun), "")
    every = (one for job in jobs for one in (job, job.begins) if one is not None)
    others = tuple(f"{job.name}: {text}" for job in every if (text := difference(job)))
    return Row(cell, tuple(job.seed for job in jobs), found, missing, begun, others)


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
    return Found(report, device, sum(one.steps for one in each.values()))


def _read(study: Study, folder: Path) -> Found:
    device = json.loads((folder / "env.json").read_bytes())["device"]
    last = [line for line in read_metrics(folder / "metrics.jsonl") if "flops" in line][-1]
    return Found({**study.measure(folder), **_costs(folder, last)}, device, last["step"])


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
