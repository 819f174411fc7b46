"""Recipes: a TOML file, then `--section.key value`, into frozen models that refuse what they do not know.

One schema serves the file, the flags and the run folder. Nothing here needs torch, so that help and errors are instant;
the schema of `[model]` belongs to the system that the recipe names, and whoever knows the systems hands it in.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Self, Union, get_args, get_origin

import tomlkit
from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError, create_model, model_validator
from pydantic_core import ErrorDetails

from regard.errors import ConfigError, nearest

FORMAT = 1  # of a run folder; raised when an older Regard could no longer read it
Split = Literal["train", "valid", "test"]


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
            return f"{where}: no such setting; {nearest(name, fields(schema, above))}"
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
    return list(schema.model_fields)


class ModelConfig(Config):
    """Base of each system's own settings; `size` stands for a row of the SIZES table in the system's file."""

    required: ClassVar[tuple[str, ...]] = ("vocab",)  # known only once the data has been read

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


class DataConfig(Config):
    """Where the examples come from."""

    made: Literal["spoken"] | None = None
    """A made task instead of files: "spoken" (numbers, dates, times and prices in words)."""
    languages: tuple[str, str] = ("en", "de")
    """Source and target language of a made task."""
    train: tuple[str, ...] = ()
    """Two line-aligned files (source, target), or one .tsv or .jsonl; looked for here, then under REGARD_DATA."""
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    fields: tuple[int | str, int | str] | None = None
    """Columns (TSV: 0, 1) or keys (JSONL: "source", "target") that hold the two sides."""
    bad_lines: Literal["skip", "refuse"] = "skip"
    """What to do with a line of wrong columns, not UTF-8, an empty side, or too long."""
    count: int = Field(60_000, ge=1)
    """Training examples of a made task."""
    held: int = Field(1000, ge=1)
    """Examples in each held-out split of a made task."""
    longest: int = Field(256, ge=2, le=65_536)
    """Most tokens on a side of a training example, its end mark included."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.made is None and not self.train:
            raise ConfigError(
                'train: missing; write two line-aligned files, one .tsv or one .jsonl, or set made = "spoken"'
            )
        for split in get_args(Split):
            if len(getattr(self, split)) > 2:
                raise ConfigError(
                    f"{split}: {len(getattr(self, split))} files; write two line-aligned files, one .tsv or one .jsonl"
                )
        return self


class TokensConfig(Config):
    """How text becomes tokens."""

    kind: Literal["bpe", "unigram", "wordpiece", "word", "char"] = "bpe"
    size: int = Field(8000, ge=8, le=1_000_000)
    """Most entries in the vocabulary, special tokens included."""
    joint: bool = True
    """One vocabulary for both sides."""
    lowercase: bool = False
    continuation: str = ""
    """Mark at the end of an unfinished word in text that was split beforehand ("@@");
    removed from output and references."""


class TaskConfig(Config):
    """What is learnt, and how it is measured."""

    name: Literal["rewrite"] = "rewrite"
    smoothing: float = Field(0.1, ge=0, lt=1)
    """Label smoothing: this much probability is spread evenly over the vocabulary."""
    bleu: Literal["13a", "intl", "char", "none", "zh", "ja-mecab", "ko-mecab"] = "13a"
    """sacrebleu's tokenisation."""


