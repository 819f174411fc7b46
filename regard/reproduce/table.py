"""A table in the terminal, as Markdown and as JSON; all three say the same."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from regard.data.corpora import whence
from regard.disk import write
from regard.errors import writing
from regard.reproduce.layout import DOUBTED, Lines, Sheet, short
from regard.reproduce.results import Row
from regard.reproduce.study import Study


def write_table(study: Study, rows: Sequence[Row], folder: Path, console: Console) -> None:
    """table.md, table.json and the figure, beside the runs; a part of the table has a name of its own."""
    if not folder.is_dir():
        return
    stem = folder / _name(study, rows)
    page, data = Path(f"{stem}.md"), Path(f"{stem}.json")
    with writing(folder, "choose another --out"):
        write(page, markdown(study, rows).encode())
        write(data, json.dumps(as_json(study, rows), indent=1, ensure_ascii=False).encode())
    files = [page, data, *study.draw(study, rows, stem)]
    console.print("\n" + "\n".join(map(str, files)), markup=False, soft_wrap=True)


def _name(study: Study, rows: Sequence[Row]) -> str:
    seeds = rows[0].seeds
    other = () if seeds == study.seeds else ("seeds", *map(str, seeds))
    return "-".join(("table", *study.asked, *other))


def print_table(study: Study, rows: Sequence[Row], console: Console) -> None:
    """Lines as long as they are: a narrow terminal folds them, but nothing of a figure is ever left out."""
    sheet = study.lay(study, rows)
    console.print(f"\n[bold]{study.title}[/]")
    for number, table in enumerate(sheet.tables):
        console.print("\n" * bool(number), end="")
        _print_lines(table, console)
    for note in notes(study, rows, sheet):
        console.print(f"- {note}", markup=False, soft_wrap=True)


def _print_lines(lines: Lines, console: Console) -> None:
    wide = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for number, (name, *rest) in enumerate(lines):
        padded = [name.ljust(wide[0]), *(text.rjust(width) for text, width in zip(rest, wide[1:], strict=True))]
        console.print("  ".join(padded), style=None if number else "bold", markup=False, soft_wrap=True)


def markdown(study: Study, rows: Sequence[Row]) -> str:
    sheet = study.lay(study, rows)
    said = [f"# {study.title}", ""]
    for head, *lines in sheet.tables:
        table = [head, ["---", *("---:" for _ in head[1:])], *lines]
        said += [*(f"| {' | '.join(line)} |" for line in table), ""]
    return "\n".join([*said, *(f"- {note}" for note in notes(study, rows, sheet)), ""])


def notes(study: Study, rows: Sequence[Row], sheet: Sheet) -> list[str]:
    """What each column is, where it was measured, what is missing, doubted, damaged or made otherwise, where published
    figures are from, and what else."""
    found = [found for row in rows for found in row.found.values()]
    columns = _names_by_text(
        (short(name), one.report[name]["definition"]) for name in study.columns for one in found if name in one.report
    )
    every = [one for row in rows for one in (row, *row.each.values())]
    sources = _names_by_text((row.cell.name, row.cell.published.where) for row in every if row.cell.published)
    doubts = _names_by_text((row.cell.name, text) for row in rows for text in row.doubts)
    missing = dict.fromkeys(row.missing for row in every if row.missing)
    return [
        *(f"{names}: {text}" for text, names in columns.items()),
        *sheet.notes,
        *(f"no data: {name} is missing; {whence(name)}".rstrip("; ") for name in missing),
        *(f"{DOUBTED} {names}: {text}" for text, names in doubts.items()),
        *dict.fromkeys(text for row in every for text in (*row.damaged, *row.others)),
        *(f"published, {names}: {text}" for text, names in sources.items()),
        *study.notes,
        *(f"{names}: {text}" for text, names in _said(study, rows).items()),
    ]


def _said(study: Study, rows: Sequence[Row]) -> dict[str, str]:
    """Of the cells, of the parts, and of where they meet; of those that are shown."""
    cells = [(row.cell.name, text) for row in rows for text in row.cell.notes]
    parts = [(part.name, text) for part in study.parts for text in part.notes]
    own = [(name, text) for row in rows for name, one in row.each.items() for text in one.cell.notes]
    return _names_by_text([*cells, *parts, *own])


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
        "notes": notes(study, rows, study.lay(study, rows)),
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
        "published": {**asdict(published), "value": published.value} if published else None,
        "missing": row.missing,
        "begun": row.begun,
        "damaged": row.damaged,
        "doubts": row.doubts,
        "parts": {name: _cell(one) for name, one in row.each.items()},
    }
