"""Text → tokens → batch → model → answer: a trained run, ready to be asked. `regard.load` returns it.

base     what every pipeline can do
rewrite  and one module for each task
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

from regard.config import FORMAT, Recipe, make_recipe, read_toml
from regard.data.tokenizer import Tokenizer, Tokenizers, check_signatures
from regard.device import find_device
from regard.errors import CheckpointError, ConfigError
from regard.fast import prepare
from regard.models import build, schema
from regard.pipeline.base import Pipeline, Reply
from regard.weights import Corrupt, read_weights, told

__all__ = ["Pipeline", "Reply", "check_vocabulary", "load", "read_run", "vocabularies"]


def load(folder: str | Path, *, device: str = "auto", arithmetic: str = "fp32") -> Pipeline:
    """A trained run, a Hugging Face folder, or a model of their hub by its name, ready to be asked.

    `arithmetic="bf16"` converts the weights to 16 bits, for a GPU; `"int8"` multiplies in whole numbers, for a CPU:
    quicker, and not quite the same.
    """
    folder = Path(folder)
    if not os.path.exists(folder / "recipe.toml"):  # which is False, too, of what cannot be a name
        from regard.interop.hf import is_foreign, load_folder

        if is_foreign(folder):
            return load_folder(folder, device=device, arithmetic=arithmetic)
    recipe = read_run(folder)
    weights = folder / "model.safetensors"
    if not weights.exists():
        raise CheckpointError(f"{folder} has no model.safetensors yet; finish it with: regard resume {folder}")
    tokenizers = vocabularies(recipe, folder)
    model = build(recipe.system, recipe.model)  # type: ignore[arg-type]
    try:
        read_weights(weights, model)
    except Corrupt as error:
        kept = any((folder / "checkpoints").glob("step-*"))
        mend = f"make it again with: regard resume {folder}" if kept else "put a good copy back, or make the run anew"
        raise CheckpointError(f"{error}; {mend}") from None
    kind: type[Pipeline] = import_module(f"regard.pipeline.{recipe.task.name}").PIPELINE
    return kind(recipe, prepare(model.to(find_device(device)).eval(), arithmetic), tokenizers, folder)


def read_run(folder: Path) -> Recipe:
    """The recipe of a run folder, of a version that this Regard can read."""
    if not os.path.exists(folder / "recipe.toml"):
        if os.path.exists(folder / "config.json"):
            raise CheckpointError(f"{folder}: not a run folder; make one of it with: regard import {folder} RUN")
        what = "no such folder" if not os.path.exists(folder) else "not a run folder: it has no recipe.toml"
        raise CheckpointError(f"{folder}: {what}; runs are made by: regard train RECIPE --out {folder}")
    try:
        values = read_toml(folder / "recipe.toml")
        if "format" not in values:
            raise ConfigError("it does not tell the format of the run; put a good copy back, or train it again")
        if (found := values.get("format")) != FORMAT:
            raise CheckpointError(
                f"{folder} has run format {found}, but this Regard reads format {FORMAT}; "
                "use the Regard that wrote it, or train it again"
            )
        return make_recipe(values, schema)
    except ConfigError as error:
        raise CheckpointError(f"{folder} has a recipe.toml that cannot be used: {error}") from None


def vocabularies(recipe: Recipe, folder: Path) -> Tokenizers:
    """Those of the run, which fit its model. A run that reads numbers has none but the marks."""
    if recipe.model.vocab is None:  # type: ignore[attr-defined]
        nothing = Tokenizer.train([], kind="char", size=8)
        return Tokenizers(nothing, nothing)
    found = Tokenizers.load(folder)
    check_vocabulary(recipe, found)
    check_signatures(folder, told(folder / "model.safetensors"))
    return found


def check_vocabulary(recipe: Recipe, tokenizers: Tokenizers) -> None:
    """The files of a run fit together."""
    vocab: int = recipe.model.vocab  # type: ignore[attr-defined]
    source_vocab: int | None = getattr(recipe.model, "source_vocab", None)
    for side, wanted, tokenizer in (
        ("target", vocab, tokenizers.target),
        ("source", source_vocab or vocab, tokenizers.source),
    ):
        marks, beyond = tokenizer.marks, range(wanted, tokenizer.size)
        if wanted > tokenizer.size or not {marks.begin, marks.end, marks.pad}.issuperset(
            beyond
        ):  # which it never reads
            raise CheckpointError(
                f"the model was built for a {side} vocabulary of {wanted}, "
                f"but its tokenizer has {tokenizer.size} entries; "
                "they belong to different runs"
            )
