"""Pipelines with weights that nobody has trained: large enough that no two words are nearly as likely."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.config import make_recipe
from regard.data.tokenizer import Tokenizer, Tokenizers
from regard.models import build, schema
from regard.pipeline import Pipeline

TEXTS = ["a dog runs on the beach", "two hundred and five", "der hund läuft am strand", "zweihundertfünf"]
SMALL = {"dim": 24, "heads": 3, "hidden": 40, "layers": 2}
TASKS = {"bert": "masked", "transformer": "rewrite", "seq2seq": "rewrite"}  # the others write
DATA: dict[str, dict[str, Any]] = {
    "rewrite": {"made": "spoken"},
    "language": {"train": ["text.txt"]},
    "masked": {"train": ["text.txt"]},
    "classify": {"train": ["text.tsv"], "labels": ["no", "perhaps", "yes"]},
}


def made(system: str, task: str = "", *, joint: bool = True, **model: Any) -> Pipeline:
    task = task or TASKS.get(system, "language")
    target = Tokenizer.train(TEXTS, kind="char", size=80, marks=["mask"] if task == "masked" else [])
    source = target if joint else Tokenizer.train(TEXTS[:2], kind="char", size=80)
    sizes = {"vocab": target.size} | ({} if joint else {"source_vocab": source.size})
    small = {name: size for name, size in SMALL.items() if name in schema(system).model_fields}
    recipe = make_recipe(
        {"system": system, "task": {"name": task}, "data": DATA[task], "model": {**small, **sizes, **model}}, schema
    )
    torch.manual_seed(0)
    built = build(system, recipe.model).eval()  # type: ignore[arg-type]
    sharpen(built)
    kind: type[Pipeline] = import_module(f"regard.pipeline.{task}").PIPELINE
    return kind(recipe, built, Tokenizers(source, target), Path("made"))


@torch.no_grad()
def sharpen(model: nn.Module) -> None:
    """Nothing stays zero or one as it was at first, so that each number counts."""
    for weight in model.parameters():
        weight.add_(torch.randn_like(weight), alpha=0.3 if weight.ndim > 1 else 0.5)
