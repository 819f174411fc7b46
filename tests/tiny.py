"""A run so small that every test can have one: a spoken task, a Transformer of one layer, a few seconds."""

from __future__ import annotations

import atexit
import copy
import hashlib
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import tomlkit
from rich.console import Console

from regard import run
from regard.config import make_recipe, merge
from regard.data.spoken import spoken
from regard.models import schema

RECIPE: dict[str, Any] = {
    "system": "transformer",
    "title": "A few phrases",
    "data": {"made": "spoken", "count": 300, "held": 24},
    "tokens": {"size": 300, "joint": False},
    "model": {"dim": 32, "heads": 2, "layers": 1, "hidden": 64, "dropout": 0.1, "norm": "pre", "tied": "target"},
    "train": {
        "steps": 20, "tokens": 512, "rate": 0.01, "schedule": "cosine", "warmup": 5,
        "evaluate_every": 0, "save_every": 5, "log_every": 10, "threads": 1,
    },
    "decode": {"beam": 1, "longest": 24},
}  # fmt: skip


def recipe(**changes: Any) -> dict[str, Any]:
    return merge(copy.deepcopy(RECIPE), changes)  # whoever changes what he got changes it for nobody else


def from_files(*train: Path, **changes: Any) -> dict[str, Any]:
    """The same on files, with no other split unless it is named."""
    data = {"train": [str(path) for path in train], **changes.pop("data", {})}
    return {**recipe(**changes), "data": data}


def write_recipe(path: Path, values: dict[str, Any]) -> Path:
    path.write_text(tomlkit.dumps(values), "utf-8")
    return path


def train(folder: Path, values: dict[str, Any] = RECIPE) -> Path:
    run.start(make_recipe(values, schema), folder, Console(quiet=True))
    return folder


@cache
def trained() -> Path:
    """One run for all tests of a process; it is only ever read."""
    home = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    longer = {"steps": 250, "save_every": 250, "tokens": 1024}
    return train(home / "tiny", recipe(data={"count": 1500}, train=longer))


def pairs(count: int = 200) -> list[tuple[str, str]]:
    return [(source, target) for _, source, target in spoken(("en", "de"), "train", count)]


def write_pairs(folder: Path, lines: list[tuple[str, str]]) -> tuple[Path, Path]:
    files = folder / "text.en", folder / "text.de"
    for path, side in zip(files, zip(*lines, strict=True), strict=True):
        path.write_text("\n".join(side) + "\n", "utf-8")
    return files


def weights_hash(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def command(*words: str | Path, **how: Any) -> subprocess.CompletedProcess[bytes]:
    """`regard …` in a process of its own."""
    return subprocess.run([sys.executable, "-m", "regard", *map(str, words)], capture_output=True, timeout=120, **how)
