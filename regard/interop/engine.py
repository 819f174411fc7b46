"""What every export to another engine shares: a folder that is whole and checked or not there, and what the check says.

A check reads random words of the vocabulary in several shapes, here and there, and then goes on with the words that are
likeliest here: as long as they are likeliest there too, both write the same.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from regard.data.tokenizer import Tokenizer
from regard.disk import to_disk
from regard.errors import ConfigError, RegardError
from regard.fast import prepare
from regard.models.bert import Bert
from regard.pipeline import Pipeline

FARTHEST = 1e-4  # that two engines may differ, as a share of the largest number; float32 gives about 1e-6
FORBIDDEN = -1e6  # a word that a bias puts below this is never said, and says nothing of the scale of the others
WAVES = 2048  # positions of an exported table, where the model's own have no end
LENGTHS = ((1,), (7, 4), (33, 2, 20))  # of the rows of each batch that is tried
ANSWER = 12  # most words that are written in the check

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Check:
    """How near an engine comes to the model that was exported."""

    engine: str
    difference: float
    """The largest between two numbers that should be equal."""
    scale: float
    """The largest of those numbers."""
    shapes: tuple[tuple[int, ...], ...]
    """That were tried, (batch, length)."""
    equal: int
    """Words that both find likeliest, …"""
    of: int
    """… of so many; none where nothing is written."""

    def __str__(self) -> str:
        tried = ", ".join("×".join(map(str, shape)) for shape in self.shapes)
        written = f"; {self.equal} of {self.of} greedy tokens are the same" if self.of else ""
        return f"{self.engine} differs by at most {self.difference:.1e} of {self.scale:.3g} (tried {tried}){written}"


@dataclass
class Comparison:
    """A check in the making."""

    difference: float = 0.0
    scale: float = 0.0
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    equal: int = 0
    of: int = 0

    def numbers(self, here: Tensor, there: Tensor) -> None:
        if here.shape != there.shape:
            raise RegardError(f"{list(there.shape)} came back where {list(here.shape)} was wanted; nothing was written")
        if here.numel():
            said = here[here > FORBIDDEN]
            self.scale = max(self.scale, float(said.abs().max()) if said.numel() else 0.0)
            apart = float((here - there).abs().max())
            self.difference = max(self.difference, apart if apart == apart else float("inf"))

    def tokens(self, here: Sequence[int], there: Sequence[int]) -> None:
        """Where one stopped earlier, what the other still said counts as different."""
        self.equal += sum(a == b for a, b in zip(here, there, strict=False))
        self.of += max(len(here), len(there))

    def check(self, engine: str) -> Check:
        found = Check(engine, self.difference, self.scale, tuple(self.shapes), self.equal, self.of)
        if self.difference > FARTHEST * self.scale:
            raise RegardError(f"{found}, but at most {FARTHEST:g} of it was wanted; nothing was written")
        return found


def check_vacant(folder: Path) -> None:
    try:
        folder.resolve(), folder.exists()
    except (OSError, ValueError, RuntimeError):  # too long, with a NUL or half a character, or a link in a circle
        raise ConfigError(f"{ascii(str(folder))[:80]}: no folder can be there; name another") from None
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: is there already; name a folder that is not, or remove it first")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Where to write what becomes `folder` once all went well; of what went wrong nothing is left."""
    check_vacant(folder)
    folder = folder.resolve()
    beside = folder.with_name(f".tmp-{folder.name}-{os.getpid()}")
    try:
        beside.mkdir(parents=True)
        yield beside
        for path in (*beside.iterdir(), beside):
            to_disk(path)
        beside.replace(folder)
        to_disk(folder.parent)
    except OSError as error:
        raise RegardError(f"{folder}: cannot be written: {error.strerror}; make room or name another folder") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def describe(folder: Path, pipeline: Pipeline, **more: Any) -> None:
    """The vocabularies, and `regard.json`: what whoever runs the engine must know besides."""
    pipeline.tokenizers.save(folder)
    recipe = pipeline.recipe
    told = {
        "system": recipe.system,
        "task": recipe.task.name,
        "labels": list(getattr(recipe.data, "labels", ())),
        "longest": getattr(pipeline.model, "longest", None),
        **more,
    }
    (folder / "regard.json").write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n", "utf-8")


def needed(module: str, extra: str) -> Any:
    """A package that only an export needs."""
    try:
        return import_module(module)
    except ImportError:
        raise RegardError(f"this export needs {module}; write pip install 'regard[{extra}]'") from None


def on_cpu(model: M) -> M:
    """A copy in float32, as it is exported and compared, whatever the arithmetic it was loaded for."""
    return prepare(deepcopy(model).cpu().float().eval())


def told(model: Bert, hidden: Tensor) -> dict[str, Tensor]:
    """What a BERT makes of each token, and what its head tells of them."""
    found, head = {"hidden": hidden}, model.config.head
    if head in ("pretrain", "masked"):
        found["logits"] = model.masked.logits(hidden)
    elif head != "none":
        found["logits"] = model.labels(hidden if head == "words" else model.summary(hidden))
    elif model.pooler is not None:
        found["summary"] = model.summary(hidden)
    if head == "pretrain":
        found["next"] = model.next(model.summary(hidden))
    return found


def answer(longest: int | None) -> int:
    """How many words are written in the check by a model that can read so many."""
    return min(ANSWER, max(1, (longest or WAVES) // 2))


def lengths(longest: int | None) -> list[tuple[int, ...]]:
    """Of the rows of each batch that is tried, with room for an answer."""
    room = max(1, (longest or WAVES) - answer(longest))
    return [tuple(min(length, room) for length in rows) for rows in LENGTHS]


def random_words(tokenizer: Tokenizer, rows: Sequence[int], dice: torch.Generator) -> list[list[int]]:
    """Rows of so many words each; marks are no words, and neither are numbers without a token."""
    words = [number for number in sorted(tokenizer.words()) if number not in tokenizer.special]
    if not words:
        raise ConfigError("the vocabulary has marks and no words, so that nothing can be checked; export a trained run")
    return [[words[i] for i in torch.randint(len(words), (length,), generator=dice)] for length in rows]
