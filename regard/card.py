"""README.md of a run: what it is, what it was made of, what it can do, how to ask it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from regard import __version__
from regard.config import DataConfig, Recipe
from regard.config.data import PairsData
from regard.training import Run
from regard.training.log import clock


def model_card(recipe: Recipe, folder: Path, run: Run, found: Mapping[str, float]) -> str:
    """True of this run alone: nothing is taken over from what its recipe says of other runs."""
    size = sum(p.numel() for p in run.model.parameters())
    return "\n".join(
        [
            f"# {recipe.title or folder.name}",
            "",
            f"A {recipe.system} of {size:,} parameters, trained by Regard {__version__} for {run.step:,} steps "
            f"({run.tokens:,} target tokens, {clock(run.seconds)} on {run.device.type}).",
            "",
            *_data(recipe.data),
            "",
            *_measures(found, run),
            "## Use",
            "",
            *(f"    {shlex.join(['regard', *words])}" for words in _commands(folder)),
            "",
            "`recipe.toml` holds every setting, `metrics.jsonl` the course of the training, `env.json` the versions.",
            "",
        ]
    )


def _data(data: DataConfig) -> list[str]:
    if (made := getattr(data, "made", None)) is not None:
        languages = f", {' to '.join(data.languages)}" if isinstance(data, PairsData) and made == "spoken" else ""
        return [f"Data: made ({made}){languages}, {data.count:,} examples for training."]  # type: ignore[attr-defined]
    splits = {split: getattr(data, split) for split in ("train", "valid", "test")}
    return ["Data:", *(f"- {split}: {', '.join(files)}" for split, files in splits.items() if files)]


def _measures(found: Mapping[str, float], run: Run) -> list[str]:
    """Those of the test split, else those of the last validation."""
    split, measures = ("test", found) if found else ("validation", run.metrics)
    if not measures:
        return []
    told = {name: getattr(value, "definition", "").replace("|", r"\|") for name, value in measures.items()}
    rows = [f"| {name} | {value:.4f} | {told[name]} |" for name, value in measures.items()]
    return [f"| measure | {split} | definition |", "|---|---|---|", *rows, ""]


def _commands(folder: Path) -> list[list[str]]:
    return [
        ["predict", str(folder), "TEXT"],
        ["look", str(folder), "TEXT"],
        ["evaluate", str(folder)],
        ["train", str(folder / "recipe.toml"), "--out", f"{folder}-again"],
    ]
