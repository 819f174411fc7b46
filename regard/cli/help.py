"""What `--help` prints, read off the schemas: a setting that exists is a setting that is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from regard.cli.flags import as_flag
from regard.config import Config, DecodeConfig, Recipe, section


@dataclass(frozen=True)
class Verb:
    """One word of the command line, and what it says of itself."""

    says: str
    usage: str
    example: str
    options: type[Config]
    run: Callable[[list[str]], int | None]


def print_verbs(verbs: Mapping[str, Verb], console: Console) -> None:
    console.print("[bold]regard[/]: train, ask and look into attention models\n")
    table = _table()
    for name, verb in verbs.items():
        table.add_row(f"  {name}", verb.says)
    console.print(table)
    console.print("\nregard VERB --help tells more, with an example.")
    console.print("In Python: regard.load(RUN), regard.train(RECIPE), regard.watch(model).")


def print_help(name: str, verb: Verb, console: Console) -> None:
    console.print(f"usage: regard {name} {escape(verb.usage)}\n\n{verb.says}", soft_wrap=True)
    console.print(f"\nexample:\n  {escape(verb.example)}", soft_wrap=True)
    decodes = issubclass(verb.options, DecodeConfig)
    own = {key: field for key, field in verb.options.model_fields.items() if key not in DecodeConfig.model_fields}
    _print_settings(own if decodes else verb.options.model_fields, "settings:", console)
    if decodes:
        heading = "how an answer is searched for; what is left out is as in the run's recipe:"
        _print_settings(DecodeConfig.model_fields, heading, console, given={})


def print_recipe(schema: type[Recipe], console: Console, recipe: Recipe | None = None) -> None:
    """The settings of each section, with their defaults or, where there is a recipe, its values."""
    for part in schema.model_fields:
        inner = section(schema, part)
        if inner is not None and inner.model_fields:
            given = None if recipe is None else dict(getattr(recipe, part))
            _print_settings(inner.model_fields, f"\\[{part}] {_first_line(inner)}", console, f"{part}.", given)


def _print_settings(
    fields: Mapping[str, FieldInfo],
    heading: str,
    console: Console,
    prefix: str = "",
    given: Mapping[str, Any] | None = None,
) -> None:
    if not fields:
        return
    table = _table()
    for key, field in fields.items():
        value = field.get_default() if given is None else given.get(key)
        shown = f"[dim]({escape(_shown(value))})[/]" if _shown(value) else ""
        words = (escape(field.description or ""), escape(_choices(field.annotation)), shown)
        table.add_row(f"  {as_flag(prefix + key)}", " ".join(filter(None, words)))
    console.print(f"\n{heading}")
    console.print(table)


def _choices(kind: Any) -> str:
    """ "bpe | unigram | char" of a setting that takes one of a few words."""
    if get_origin(kind) is Literal:
        return " | ".join(map(str, get_args(kind)))
    return " | ".join(filter(None, (_choices(inner) for inner in get_args(kind) if inner is not NoneType)))


def _shown(value: Any) -> str:
    """As one would write it on the command line; nothing for what is off or empty."""
    match value:
        case None | False | "" | ():
            return ""
        case True:
            return "true"
        case tuple():
            return " ".join(map(str, value))
    return str(value)


def _first_line(schema: type[BaseModel]) -> str:
    return (schema.__doc__ or "").strip().partition("\n")[0]


def _table() -> Table:
    return Table(box=None, show_header=False, pad_edge=False)
