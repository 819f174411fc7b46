"""A table as lines of text: a line for each cell, or, where every task has its own measure, a line for each task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regard.reproduce.study import COSTS, Part, Study

if TYPE_CHECKING:
    from regard.reproduce.results import Row

PLAIN, FINE = "{:.1f}", "{:.2f}"
FORMS = {
    "bleu": FINE, "loss": "{:.3f}", "perplexity": FINE, "free_perplexity": FINE,
    "parameters": "{:,.0f}", "flops": "{:.1e}",
}  # fmt: skip
MEASURED = {"accuracy": FINE, "perplexity": FINE, "bits": "{:.3f}"}  # of tasks; losses span seven orders of magnitude
SIGNIFICANT = "{:#.3g}"
DOUBTED = "†"  # a figure of other data than the published; what it is stands below

Lines = list[list[str]]


@dataclass(frozen=True)
class Sheet:
    """What is shown: tables, the first line of each being its head, and what is to be said below."""

    tables: list[Lines]
    notes: list[str]


def by_cell(study: Study, rows: Sequence[Row]) -> Sheet:
    """A line for each cell; one that was not run says so."""
    head = ["cell", *map(short, study.columns), "seeds", "published"]
    lines = []
    for row in rows:
        figures = [figure(row, name) for name in study.columns]
        lines.append([doubted(row.cell.name, row), *figures, _seeds(study, row), _published(row)])
    whole = any(row.cell.published for row in rows)
    found = [found for row in rows for found in row.found.values()]
    made = dict.fromkeys(f"{one.steps:,} steps on {one.device}" for one in found)
    table = [head, *lines] if whole else [line[:-1] for line in (head, *lines)]
    return Sheet([table], [f"made in {', '.join(made)}"] if made else [])


def by_part(study: Study, rows: Sequence[Row]) -> Sheet:
    """A line for each task and a column for each cell, ours (theirs); below, what each run cost."""
    head = ["task", *(row.cell.name for row in rows)]
    lines = [[label(part), *(_beside(row.each[part.name], part) for row in rows)] for part in study.parts]
    costs = [_cost(part, row.each[part.name]) for part in study.parts for row in rows if row.each[part.name].found]
    theirs = any(one.cell.published for row in rows for one in row.each.values())
    below = [["task", "cell", *COSTS, "steps", "seeds", "device"], *costs]
    return Sheet([[head, *lines], *([below] if costs else [])], ["in brackets: published"] if theirs else [])


def _beside(row: Row, part: Part) -> str:
    ours = doubted(measured(row, part), row) or absent(row)
    return ours + (f" ({row.cell.published.printed})" if row.cell.published else "")


def doubted(text: str, row: Row) -> str:
    return f"{text}{DOUBTED}" if row.doubts else text


def measured(row: Row, part: Part) -> str:
    """Mean ± standard deviation of what a task is measured by."""
    mean, spread = row.mean(part.measure), row.spread(part.measure)
    if mean is None:
        return ""
    told = MEASURED.get(part.measure, SIGNIFICANT).format(mean)
    return told if spread is None else f"{told} ± {_alike(spread, told)}"


def _alike(spread: float, told: str) -> str:
    """With the decimals of the mean that was told, and with its power of ten where it has one."""
    figures, mark, power = told.partition("e")
    decimals = len(figures.partition(".")[2])
    return f"{spread / 10 ** int(power or 0):.{decimals}f}{mark}{power}"


def _cost(part: Part, row: Row) -> list[str]:
    devices = dict.fromkeys(found.device for found in row.found.values())
    steps = dict.fromkeys(f"{found.steps:,}" for found in row.found.values())
    costs = [figure(row, name) for name in COSTS]
    return [title(part), row.cell.name, *costs, ", ".join(steps), _count(row, part.measure), ", ".join(devices)]


def label(part: Part) -> str:
    from regard.training.loop import better

    return f"{title(part)}, {short(part.measure)} {'↓' if better(0.0, 1.0, part.measure) else '↑'}"


def title(part: Part) -> str:
    return part.title or part.name


def short(name: str) -> str:
    return name.replace("_", " ").replace("perplexity", "ppl")


def figure(row: Row, name: str) -> str:
    """Mean ± standard deviation; what a run costs is told without."""
    mean, spread, form = row.mean(name), row.spread(name), FORMS.get(name, PLAIN)
    if mean is None:
        return ""
    return form.format(mean) + (f" ± {form.format(spread)}" if spread is not None and name not in COSTS else "")


def _seeds(study: Study, row: Row) -> str:
    """Those that have what the table is about."""
    return _count(row, study.columns[0]) if row.found else absent(row)


def _count(row: Row, name: str) -> str:
    count = len(row.values(name))
    wanted = len(row.seeds)
    return str(count) if count == wanted else f"{count} of {wanted}"


def absent(row: Row) -> str:
    """Why there is no figure."""
    return "damaged" if row.damaged else row.begun or ("no data" if row.missing else "not run")


def _published(row: Row) -> str:
    theirs = row.cell.published
    return "" if theirs is None else theirs.printed + (f" ({short(theirs.measure)})" if theirs.measure else "")
