"""What finished runs say: measures, costs, and their mean and spread over the seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from regard.models import build
from regard.pipeline import read_run
from regard.reproduce.study import Cell, Job, Report, Study
from regard.training.log import Line, read_metrics


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
    wanted: int
    found: dict[int, Found]
    """By seed."""

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
    for cell in dict.fromkeys(job.cell.name for job in jobs):
        mine = [job for job in jobs if job.cell.name == cell]
        found = {job.seed: _read(study, job.folder) for job in mine if job.finished}
        rows.append(Row(mine[0].cell, len(mine), found))
    return rows


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
        "flops": {"value": last["flops"], "definition": "of all training steps, as PyTorch counts one batch"},
    }
