"""A recipe: one run, start to finish, as a TOML file with `--section.key value` laid over it.

One schema serves the file, the flags and the run folder. The schema of `[model]` belongs to the system that the recipe
names, and whoever knows the systems hands it in; those of `[data]` and `[task]` belong to the task.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal, Self

from pydantic import Field, SerializeAsAny, create_model, model_validator

from regard.config.base import Config
from regard.config.data import DataConfig
from regard.config.task import SYSTEMS, TASKS, RewriteTask, TaskConfig
from regard.errors import ConfigError, nearest

FORMAT = 1  # of a run folder; raised when an older Regard could no longer read it


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


class TrainConfig(Config):
    """The loop."""

    begin: str = ""
    """A run to begin with: its tokenizer, its [model] where nothing else is said, and all weights that fit."""
    fresh: bool = False
    """Of the run to begin with take the tokenizer alone: to see what its weights were worth."""
    steps: int = Field(10_000, ge=1)
    """Updates."""
    tokens: int = Field(4096, ge=8)
    """Batch size: rows × longest side, in tokens, per process and micro-batch."""
    rows: int = Field(0, ge=0)
    """Most examples of a batch; 0: as many as `tokens` hold."""
    accumulate: int = Field(1, ge=1)
    """Micro-batches to one update; exact: gradients are those of the one big batch."""
    rate: float = Field(1e-3, gt=0)
    """Peak learning rate (with noam: a factor on the paper's formula)."""
    schedule: Literal["noam", "inverse_sqrt", "cosine", "linear", "constant", "drops", "plateau"] = "inverse_sqrt"
    """How the learning rate goes after the warm-up. "drops" divides it at given steps; "plateau" when an evaluation is
    worse than each of the last few."""
    drops: tuple[int, ...] = ()
    """Steps after which the rate is divided by `factor`, for the schedule "drops"."""
    factor: float = Field(10.0, gt=1)
    """What "drops" and "plateau" divide the rate by."""
    recent: int = Field(3, ge=1)
    """How many evaluations "plateau" looks back on."""
    warmup: int = Field(400, ge=0)
    """Steps in which the learning rate rises to its peak."""
    floor: float = Field(0.0, ge=0, le=1)
    """Where cosine and linear end, as a share of the peak."""
    optimizer: Literal["adamw", "sgd", "rmsprop", "adagrad"] = "adamw"
    """What turns gradients into updates; with decay = 0, adamw is Adam."""
    betas: tuple[float, float] = (0.9, 0.98)
    """AdamW's two decay rates."""
    epsilon: float = Field(1e-8, gt=0)
    """AdamW's, RMSprop's and Adagrad's guard against division by nothing."""
    decay: float = Field(0.0, ge=0)
    """Weight decay, on matrices only; decoupled, but added to the gradient with rmsprop and adagrad."""
    clip: float = Field(1.0, ge=0)
    """Largest norm of the gradient; 0 leaves it as it is."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 autocast on a GPU, fp32 elsewhere."""
    compile: bool = False
    """Compile the model (minutes at the start); a resumed run then goes on equivalent, not bit for bit."""
    record: Literal["auto", "always", "never"] = "auto"
    """Record a step once for each shape of a batch and replay it, on a GPU: one call in place of a thousand, and the
    host a step ahead; auto: where it can be."""
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
    """What the best checkpoint is best in: losses, errors, perplexities and bits better lower, all others higher."""
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
    """Answers to give, the best first; a narrower beam is widened to as many. What reads alike is told once, unless it
    was drawn."""
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
    shortest: int = Field(0, ge=0, le=1_000_000)
    """Fewest tokens of an answer, its end mark not counted."""
    longest: int = Field(0, ge=0, le=1_000_000)
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


class GoingOnConfig(DecodeConfig):
    """Of a text that goes on, the likeliest next token is taken unless more is asked for: it can be shown at once."""

    beam: int = Field(1, ge=1, le=1024)
    """Hypotheses kept at each step."""


class Recipe(Config):
    """One run, start to finish. The head says what it is for and what came out."""

    format: Literal[1] = FORMAT  # type: ignore[assignment]
    title: str = ""
    command: str = ""
    machine: str = ""
    minutes: float = 0.0
    result: str = ""
    system: str
    data: SerializeAsAny[DataConfig]
    tokens: TokensConfig = TokensConfig()
    task: SerializeAsAny[TaskConfig] = RewriteTask()
    model: SerializeAsAny[Config]
    train: TrainConfig = TrainConfig()
    decode: DecodeConfig = DecodeConfig()


Schema = Callable[[str], type[Config]]


@cache
def recipe_schema(system: str, schema: Schema, task: str = "rewrite") -> type[Recipe]:
    """Recipe with the `[model]` section of one system, and the `[data]` and `[task]` sections of one task."""
    if task not in TASKS:
        raise ConfigError(f"task.name: no task {task!r}; {nearest(task, TASKS)}")
    data, settings = TASKS[task]
    decode = GoingOnConfig if task == "language" else DecodeConfig
    return create_model(
        "Recipe", __base__=Recipe, model=(schema(system), ...), data=(data, ...), task=(settings, settings()),
        decode=(decode, decode()),
    )  # fmt: skip


def make_recipe(values: dict[str, Any], schema: Schema) -> Recipe:
    if "system" not in values:
        raise ConfigError('system: missing; write for example system = "transformer" at the top of the recipe')
    system, task = str(values["system"]), task_of(values)
    whole = recipe_schema(system, schema, task)
    if system not in SYSTEMS[task]:
        able = " or ".join(f'"{name}"' for name in SYSTEMS[task])
        raise ConfigError(
            f"system: a {system} cannot do the task {task!r}; write system = {able}, or another task.name"
        )
    return whole(**{"model": {}, **values})


def task_of(values: dict[str, Any]) -> str:
    """The name of the task in a recipe's values; a section that is none is refused by the schema."""
    section = values.get("task", {})
    return str(section.get("name", "rewrite")) if isinstance(section, dict) else "rewrite"
