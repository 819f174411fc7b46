"""Imports point one way. What a package may import is a table that one can read, and whoever breaks it is named."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import regard

ROOT = Path(regard.__file__).parent
ANYTHING = {"*"}
EVERYBODY = {"errors", "device", "disk", "weights"}  # may be imported by all
BELOW_THE_PIPELINE = {
    "core",
    "data",
    "metrics",
    "config",
    "models",
    "decode",
    "tasks",
    "view",
    "cases",
    "laws",
    "prepare",
    "recipes",
}

# Each package or module, and what of ours it may import besides itself.
MAY: dict[str, set[str]] = {
    "errors": set(),
    "disk": set(),
    "weights": set(),
    "device": set(),
    "core": set(),
    "metrics": set(),
    "data": set(),
    "config": set(),
    "recipes": set(),
    "models": {"core", "config"},
    "decode": {"core.state", "core.autoregressive", "core.changes"},
    "tasks": {"core", "data", "decode", "metrics"},
    "training": {"config", "core.autoregressive", "core.block", "core.changes", "core.head", "tasks"},
    "view": {"core"},
    "cases": {"core"},
    "laws": {"cases", "core", "decode"},
    "prepare": {"config", "data", "metrics", "tasks"},
    "fast": {"core", "decode.captured", "decode.line", "models"},
    "interop": {"core", "config", "data", "fast", "models", "pipeline"},
    "pipeline": {*BELOW_THE_PIPELINE, "fast", "interop.hf"},  # which it opens foreign folders with
    "alignment": ANYTHING,
    "card": ANYTHING,
    "run": ANYTHING,
    "doctor": ANYTHING,
    "demo": ANYTHING,
    "reproduce": ANYTHING,
    "serve": ANYTHING,
    "cli": ANYTHING,
    "__main__": ANYTHING,
    "__init__": {"core", "pipeline", "run", "view"},  # the names that a user types, looked up when they are first used
}


def parts() -> dict[str, list[Path]]:
    """The files of each package and each single module."""
    found = {path.stem: [path] for path in ROOT.glob("*.py")}
    found |= {path.parent.name: sorted(path.parent.rglob("*.py")) for path in ROOT.glob("*/__init__.py")}
    return found


def imported(source: str, module: str) -> Iterator[str]:
    """The modules of ours that a source imports, without the leading `regard.`; nested and conditional imports too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            home = ".".join([*above, node.module or ""]).strip(".")
            of_package = node.module in (None, "regard")  # what is imported may itself be a module
            names = [f"{home}.{alias.name}" for alias in node.names] if of_package else [home]
        else:
            continue
        for name in names:
            if name == "regard" or name.startswith("regard."):
                yield name.removeprefix("regard").removeprefix(".") or "__init__"


def allowed(part: str, name: str) -> bool:
    home = name.split(".")[0]
    may = MAY[part]
    return (
        may == ANYTHING or home == part or home in EVERYBODY or any(name == m or name.startswith(f"{m}.") for m in may)
    )


def test_every_part_is_in_the_table() -> None:
    assert set(parts()) <= set(MAY), "say in MAY what the new part may import"


@pytest.mark.parametrize("part", MAY)
def test_imports_point_one_way(part: str) -> None:
    files = parts().get(part)
    if files is None:
        pytest.skip(f"there is no regard.{part}")
    for path in files:
        module = ".".join(("regard", *path.relative_to(ROOT).with_suffix("").parts))
        wrong = [name for name in imported(path.read_text("utf-8"), module) if not allowed(part, name)]
        assert not wrong, f"{module} imports {', '.join(wrong)}; {part} may import {sorted(MAY[part] | EVERYBODY)}"


def test_no_model_imports_another() -> None:
    """To read one system one opens one file, with core beside it."""
    for path in (ROOT / "models").glob("*.py"):
        names = imported(path.read_text("utf-8"), f"regard.models.{path.stem}")
        assert not [name for name in names if name.startswith("models")], path.name


def test_the_core_needs_torch_alone() -> None:
    for path in (ROOT / "core").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            foreign = {name.split(".")[0] for name in names} & {
                "numpy",
                "pydantic",
                "rich",
                "tokenizers",
                "safetensors",
            }
            assert not foreign, f"{path.name} imports {foreign}"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import regard.core.mask", ["core.mask"]),
        ("from regard.core.mask import Mask", ["core.mask"]),
        ("from regard import core, Mask", ["core", "Mask"]),
        ("from . import gpt", ["models.gpt"]),
        ("from .gpt import GPT", ["models.gpt"]),
        ("from ..core import mask", ["core"]),
        ("def f():\n    from regard.training import loop", ["training"]),
        ("if TYPE_CHECKING:\n    import regard", ["__init__"]),
        ("import regards\nfrom torch import nn", []),
    ],
)
def test_no_way_of_importing_is_overlooked(source: str, names: list[str]) -> None:
    assert list(imported(source, "regard.models.bert")) == names


def test_the_table_is_obeyed_to_the_letter() -> None:
    assert allowed("decode", "core.state")
    assert not allowed("decode", "core.attention")
    assert not allowed("decode", "core")
    assert not allowed("core", "config")
    assert not allowed("models", "decode.search")
    assert allowed("models", "errors")
    assert allowed("cli", "training.loop")
    assert not allowed("pipeline", "training.loop")
