"""The ground of every schema: frozen, checked at birth, and answering a mistake in one sentence; and TOML.

Nothing here needs torch, so that help and errors are instant.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomlkit
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from regard.errors import ConfigError, nearest


class Config(BaseModel):
    """Frozen, checked at birth, and known to the last name."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", coerce_numbers_to_str=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(sentence(type(self), error.errors()[0])) from None


def sentence(schema: type[BaseModel], error: ErrorDetails) -> str:
    """pydantic's first complaint as `where: what is wrong, and what to write`."""
    where = ".".join(str(part) for part in error["loc"])
    got = json.dumps(error["input"], default=str, ensure_ascii=False)
    match error["type"]:
        case "extra_forbidden":
            *above, name = (str(part) for part in error["loc"])
            known = fields(schema, above)
            inner = error["input"] if isinstance(error["input"], dict) else {}  # --task.counted, where it is --counted
            return f"{where}: no such setting; {nearest(next((key for key in inner if key in known), name), known)}"
        case "missing" if isinstance(error["loc"][-1], int):
            return f"{where.rpartition('.')[0]}: more values are wanted than {got}"
        case "missing":
            return f"{where}: missing; write it in the recipe"
        case "model_type":
            return f"{where}: a section, not a setting; write --{where}.key value"
        case "value_error":
            text = str(error["ctx"]["error"])
            return f"{where}.{text}" if where and ":" in text.split(" ")[0] else f"{where}: {text}" if where else text
        case _:
            wanted = error["msg"].removeprefix("Input ").replace("should be", "must be")
            return f"{where}: {wanted}, but it is {got}"


def fields(schema: type[BaseModel], above: Sequence[str]) -> list[str]:
    """The names that a section knows; `above` leads to it."""
    for name in above:
        schema = section(schema, name) or schema
    return [field.alias or name for name, field in schema.model_fields.items()]


class ModelConfig(Config):
    """Base of each system's own settings; `size` stands for a row of the SIZES table in the system's file."""

    @property
    def required(self) -> tuple[str, ...]:
        """What is known only once the data has been read: the tokens, or of a model of numbers what it tells."""
        return ("vocab",) if getattr(self, "inputs", None) is None else ("labels",)

    @model_validator(mode="before")
    @classmethod
    def _from_size(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "size" not in values:
            return values
        sizes = sys.modules[cls.__module__].SIZES
        size = str(values["size"])
        if size not in sizes:
            raise ConfigError(f"size: no size {size!r}; {nearest(size, sizes)}")
        return {**sizes[size], **{k: v for k, v in values.items() if k != "size"}}

    def check_inputs(self) -> None:
        """It reads numbers or tokens; for systems that can do both."""
        inputs, vocab = self.inputs, self.vocab  # type: ignore[attr-defined]
        if inputs is not None and vocab is not None:
            raise ConfigError(f"inputs: it reads {inputs} numbers a step or {vocab} tokens, not both; leave one out")

    def check_heads(self) -> None:
        """Every head gets the same share of the width; for systems that have both."""
        dim, heads = self.dim, self.heads  # type: ignore[attr-defined]
        if dim % heads:
            fits = max(h for h in range(1, heads) if dim % h == 0)
            whose = "" if "heads" in self.model_fields_set else ", which stands where it is left out"
            raise ConfigError(f"heads: dim={dim} does not divide into heads={heads}{whose}; try heads={fits}")


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such recipe file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path}: cannot be read as TOML: {error}") from None


def write_toml(recipe: Config) -> str:
    """TOML that reads back as the same recipe; what is None is left out."""
    return tomlkit.dumps(recipe.model_dump(mode="json", exclude_none=True))


def section(schema: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The schema of a section, where `name` is one."""
    if name not in schema.model_fields:
        return None
    kind = schema.model_fields[name].annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Nested values, those above winning."""
    merged = dict(below)
    for name, value in above.items():
        old = below.get(name)
        if isinstance(old, dict) and not isinstance(value, dict):
            raise ConfigError(f"{name}: a section, not a setting; write --{name}.key value")
        merged[name] = merge(old, value) if isinstance(old, dict) else value
    return merged
