"""Verbs that make a run: recipes, train, resume, demo."""

from __future__ import annotations

import shlex
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import Field
from rich.markup import escape
from rich.padding import Padding

from regard.cli.flags import arguments, as_flag
from regard.cli.shared import Nothing, free, out, program, run_of, write_text
from regard.config import Config, Recipe, make_recipe, merge, read_toml, recipe_schema, section, task_of, write_toml
from regard.errors import ConfigError
from regard.recipes import find_recipe, list_recipes, recipe_text


def recipes(argv: list[str]) -> None:
    words, values = arguments(argv, Nothing)
    Nothing(**values)
    match words:
        case [] | ["ls"]:
            _list_recipes()
        case ["show", name]:
            print(recipe_text(name), end="")
        case ["copy", name, *rest] if len(rest) <= 1:
            _copy_recipe(name, Path(rest[0] if rest else f"{name}.toml"))
        case _:
            raise ConfigError(
                f"recipes {' '.join(words)}: not understood; "
                "write recipes, recipes show NAME, or recipes copy NAME [FILE]"
            )


def _copy_recipe(name: str, target: Path) -> None:
    text = recipe_text(name)
    if target.exists():
        raise ConfigError(f"{target} exists already; name another file: regard recipes copy {name} FILE")
    write_text(target, text)
    out.print(f"{target} written; train it with: regard train {target}", markup=False, soft_wrap=True)


def _list_recipes() -> None:
    for name in list_recipes():
        head = read_toml(find_recipe(name))
        time = "1 minute" if head["minutes"] == 1 else f"{head['minutes']:g} minutes"
        out.print(f"[bold]{name}[/]  [dim]{head['system']}, {head['machine']}, {time}[/]")
        out.print(Padding(escape(f"{head['title']}\nresult: {head['result']}"), (0, 0, 0, 2)))
    out.print("\nregard recipes show NAME prints one; regard recipes copy NAME makes it yours.")


class TrainOptions(Config):
    out: str | None = None
    """The run folder to make; runs/RECIPE when left out."""
    print_config: bool = False
    """Show the resolved recipe and stop."""
    dry_run: bool = False
    """Build data and model, try a few steps, tell parameters, memory and expected time, and leave nothing behind."""


def train(argv: list[str]) -> None:
    name, recipe, options = _recipe_of(argv)
    if options.print_config:
        print(write_toml(recipe), end="")
        return
    from regard import run

    if options.dry_run:
        run.rehearse(recipe, out)
        return
    folder = Path(options.out) if options.out else free(Path("runs") / Path(name).stem)
    run.start(recipe, folder, out)
    _go_on(folder, recipe)


def _recipe_of(argv: list[str]) -> tuple[str, Recipe, TrainOptions]:
    """A recipe by name, with the flags laid over it, and the verb's own options."""
    words, _ = arguments(argv, TrainOptions, Recipe)
    if not words:
        raise ConfigError("train what? Name a recipe or a TOML file; regard recipes lists the shipped ones")
    values = read_toml(find_recipe(words[0]))
    from regard.models import schema

    whole = recipe_schema(str(values.get("system", "transformer")), schema, task_of(values))
    words, given = arguments(argv, TrainOptions, whole)
    if words[1:]:
        before = argv[argv.index(words[1]) - 1]
        if before.startswith("--") and before != "--":
            raise ConfigError(f"{before} is true or false, but {words[1]!r} came; write {before}, or {before} false")
        raise ConfigError(f"{words[1]!r}: one recipe at a time; settings are written --section.key value")
    options = TrainOptions(**{key: given.pop(key) for key in list(given) if key in TrainOptions.model_fields})
    _refuse_unknown(given, whole)
    return words[0], make_recipe(merge(values, given), schema), options


def _refuse_unknown(given: dict[str, Any], whole: type[Recipe]) -> None:
    """A flag outside every section gets the sentence that names the nearest one inside."""
    sections = {part: inner for part in whole.model_fields if (inner := section(whole, part))}
    inside = [f"{part}.{key}" for part, inner in sections.items() for key in inner.model_fields]
    known = [*TrainOptions.model_fields, *whole.model_fields]
    for name, value in given.items():
        if name not in known:
            path = f"{name}.{next(iter(value))}" if isinstance(value, dict) else name
            meant = _meant(path, inside, known)
            hint = f"did you mean {as_flag(meant)}?" if meant else "settings are written --section.key"
            raise ConfigError(f"{as_flag(path)}: no such setting; {hint}")


def _meant(path: str, inside: list[str], known: list[str]) -> str:
    """By the whole name where a section is named, else by its last word; nothing where none is like it."""
    words = {whole.rpartition(".")[2]: whole for whole in reversed(inside)} | {word: word for word in known}
    close = get_close_matches(path, inside, 1) if "." in path else []
    last = get_close_matches(path.rpartition(".")[2], words, 1)
    return close[0] if close else words[last[0]] if last else ""


def resume(argv: list[str]) -> None:
    folder, *_ = run_of(argv, Nothing)
    from regard import run
    from regard.interop.recipe import NOWHERE
    from regard.pipeline import read_run

    recipe = read_run(folder)
    if NOWHERE in recipe.data.train:
        what = f"{folder} was imported, so that there is no training to go on with"
        raise ConfigError(f"{what}; begin another with it: regard train RECIPE --train.begin {folder}")
    run.resume(folder, out)
    _go_on(folder, recipe)


def _go_on(folder: Path, recipe: Recipe) -> None:
    from regard.prepare.shared import has

    out.print(f"{folder} is ready. Go on with:", markup=False, soft_wrap=True)
    verbs = [["predict", str(folder)], ["doctor", str(folder)]]
    if has(recipe.data, "test"):
        verbs.insert(0, ["evaluate", str(folder)])
    elif has(recipe.data, "valid"):
        verbs.insert(0, ["evaluate", str(folder), "--split", "valid"])
    for words in verbs:
        out.print(f"  {shlex.join([program(), *words])}", markup=False, soft_wrap=True)


class DemoOptions(Config):
    source: str = "en"
    """The language to read."""
    target: str = "de"
    """The language to write: any that num2words and Babel know, such as fr, es or nl."""
    out: str | None = None
    """The run folder to make; runs/demo when left out."""
    steps: int | None = Field(None, ge=1)
    """Train for so many steps instead of the recipe's."""


def demo(argv: list[str]) -> None:
    words, values = arguments(argv, DemoOptions)
    if words:
        raise ConfigError(f"{words[0]!r}: demo takes settings only, for example --target fr")
    options = DemoOptions(**values)
    from regard.demo import show

    folder = Path(options.out) if options.out else free(Path("runs/demo"))
    show((options.source, options.target), folder, options.steps, out)
