"""`regard demo`: a translation task made on the spot, learnt in about two minutes, scored, and looked into."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from regard import run
from regard.cli.shared import program
from regard.config import make_recipe, merge, read_toml
from regard.config.data import PairsData
from regard.data.spoken import CATEGORIES, spoken
from regard.models import schema
from regard.pipeline.rewrite import Rewriter, load_rewriter
from regard.recipes import find_recipe
from regard.view.terminal import draw

Phrase = tuple[str, str, str]  # category, source, target

SHOWN = "three hundred and twenty-one thousand, four hundred and eighty-seven"


def show(languages: tuple[str, str], folder: Path, steps: int | None, console: Console) -> None:
    source, target = languages
    title = f"Numbers, years, ordinals, dates, times and prices, in words: {source} → {target}"
    settings = {"title": title, "data": {"languages": [source, target]}, "train": {"steps": steps} if steps else {}}
    recipe = make_recipe(merge(read_toml(find_recipe("demo")), settings), schema)
    console.print(f"{title}. Nothing is downloaded.")
    found = run.start(recipe, folder, console)
    pipeline = load_rewriter(folder)
    assert isinstance(recipe.data, PairsData)
    held = list(spoken(languages, "test", recipe.data.held))
    _print_scores(pipeline, held, found, console)
    _print_examples(pipeline, held, console)
    phrase = SHOWN if source == "en" else held[0][1]
    console.print("\n[bold]What it looked at[/]")
    console.print(draw(pipeline.look(phrase)))
    _print_commands(folder, held[1][1], phrase, console)


def _print_scores(pipeline: Rewriter, held: Sequence[Phrase], found: dict[str, float], console: Console) -> None:
    console.print("\n[bold]Held-out phrases[/], whose values occur nowhere in training:")
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


def _print_examples(pipeline: Rewriter, held: Sequence[Phrase], console: Console) -> None:
    """The first phrase of each of five categories."""
    first = {category: phrase for category, phrase, _ in reversed(held)}
    console.print("\n[bold]Five of them[/]")
    for phrase in [first[category] for category in CATEGORIES if category in first][:5]:
        console.print(f"  {escape(phrase)}\n    → {escape(pipeline(phrase))}")


def _print_commands(folder: Path, asked: str, looked_at: str, console: Console) -> None:
    console.print("\n[bold]Go on with[/]")
    for words in (
        ["predict", str(folder), asked, "--nbest", "3"],
        ["look", str(folder), looked_at, "--html", "look.html"],
        ["doctor", str(folder)],
    ):
        console.print(f"  {shlex.join([program(), *words])}", markup=False, soft_wrap=True)