class TrainConfig(Config):
    """The loop."""

    steps: int = Field(10_000, ge=1)
    tokens: int = Field(4096, ge=8)
    """Batch size: rows × longest side, in tokens, per process and micro-batch."""
    accumulate: int = Field(1, ge=1)
    """Micro-batches to one update; exact: gradients are those of the one big batch."""
    rate: float = Field(1e-3, gt=0)
    """Peak learning rate (with noam: a factor on the paper's formula)."""
    schedule: Literal["noam", "inverse_sqrt", "cosine", "linear", "constant"] = "inverse_sqrt"
    warmup: int = Field(400, ge=0)
    floor: float = Field(0.0, ge=0, le=1)
    """Where cosine and linear end, as a share of the peak."""
    betas: tuple[float, float] = (0.9, 0.98)
    epsilon: float = Field(1e-8, gt=0)
    decay: float = Field(0.0, ge=0)
    """Decoupled weight decay, on matrices only."""
    clip: float = Field(1.0, ge=0)
    """Largest norm of the gradient; 0 leaves it as it is."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 autocast on a GPU, fp32 elsewhere."""
    compile: bool = False
    device: str = "auto"
    threads: int = Field(0, ge=0)
    """CPU threads; 0 leaves the choice to PyTorch."""
    seed: int = Field(0, ge=0, lt=2**31)
    deterministic: bool = False
    """Bit-for-bit repeatable on a GPU, at some cost (a CPU always is)."""
    log_every: int = Field(50, ge=1)
    evaluate_every: int = Field(1000, ge=0)
    """Steps between evaluations by decoding; 0: only at the end."""
    save_every: int = Field(1000, ge=1)
    keep: int = Field(3, ge=1)
    """Last checkpoints to keep, besides the best."""
    metric: str = "loss"
    """What the best checkpoint is best in; loss and perplexity are better lower, all others higher."""
    patience: int = Field(0, ge=0)
    """Stop after this many evaluations without a better one; 0: never."""
    final: Literal["best", "last", "average"] = "best"
    """Which weights model.safetensors gets."""
    average: int = Field(5, ge=1)
    """How many of the last checkpoints final = "average" takes."""
    on_nan: Literal["raise", "skip", "rewind"] = "raise"
    stop_after: float = Field(0.0, ge=0)
    """Save and leave after this many minutes; 0: never."""
    tensorboard: bool = False


class DecodeConfig(Config):
    """How an answer is searched for. A beam of 1 is greedy; `sample` draws instead."""

    beam: int = Field(4, ge=1, le=1024)
    """Hypotheses kept at each step."""
    expand: int | None = Field(None, ge=1, le=4096)
    """Continuations tried of each hypothesis; as many as the beam when left out."""
    nbest: int = Field(1, ge=1, le=1024)
    penalty: Literal["wu", "average", "none"] = "wu"
    alpha: float = Field(0.6, ge=0, le=10)
    """Strength of the length penalty."""
    coverage: float = Field(0.0, ge=0, le=10)
    """Strength of the coverage penalty of Wu et al."""
    sample: bool = False
    temperature: float = Field(1.0, gt=0, le=100)
    top_k: int = Field(0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    min_p: float = Field(0.0, ge=0, lt=1)
    seed: int = Field(0, ge=0)
    block_ngram: int = Field(0, ge=0, le=64)
    """No n-gram of this many tokens is said twice; 0: allowed."""
    shortest: int = Field(0, ge=0)
    """Fewest tokens of an answer, its end mark not counted."""
    longest: int = Field(0, ge=0)
    """Most tokens of an answer; 0: source length × ratio + extra."""
    ratio: float = Field(1.0, ge=0, le=100)
    extra: int = Field(50, ge=1, le=65_536)


class Recipe(Config):
    """One run, start to finish. The head says what it is for and what came out."""

    format: Literal[1] = FORMAT  # type: ignore[assignment]
    title: str = ""
    command: str = ""
    machine: str = ""
    minutes: float = 0.0
    result: str = ""
    system: str
    data: DataConfig
    tokens: TokensConfig = TokensConfig()
    task: TaskConfig = TaskConfig()
    model: SerializeAsAny[Config]
    train: TrainConfig = TrainConfig()
    decode: DecodeConfig = DecodeConfig()


Schema = Callable[[str], type[Config]]


@cache
def recipe_schema(system: str, schema: Schema) -> type[Recipe]:
    """Recipe with the `[model]` section of one system."""
    return create_model("Recipe", __base__=Recipe, model=(schema(system), ...))


def make_recipe(values: dict[str, Any], schema: Schema) -> Recipe:
    if "system" not in values:
        raise ConfigError('system: missing; write for example system = "transformer" at the top of the recipe')
    return recipe_schema(str(values["system"]), schema)(**{"model": {}, **values})


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
        if inner is not None and name in inner.model_fields:
            return inner.model_fields[name].annotation
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
