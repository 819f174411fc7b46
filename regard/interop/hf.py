"""Hugging Face folders, in and out.

    import_folder   config.json, safetensors, tokenizer  →  recipe, model, tokenizers
    write_run       those, as a run folder like any other
    export_folder   a run  →  config.json, model.safetensors, tokenizer

Import, then export, gives every number back that the model uses, bit for bit, under the name it has today.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import tokenizers
import torch
from tokenizers import models, pre_tokenizers
from torch import nn

from regard.config import ModelConfig, Recipe, write_toml
from regard.data.tokenizer import Marks, Tokenizer, Tokenizers, signatures
from regard.device import find_device
from regard.disk import write_through
from regard.errors import CheckpointError, ConfigError, RegardError, nearest
from regard.fast import prepare
from regard.interop import files, hub
from regard.interop.engine import new_folder
from regard.interop.family import (
    Family,
    Held,
    Settings,
    architecture_for,
    architecture_of,
    config_of,
    from_theirs,
    match,
    meta,
    settings_of,
    shadowed,
    to_theirs,
    unknown_keys,
)
from regard.interop.recipe import decoding_of, generation_of, labels_back, labels_of, recipe_of, token_ids
from regard.interop.tokens import read_tokenizers, write_tokenizers
from regard.models import build, schema
from regard.pipeline import Pipeline, load
from regard.weights import Tensors, encode, put_weights, save_weights, weights

FAMILIES = {
    "distilbert": "distilbert",
    "roberta": "roberta",
    "bert": "bert",
    "openai-gpt": "gpt1",
    "gpt2": "gpt2",
    "bart": "bart",
    "marian": "marian",
}  # their model_type, and our module


@dataclass(frozen=True)
class Imported:
    recipe: Recipe
    model: nn.Module
    tokenizers: Tokenizers
    unknown: tuple[str, ...]
    """Settings and tensors of the folder that were not looked at."""


# ---- in


def is_foreign(folder: Path) -> bool:
    """A Hugging Face folder, or a name at their hub."""
    return os.path.exists(folder / files.CONFIG) or hub.is_name(folder)


def find_folder(folder: str | Path) -> Path:
    """The folder of that name; where there is none, that of the hub's model."""
    folder = Path(folder)
    return hub.fetch(str(folder)) if hub.is_name(folder) else folder


def import_folder(folder: str | Path) -> Imported:
    """A model of somebody else's, as one of ours. Nothing of the folder is run, and nothing is written."""
    folder = find_folder(folder)
    try:
        return _import(folder)
    except RegardError as error:
        named = str(error).startswith(tuple(f"{folder}{sign}" for sign in ":/ "))
        raise type(error)(str(error) if named else f"{folder}: {error}") from None


def _import(folder: Path) -> Imported:
    config = files.read_config(folder)
    family = family_of(config)
    entries = files.read_entries(folder)
    said = architecture_of(family, config)
    task = family.architectures[said].task
    labels = labels_of(task, config)
    settings = settings_of(family, said, config, Held(entries))
    settings = {"labels": len(labels), **settings} if labels else settings
    model_config = _checked(family, settings)
    architecture = architecture_for(family, task, model_config)
    model, idle = _model(family, architecture, model_config, entries)
    held = read_tokenizers(folder, config) or _numbers_of(model_config, config)
    decode, ignored = decoding_of(folder, config, task, held.target.marks)
    recipe = recipe_of(family, architecture, model_config, labels, config, held, decode, folder, hub.name_of(folder))
    return Imported(recipe, model, held, (*unknown_keys(family, config), *ignored, *idle))


def load_folder(folder: str | Path, *, device: str = "auto", arithmetic: str = "fp32") -> Pipeline:
    """A foreign folder, ready to be asked, with no run written."""
    found = _askable(import_folder(folder))
    kind: type[Pipeline] = import_module(f"regard.pipeline.{found.recipe.task.name}").PIPELINE
    model = prepare(found.model.to(find_device(device)), arithmetic)
    return kind(found.recipe, model, found.tokenizers, Path(folder))


def _model(
    family: Family, architecture: str, config: ModelConfig, entries: Mapping[str, files.Entry]
) -> tuple[nn.Module, list[str]]:
    """The model with its weights, and the tensors that it has no use for."""
    prefix = family.prefix if any(name.startswith(family.prefix) for name in entries) else ""
    rows, twins = family.rows(architecture, config, prefix), family.twins(config, prefix)
    shapes = to_theirs(rows, weights(meta(lambda: build(family.system, config))))
    found, idle = match(family, twins, entries, shapes)
    told = files.load(entries, {*found.values(), *(twins.keys() & entries.keys())})
    _check_twins(twins, found, told)
    model = build(family.system, config)
    theirs = {now: told[name] for now, name in found.items()}
    ours = from_theirs(rows, theirs)
    put_weights(model, ours)
    return model.eval(), [*idle, *shadowed(rows, theirs, ours)]


def _checked(family: Family, settings: Settings) -> ModelConfig:
    """Within our bounds; a complaint names their setting."""
    try:
        return schema(family.system)(**settings)
    except ConfigError as error:
        ours, _, what = str(error).partition(":")
        names = [theirs for theirs, key in family.keys.items() if key.ours == ours]
        raise ConfigError(f"{names[0] if names else ours}:{what}") from None


def family_of(config: Settings) -> Family:
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        known = nearest(str(kind)[:80], FAMILIES)
        raise ConfigError(f"model_type: no family {files.shown(kind)} is known; {known}")
    return family_named(kind)


