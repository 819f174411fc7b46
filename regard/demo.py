"""`regard demo`: a translation task made on the spot, learnt in about two minutes, scored, and looked into."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from regard import run
from regard.config import make_recipe, merge, read_toml
from regard.data.spoken import CATEGORIES, spoken
from regard.models import schema
from regard.pipeline import Pipeline, load
from regard.recipes import find_recipe
from regard.view.terminal import draw

SHOWN = "three hundred and twenty-one thousand, four hundred and eighty-seven"


def show(source: str, target: str, folder: Path, steps: int | None, console: Console) -> None:
    settings = {"data": {"languages": [source, target]}, "train": {"steps": steps} if steps else {}}
    recipe = make_recipe(merge(read_toml(find_recipe("demo")), settings), schema)
    console.print(
        f"Numbers, years, ordinals, dates, times and prices, in words: {source} → {target}. Nothing is downloaded."
    )
    found = run.start(recipe, folder, console)
    pipeline = load(folder)
    held = list(spoken(recipe.data.languages, "test", recipe.data.held))
    console.print("\n[bold]Held-out phrases[/], whose values occur nowhere in training:")
    _print_scores(pipeline, held, found, console)
    console.print("\n[bold]Five of them[/]")
    for _, phrase, _ in [next(row for row in held if row[0] == category) for category in CATEGORIES[:5]]:
        console.print(f"  {escape(phrase)}\n    → {escape(pipeline(phrase))}")
    console.print("\n[bold]What it looked at[/]")
    phrase = SHOWN if source == "en" else held[0][1]
    console.print(draw(pipeline.look(phrase)))
    console.print("\n[bold]Go on with[/]")
    for command in (
        f'regard predict {folder} "{held[1][1]}" --nbest 3',
        f'regard look {folder} "{phrase}" --html look.html',
        f"regard doctor {folder}",
    ):
        console.print(f"  {escape(command)}", soft_wrap=True)


def _print_scores(
    pipeline: Pipeline, held: list[tuple[str, str, str]], found: dict[str, float], console: Console
) -> None:
    answers = pipeline([phrase for _, phrase, _ in held])
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("category", "exact match", "phrases"):
        table.add_column(column, justify="left" if column == "category" else "right")
    for category in CATEGORIES:
        hits = [answer == wanted for answer, (kind, _, wanted) in zip(answers, held, strict=True) if kind == category]
        table.add_row(category, f"{100 * sum(hits) / max(1, len(hits)):.1f} %", str(len(hits)))
    table.add_row("[bold]all[/]", f"[bold]{found['exact']:.1f} %[/]", str(len(held)))
    console.print(table)
    for name in ("bleu", "chrf"):
        console.print(f"{name} {found[name]:.2f}  {getattr(found[name], 'definition', '')}", markup=False)
