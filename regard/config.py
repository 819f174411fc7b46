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
from typing import Any, ClassVar, Literal, Self, get_args

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

    made: Literal["spoken", "copy"] | None = None
    """A made task instead of files: "spoken" (numbers, dates, times and prices in words) or "copy" (random letters, up
    to as many as `longest` lets in)."""
    languages: tuple[str, str] = ("en", "de")
    """Source and target language of a made task."""
    train: tuple[str, ...] = ()
    """Two line-aligned files (source, target), or one .tsv or .jsonl; plain or .xz;
    looked for here, then under REGARD_DATA."""
    valid: tuple[str, ...] = ()
    """Likewise, to choose the best checkpoint by."""
    test: tuple[str, ...] = ()
    """Likewise, for the result."""
    fields: tuple[int | str, int | str] | None = None
    """Columns (TSV: 0, 1) or keys (JSONL: "source", "target") that hold the two sides."""
    turns: str | None = None
    """Instead of fields, the key of a JSONL that holds a dialogue, "speaker: words" a line:
    each turn answers the one before."""
    unseen: bool = False
    """Leave out of the held-out splits what training shows too, but for punctuation and capitals."""
    bad_lines: Literal["skip", "refuse"] = "skip"
    """What to do with a line of wrong columns, not UTF-8, an empty side, without two speakers, or too long."""
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
    """What a token is; bpe and unigram can spell any text."""
    size: int = Field(8000, ge=8, le=1_000_000)
    """Most entries in the vocabulary, special tokens included."""
    least: int = Field(1, ge=1)
    """Fewest times that a word (kind word) or letter (kind char) must occur to have an entry."""
    joint: bool = True
    """One vocabulary for both sides."""
    lowercase: bool = False
    """Read and write small letters only."""
    continuation: str = ""
    """Mark at the end of an unfinished word in text that was split beforehand ("@@");
    removed from output and references."""


class TaskConfig(Config):
    """What is learnt, and how it is measured."""

    name: Literal["rewrite"] = "rewrite"
    """Text in, other text out."""
    smoothing: float = Field(0.1, ge=0, lt=1)
    """Label smoothing: this much probability is spread evenly over the vocabulary."""
    bleu: Literal["13a", "intl", "char", "none", "zh", "ja-mecab", "ko-mecab"] = "13a"
    """sacrebleu's tokenisation."""
    forcing: float = Field(1.0, ge=0, le=1)
    """Probability that a decoder in training hears the true word before, and not its own."""
    forcing_end: float | None = Field(None, ge=0, le=1)
    """Scheduled sampling: where that probability goes."""
    forcing_steps: int = Field(10_000, ge=1)
    """Batches until it is there."""
    forcing_decay: Literal["linear", "exponential", "sigmoid"] = "linear"
    free_running: bool = False
    """Also measures the perplexity of a decoder that hears itself."""
    reinforce: float = Field(1.0, ge=0)
    """Weight of the choices' gradient where attention is hard."""
    entropy: float = Field(0.01, ge=0)
    """Reward for choices that stay open."""


class TrainConfig(Config):
    """The loop."""

    steps: int = Field(10_000, ge=1)
    """Updates."""
    tokens: int = Field(4096, ge=8)
    """Batch size: rows × longest side, in tokens, per process and micro-batch."""
    accumulate: int = Field(1, ge=1)
    """Micro-batches to one update; exact: gradients are those of the one big batch."""
    rate: float = Field(1e-3, gt=0)
    """Peak learning rate (with noam: a factor on the paper's formula)."""
    schedule: Literal["noam", "inverse_sqrt", "cosine", "linear", "constant"] = "inverse_sqrt"
    """How the learning rate goes after the warm-up."""
    warmup: int = Field(400, ge=0)
    """Steps in which the learning rate rises to its peak."""
    floor: float = Field(0.0, ge=0, le=1)
    """Where cosine and linear end, as a share of the peak."""
    betas: tuple[float, float] = (0.9, 0.98)
    """AdamW's two decay rates."""
    epsilon: float = Field(1e-8, gt=0)
    """AdamW's guard against division by nothing."""
    decay: float = Field(0.0, ge=0)
    """Decoupled weight decay, on matrices only."""
    clip: float = Field(1.0, ge=0)
    """Largest norm of the gradient; 0 leaves it as it is."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 autocast on a GPU, fp32 elsewhere."""
    compile: bool = False
    """Compile the model (minutes at the start); a resumed run then goes on equivalent, not bit for bit."""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto: a GPU where there is one."""
    threads: int = Field(0, ge=0)
    """CPU threads; 0 leaves the choice to PyTorch."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Of the first weights, the order of the data and dropout."""
    deterministic: bool = False
    """Bit-for-bit repeatable on a GPU, at some cost (a CPU always is)."""
    log_every: int = Field(50, ge=1)
    """Steps to one line of metrics.jsonl."""
    evaluate_every: int = Field(1000, ge=0)
    """Steps between evaluations by decoding; 0: only at the end."""
    save_every: int = Field(1000, ge=1)
    """Steps between checkpoints."""
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
    """When loss or gradient is no number: stop, leave the batch out, or go back to a checkpoint and past the batch."""
    stop_after: float = Field(0.0, ge=0)
    """Save and leave after this many minutes; 0: never."""
    tensorboard: bool = False
    """Write TensorBoard files too."""


class DecodeConfig(Config):
    """How an answer is searched for. A beam of 1 is greedy; `sample` draws instead."""

    beam: int = Field(4, ge=1, le=1024)
    """Hypotheses kept at each step."""
    expand: int | None = Field(None, ge=1, le=4096)
    """Continuations tried of each hypothesis; as many as the beam when left out."""
    nbest: int = Field(1, ge=1, le=1024)
    """Answers to give, the best first."""
    penalty: Literal["wu", "average", "none"] = "wu"
    """What a log-probability is divided by: ((5 + length) / 6)^alpha, length^alpha, or nothing."""
    alpha: float = Field(0.6, ge=0, le=10)
    """Strength of the length penalty."""
    coverage: float = Field(0.0, ge=0, le=10)
    """Strength of the coverage penalty of Wu et al."""
    sample: bool = False
    """Draw each token instead of searching for the likeliest answer."""
    temperature: float = Field(1.0, gt=0, le=100)
    """Below 1 the likely becomes likelier, above 1 less so."""
    top_k: int = Field(0, ge=0)
    """Draw among the k likeliest only; 0: among all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Draw among the likeliest that together have this probability."""
    min_p: float = Field(0.0, ge=0, lt=1)
    """Draw among those at least this share as likely as the likeliest."""
    seed: int = Field(0, ge=0)
    """The same seed draws the same answer to the same input."""
    block_ngram: int = Field(0, ge=0, le=64)
    """No n-gram of this many tokens is said twice; 0: allowed."""
    shortest: int = Field(0, ge=0)
    """Fewest tokens of an answer, its end mark not counted."""
    longest: int = Field(0, ge=0)
    """Most tokens of an answer; 0: source length × ratio + extra."""
    ratio: float = Field(1.0, ge=0, le=100)
    """Tokens of an answer to a token of its source, at most."""
    extra: int = Field(50, ge=1, le=65_536)
    """Tokens of an answer beyond that."""

    @model_validator(mode="after")
    def _short_before_long(self) -> Self:
        if 0 < self.longest < self.shortest:
            raise ConfigError(f"shortest: {self.shortest} is more than longest = {self.longest}; write a smaller one")
        return self


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