def family_named(kind: str) -> Family:
    family: Family = import_module(f"regard.interop.{FAMILIES[kind]}").FAMILY
    return family


def write_run(imported: Imported, folder: str | Path) -> None:
    """As a run folder, whole or not at all: it can be asked, measured, looked at, and begun with."""
    imported = _askable(imported)
    with new_folder(Path(folder)) as place:
        write_through(place / "recipe.toml", write_toml(imported.recipe).encode())
        imported.tokenizers.save(place)
        save_weights(place / "model.safetensors", imported.model, signatures(place))


def _check_twins(twins: Mapping[str, str], found: Mapping[str, str], told: Tensors) -> None:
    """What is said to be one matrix must be one."""
    for twin, name in twins.items():
        if twin in told and not torch.equal(told[twin], told[found[name]]):
            what = f"{twin!r} and {name!r} differ, but config.json says that they are tied"
            raise CheckpointError(f'{what}; write "tie_word_embeddings": false where that is meant')


# ---- out


def export_folder(run: str | Path | Pipeline | Imported, folder: str | Path) -> None:
    """A run as a Hugging Face folder, whole or not at all. What the family cannot say is refused in a sentence."""
    run = load(run, device="cpu") if isinstance(run, str | Path) else run
    recipe, model_config = run.recipe, run.recipe.model
    assert isinstance(model_config, ModelConfig)
    family = family_for(recipe)
    architecture = architecture_for(family, recipe.task.name, model_config)
    config = {
        **token_ids(family, run.tokenizers, model_config),
        **config_of(family, architecture, model_config),
        **labels_back(recipe),
    }
    tensors = exported(family, architecture, model_config, weights(run.model))
    generation = generation_of(recipe, family, config, run.tokenizers.target.marks)
    with new_folder(Path(folder)) as place:
        if not _numbered(run.tokenizers):
            write_tokenizers(run.tokenizers, place, family.kind)
        _write_json(place / files.CONFIG, {**config, "dtype": "float32"})
        if generation:
            _write_json(place / files.GENERATION, generation)
        write_through(place / files.WEIGHTS, encode(tensors))


def family_for(recipe: Recipe) -> Family:
    for family in map(family_named, FAMILIES):
        if family.system == recipe.system and family.kin(recipe.model):
            return family
    raise ConfigError(f"a {recipe.system} has no family at Hugging Face; export a bert, a gpt or a transformer")


def exported(family: Family, architecture: str, config: ModelConfig, ours: Tensors) -> Tensors:
    """The weights under their names. A bias that our model has not is a bias of zero there."""
    known = type(config).model_fields
    full = type(config)(**{**config.model_dump(), **({"bias": True} if "bias" in known else {})})
    shapes = weights(meta(lambda: build(family.system, full)))
    filled = {name: ours.get(name, torch.zeros(shape.shape)).cpu().float() for name, shape in shapes.items()}
    prefix = "" if family.architectures[architecture].bare else family.prefix
    return {**family.tables(full), **to_theirs(family.rows(architecture, full, prefix), filled)}


def _write_json(path: Path, values: Settings) -> None:
    write_through(path, (json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode())


# ---- a model without a vocabulary

NO_TEXT = "<none>"
MOST_NUMBERS = 300_000  # tokens that are called by numbers: more take the better part of a minute


def _numbers_of(model: ModelConfig, config: Settings) -> Tokenizers:
    target = numbers(model.vocab, config)  # type: ignore[attr-defined]
    own: int | None = getattr(model, "source_vocab", None)
    return Tokenizers(target if own is None else numbers(own, config), target)


def numbers(vocab: int, config: Settings) -> Tokenizer:
    """For a model that came without a tokenizer: its tokens are called 0, 1, 2 and so on, with spaces between them.

    An end that config.json does not name stands outside of the model's vocabulary: it is neither read nor written.
    Other marks are the end where they are not named, and what is no token is left out.
    """
    if vocab > MOST_NUMBERS:
        what = f"no vocabulary is there, and the model has {vocab:,} tokens, which are too many to be called by numbers"
        raise CheckpointError(f"{what}; put tokenizer.json beside config.json")

    def mark(*keys: str, otherwise: int) -> int:
        said = (config.get(key) for key in keys)
        return next((number for number in said if type(number) is int and 0 <= number < vocab), otherwise)

    end = mark("eos_token_id", otherwise=vocab)
    begin = mark("decoder_start_token_id", "bos_token_id", otherwise=end)
    marks = Marks(pad=mark("pad_token_id", otherwise=end), begin=begin, end=end, unknown=None)
    outside = {NO_TEXT: vocab} if vocab in marks.all else {}
    words = {str(i): i for i in range(vocab)} | outside
    inner = tokenizers.Tokenizer(models.WordLevel(words, unk_token=NO_TEXT if outside else str(end)))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens([*outside])
    return Tokenizer(inner, marks)


def _askable(imported: Imported) -> Imported:
    """What writes goes on with numbers; what reads wants a text between marks, and only its vocabulary knows them."""
    if imported.recipe.system == "bert" and _numbered(imported.tokenizers):
        what = f"{imported.recipe.title}: no vocabulary is there, and without its marks no text can be asked about"
        raise CheckpointError(f"{what}; put tokenizer.json or vocab.txt beside config.json")
    return imported


def _numbered(held: Tokenizers) -> bool:
    return all(name in (str(i), NO_TEXT) for name, i in held.target.inner.get_vocab().items())
