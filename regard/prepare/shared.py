"""What getting ready has in common: tokenizers that are there, begun with or trained, and sizes that come of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from regard.config import DataConfig, Recipe, Split
from regard.config.data import SeriesData, StreamData
from regard.config.task import SYSTEMS
from regard.data.tokenizer import SOURCE_FILE, TARGET_FILE, Tokenizer, Tokenizers, check_signatures
from regard.errors import CheckpointError, ConfigError, nearest
from regard.weights import told

Say = Callable[[str], None]
Count = Callable[[int], None]
HELD: tuple[Split, ...] = ("valid", "test")
DECIDED = {"vocab", "source_vocab", "inputs", "head", "labels"}  # of a model's settings: by the data and the task


def has(data: DataConfig, split: str) -> bool:
    """Whether there is such a split: made, of files, or a share of the training data."""
    share = isinstance(data, StreamData | SeriesData) and split == "valid" and data.held > 0
    return share or getattr(data, "made", None) is not None or bool(getattr(data, split))


def tokenizers_of(
    recipe: Recipe, folder: Path, say: Say, learn: Callable[[], Tokenizers], marks: Sequence[str] = ()
) -> Tokenizers:
    """Those of the folder, else those of the run to begin with, else newly learnt; the folder has them from now on.

    `marks` are those that the task needs; a tokenizer that is begun with gets what it lacks.
    """
    wanted = [TARGET_FILE] if recipe.tokens.joint else [TARGET_FILE, SOURCE_FILE]
    if all((folder / name).exists() for name in wanted):
        return _learnt_with(folder)
    if recipe.train.begin:
        found = _learnt_with(begun(recipe))
        found.target.add(marks)
    else:
        say("training the tokenizer")
        found = learn()
    found.save(folder)
    return Tokenizers.load(folder)


def _learnt_with(folder: Path) -> Tokenizers:
    """Those of a run, and of its weights where it has any."""
    found = Tokenizers.load(folder)
    check_signatures(folder, told(folder / "model.safetensors"))
    return found


def one_tokenizer(
    recipe: Recipe, folder: Path, say: Say, texts: Callable[[], Iterable[str]], marks: Sequence[str] = ()
) -> Tokenizer:
    """For a task with one vocabulary."""
    if not recipe.tokens.joint:
        raise ConfigError("tokens.joint: this task has one kind of text, and so one vocabulary; leave it out")
    if recipe.tokens.continuation:
        raise ConfigError("tokens.continuation: only rewriting puts split words together again; leave it out")
    settings = {key: value for key, value in recipe.tokens.model_dump().items() if key != "joint"}

    def learn() -> Tokenizers:
        both = Tokenizer.train(texts(), **settings, marks=marks)
        return Tokenizers(both, both)

    return tokenizers_of(recipe, folder, say, learn, marks).target


def begun(recipe: Recipe) -> Path:
    """The run to begin with."""
    folder = Path(recipe.train.begin)
    if (folder / "config.json").exists() and not (folder / "recipe.toml").exists():
        what = f"train.begin = {folder}: a folder of Hugging Face, not a run"
        raise CheckpointError(f"{what}; make a run of it first: regard import {folder} RUN")
    if not (folder / "model.safetensors").exists():
        raise CheckpointError(
            f"train.begin = {recipe.train.begin}: no trained run is there; train it first, "
            "or write --train.begin '' to begin with nothing learnt"
        )
    return folder


def completed(recipe: Recipe, other: Recipe) -> Recipe:
    """The recipe of a run that begins with another: what its [model] leaves out is as it is there.

    A weight is what it is by the model around it: what [model] does say must be as it is there, or all begins fresh.
    """
    run, fresh = recipe.train.begin, recipe.train.fresh
    if recipe.system != other.system:
        if fresh:
            return recipe
        what, able = f'system = "{recipe.system}": train.begin = {run} is a {other.system}', SYSTEMS[recipe.task.name]
        mend = f'write system = "{other.system}"' if other.system in able else f"begin with a {' or '.join(able)}"
        raise ConfigError(f"{what}; {mend}, or write train.fresh = true for its tokenizer alone")
    there = {name: value for name, value in other.model.model_dump().items() if name not in DECIDED}
    if there.get("pooler") == "none":  # it has not learnt to sum up, which the task may ask for
        del there["pooler"]
    said = {name: getattr(recipe.model, name) for name in recipe.model.model_fields_set}
    for name in sorted(said.keys() & there.keys()):
        here, was = said[name], _meant(name, other)
        if here not in (was, there[name]) and not fresh and not _free(name, other):
            what = f"model.{name} = {json.dumps(here)}: train.begin = {run} has {json.dumps(was)}"
            raise ConfigError(f"{what}; leave it out, or write train.fresh = true for its tokenizer alone")
    return recipe.model_copy(update={"model": type(recipe.model)(**{**there, **said})})


def _meant(name: str, recipe: Recipe) -> Any:
    """A setting of a model, or what stands for it where it was left out."""
    model: Any = recipe.model
    if getattr(model, name) is None and name in ("hidden", "decoder_layers"):
        return 4 * model.dim if name == "hidden" else model.layers
    return getattr(model, name)


def _free(name: str, other: Recipe) -> bool:
    """Whether a setting may change under weights that were learnt: what only training asks, or what is cut or added."""
    if name == "pooler":
        return not other.model.summarises  # type: ignore[attr-defined]
    rows = name == "context" and isinstance(getattr(other.model, name), int)
    return rows or name == "scaled_init" or name.endswith("dropout")


def with_model(recipe: Recipe, **sizes: Any) -> Recipe:
    """The recipe with settings of the model that the data or the task decide."""
    model = type(recipe.model)(**{**recipe.model.model_dump(), **sizes})
    return recipe.model_copy(update={"model": model})


def with_head(recipe: Recipe, head: str, vocab: int, labels: int | None = None) -> Recipe:
    """The recipe of a system that is asked something: an encoder gets the head that the task needs."""
    known = type(recipe.model).model_fields
    if "head" not in known:
        return with_model(recipe, vocab=vocab, labels=labels)
    if recipe.model.head not in ("none", head):  # type: ignore[attr-defined]
        found = recipe.model.head  # type: ignore[attr-defined]
        raise ConfigError(f'model.head = "{found}": the task {recipe.task.name!r} needs "{head}"; leave it out')
    return with_model(recipe, vocab=vocab, head=head, labels=labels)


def check_metric(recipe: Recipe, measured: Sequence[str]) -> None:
    """What would only be missed hours later, at the first evaluation."""
    if recipe.train.metric not in measured:
        raise ConfigError(
            f"train.metric: the task measures no {recipe.train.metric!r}; {nearest(recipe.train.metric, measured)}"
        )


def check_context(recipe: Recipe) -> None:
    context = getattr(recipe.model, "longest", None)
    if context is not None and context < recipe.data.longest:
        name = next(name for name in ("context", "positions", "rows") if getattr(recipe.model, name, None) == context)
        raise ConfigError(
            f"model.{name} = {context} is shorter than data.longest = {recipe.data.longest}; "
            f"write data.longest = {context}, or model.{name} = {recipe.data.longest}"
        )
