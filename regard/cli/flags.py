"""Words and settings of a command line. The schemas say what a setting takes, so that nothing is listed twice."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from regard.config import section
from regard.errors import ConfigError


def arguments(argv: Sequence[str], *schemas: type[BaseModel]) -> tuple[list[str], dict[str, Any]]:
    """Words and settings of a command: `RUN --beam 5 --train.rate 3e-4 --data.train a.en a.de --json`.

    The schemas say how many words a setting takes: a list takes all that follow, a switch none, anything else one.
    """
    words: list[str] = []
    values: dict[str, Any] = {}
    waiting = list(argv)
    while waiting:
        word = waiting.pop(0)
        if word == "--":  # whatever follows is text, even if it begins with dashes
            return words + waiting, values
        if not word.startswith("--"):
            words.append(word)
            continue
        flag, equals, value = word[2:].partition("=")
        path = flag.replace("-", "_")
        known = _annotation(path, schemas)
        kind = _kind(known)
        found = [value] if equals else []
        switch = kind is bool and not (waiting and waiting[0] in ("true", "false"))
        while (
            not equals and not switch and waiting and not waiting[0].startswith("--") and (kind is tuple or not found)
        ):
            found.append(waiting.pop(0))
        if not found and not switch and kind is not None:
            raise ConfigError(f"--{flag}: a value is missing; write --{flag} VALUE")
        place(values, path, _read(found, known) if found else True)
    return words, values


def _annotation(path: str, schemas: Sequence[type[BaseModel]]) -> Any:
    """The type of a setting; None for one that no schema knows."""
    *above, name = path.split(".")
    for schema in schemas:
        inner: type[BaseModel] | None = schema
        for part in above:
            inner = section(inner, part) if inner is not None else None
        known = {field.alias or key: field for key, field in inner.model_fields.items()} if inner is not None else {}
        if name in known:
            return known[name].annotation
    return None


def _kind(known: Any) -> type | None:
    """bool, tuple, or object for a setting of one value; None for one that no schema knows."""
    if known is None:
        return None
    options = {known, *get_args(known)} if get_origin(known) in (Union, UnionType) else {known}
    return next((k for k in (bool, tuple) if any(k in (o, get_origin(o)) for o in options)), object)


def _read(found: list[str], known: Any) -> Any:
    """Text is taken as it is, be it a folder called 2024-01-01; anything else is written as in TOML."""
    values: list[Any] = found if _leaves(known) <= {str, NoneType, ...} else [literal(text) for text in found]
    if _kind(known) is not tuple:
        return values[0]
    whole = literal(found[0])
    return whole if len(found) == 1 and isinstance(whole, list) else values


def _leaves(kind: Any) -> set[Any]:
    """The plain types that a type is made of."""
    inner = () if get_origin(kind) is Literal else get_args(kind)
    return set().union(*map(_leaves, inner)) if inner else {kind}


def literal(text: str) -> Any:
    """The text as TOML, a bare word as a string."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def place(values: dict[str, Any], path: str, value: Any) -> None:
    *above, name = path.split(".")
    for part in above:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: {part} is a setting, not a section")
    values[name] = value


def as_flag(name: str) -> str:
    """A setting as it is written on the command line."""
    return f"--{name.rstrip('_').replace('_', '-')}"


def split_at_dashes(words: list[str]) -> tuple[list[str], list[str]]:
    """What follows a lone -- is text, even if it begins with dashes."""
    end = words.index("--") if "--" in words else len(words)
    return words[:end], words[end:]
