"""A table in the terminal, as Markdown and as JSON; all three say the same."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from regard.errors import RegardError
from regard.reproduce.results import Row
from regard.reproduce.study import COSTS, Study
from regard.weights import write

PLAIN, FINE = "{:.1f}", "{:.2f}"
FORMS = {"bleu": FINE, "perplexity": FINE, "free_perplexity": FINE, "parameters": "{:,.0f}", "flops": "{:.1e}"}


def write_table(study: Study, rows: Sequence[Row], folder: Path, console: Console) -> None:
    """table.md, table.json and the figure, beside the runs."""
    if not folder.is_dir():
        return
    try:
        write(folder / "table.md", markdown(study, rows).encode())
        write(folder / "table.json", json.dumps(as_json(study, rows), indent=1, ensure_ascii=False).encode())
    except OSError as error:
        raise RegardError(
            f"{folder}: cannot be written: {error.strerror}; make room, or choose another --out"
        ) from None
    files = [folder / "table.md", folder / "table.json", *study.draw(study, rows, folder / "table")]
    console.print("\n" + "\n".join(map(str, files)), markup=False, soft_wrap=True)


def print_table(study: Study, rows: Sequence[Row], console: Console) -> None:
    """Lines as long as they are: a narrow terminal folds them, but nothing of a figure is ever left out."""
    lines = cells(study, rows)
    wide = [max(map(len, column)) for column in zip(*lines, strict=True)]
    console.print(f"\n[bold]{study.title}[/]")
    for number, (name, *rest) in enumerate(lines):
        padded = [name.ljust(wide[0]), *(text.rjust(width) for text, width in zip(rest, wide[1:], strict=True))]
        console.print("  ".join(padded), style=None if number else "bold", markup=False, soft_wrap=True)
    for note in notes(study, rows):
        console.print(f"- {note}", markup=False, soft_wrap=True)


def markdown(study: Study, rows: Sequence[Row]) -> str:
    head, *lines = cells(study, rows)
    table = [head, ["---", *("---:" for _ in head[1:])], *lines]
    return "\n".join(
        [
            f"# {study.title}",
            "",
            *(f"| {' | '.join(line)} |" for line in table),
            "",
            *(f"- {note}" for note in notes(study, rows)),
            "",
        ]
    )


def cells(study: Study, rows: Sequence[Row]) -> list[list[str]]:
    """The head and a line for each cell, all as text; one that was not run says so."""
    head = ["cell", *map(short, study.columns), "seeds", "published"]
    lines = [
        [row.cell.name, *(figure(row, name) for name in study.columns), _seeds(study, row), _published(row)]
        for row in rows
    ]
    return [head, *lines] if any(row.cell.published for row in rows) else [line[:-1] for line in (head, *lines)]


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
    count = len(row.values(study.columns[0]))
    return "not run" if not row.found else str(count) if count == row.wanted else f"{count} of {row.wanted}"


def _published(row: Row) -> str:
    theirs = row.cell.published
    return "" if theirs is None else f"{theirs.value:g}" + (f" ({short(theirs.measure)})" if theirs.measure else "")


def notes(study: Study, rows: Sequence[Row]) -> list[str]:
    """What each column is, where it was measured, where the published figures are from, and what else is to be said."""
    found = [found for row in rows for found in row.found.values()]
    columns = _names_by_text(
        (short(name), one.report[name]["definition"]) for name in study.columns for one in found if name in one.report
    )
    sources = _names_by_text((row.cell.name, row.cell.published.where) for row in rows if row.cell.published)
    made = dict.fromkeys(f"{one.steps:,} steps on {one.device}" for one in found)
    return [
        *(f"{names}: {text}" for text, names in columns.items()),
        *([f"made in {', '.join(made)}"] if made else []),
        *(f"published, {names}: {text}" for text, names in sources.items()),
        *study.notes,
    ]


def _names_by_text(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """What is said of several is said once."""
    found: dict[str, dict[str, None]] = {}
    for name, text in pairs:
        found.setdefault(text, {})[name] = None
    return {text: ", ".join(names) for text, names in found.items()}


def as_json(study: Study, rows: Sequence[Row]) -> dict[str, object]:
    return {
        "title": study.title,
        "recipe": study.recipe,
        "parts": [asdict(part) for part in study.parts],
        "settings": study.settings,
        "columns": study.columns,
        "notes": notes(study, rows),
        "cells": [_cell(row) for row in rows],
    }


def _cell(row: Row) -> dict[str, object]:
    names = dict.fromkeys(name for found in row.found.values() for name in found.numbers)
    published = row.cell.published
    return {
        "name": row.cell.name,
        "settings": row.cell.settings,
        "seeds": {
            seed: {"device": found.device, "steps": found.steps, **found.numbers} for seed, found in row.found.items()
        },
        "mean": {name: row.mean(name) for name in names},
        "sd": {name: row.spread(name) for name in names},
        "published": asdict(published) if published else None,
    }
