"""A run is a folder: recipe, tokenizers, data, checkpoints, weights, model card. Start, go on with, or measure one."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from regard.config import DataConfig, Recipe, Split, make_recipe, merge, read_toml, write_toml
from regard.errors import ConfigError, DataError
from regard.models import build, schema
from regard.pipeline import Pipeline, load, read_run
from regard.prepare import bleu_of, has, hold, prepare
from regard.recipes import find_recipe
from regard.tasks.rewrite import Progress as Tell
from regard.tasks.rewrite import measure
from regard.training import loop
from regard.training.run import Run, settle
from regard.training.run import start as start_run
from regard.weights import write


def train(recipe: str | Path | Recipe, out: str | Path | None = None, **settings: Any) -> Pipeline:
    """Trains a recipe by name, file or value: `regard.train("demo", "runs/short", train={"steps": 100})`."""
    name = "run" if isinstance(recipe, Recipe) else Path(recipe).stem
    values = (
        recipe.model_dump(mode="json", exclude_none=True)
        if isinstance(recipe, Recipe)
        else read_toml(find_recipe(str(recipe)))
    )
    folder = Path(out) if out is not None else Path("runs") / name
    start(make_recipe(merge(values, settings), schema), folder, Console(stderr=True))
    return load(folder)


def start(recipe: Recipe, folder: Path, console: Console) -> dict[str, float]:
    """A new run, to its end; returns the test metrics, where there is a test split."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"{folder} exists already; go on with it by: regard resume {folder}, or name another folder with --out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    _write_recipe(recipe, folder)
    return _work(recipe, folder, console)


def resume(folder: Path, console: Console) -> dict[str, float]:
    """Goes on with a run as if nothing had happened."""
    return _work(read_run(folder), folder, console)


def _work(recipe: Recipe, folder: Path, console: Console) -> dict[str, float]:
    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    recipe, task = prepare(recipe, folder, say)
    _write_recipe(recipe, folder)
    loop.train(_begin(recipe, folder, say), task, recipe.train, say)
    found = {}
    if "test" in task.held:
        found = evaluate(folder, console)
    write(folder / "README.md", model_card(recipe, folder, found).encode())
    return found


def _begin(recipe: Recipe, folder: Path, say: Any) -> Run:
    """A fresh model with the seed's weights; the loop takes up a checkpoint where there is one."""
    device = settle(recipe.train)
    model = build(recipe.system, recipe.model)  # type: ignore[arg-type]
    size = sum(p.numel() for p in model.parameters())
    say(f"{recipe.system} with {size:,} parameters, on {device}; run folder {folder}")
    return start_run(folder, model, recipe.train, device=device, dim=getattr(recipe.model, "dim", None))


def _write_recipe(recipe: Recipe, folder: Path) -> None:
    write(folder / "recipe.toml", write_toml(recipe).encode())


def evaluate(
    folder: Path,
    console: Console,
    *,
    split: Split = "test",
    files: Sequence[str] = (),
    device: str = "auto",
    how: dict[str, Any] | None = None,
) -> dict[str, float]:
    """The task's metrics on a split of the run, or on other files. Also written to evaluation.json."""
    pipeline = load(folder, device=device)
    if not files and not has(pipeline.recipe.data, split):
        raise DataError(f"{folder} has no {split} split; name files with --data SOURCE TARGET")
    recipe = pipeline.recipe.model_copy(update={"decode": pipeline.decoding(**(how or {}))})
    with TemporaryDirectory() as scratch, _bar(console, f"evaluating on {split if not files else files[0]}") as tell:
        if files:
            data = DataConfig(**{**recipe.data.model_dump(), "made": None, "train": files, "test": files})
            recipe, split = recipe.model_copy(update={"data": data}), "test"
        held = hold(recipe, Path(scratch) if files else folder, split, pipeline.tokenizers)
        found = measure(
            pipeline.model,
            pipeline.tokenizers,
            held,
            recipe.decode,
            bleu_of(recipe),
            tokens=recipe.train.tokens,
            progress=tell,
        )
    report = {
        name: {"value": float(value), "definition": getattr(value, "definition", "")} for name, value in found.items()
    }
    write(folder / "evaluation.json", json.dumps(report, indent=1, ensure_ascii=False).encode())
    return found


def rehearse(recipe: Recipe, console: Console) -> None:
    """Data, model and a few steps in a scratch folder: parameters, memory, expected time."""
    steps = min(6, recipe.train.steps)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        recipe, task = prepare(recipe, folder, console.print)
        run = _begin(recipe, folder, lambda text: None)
        short = recipe.train.model_copy(update={"log_every": 10**9})
        feed = loop.Feed(run, task)
        times = []
        for _ in range(steps):
            before = time.perf_counter()
            loop.gradients(run, task, short, feed)
            for optimizer in run.optimizers.values():
                optimizer.step()
            run.model.zero_grad()
            times.append(time.perf_counter() - before)
            run.step += 1
        batch = task.batch("train", 0)
    size = sum(p.numel() for p in run.model.parameters())
    console.print(f"parameters    {size:,}")
    console.print(f"vocabulary    {recipe.model.vocab:,}")  # type: ignore[attr-defined]
    console.print(
        f"first batch   {batch.source.shape[0]} rows, {batch.source.shape[1]} × {batch.target.shape[1]} tokens, "
        f"{batch.tokens:,} to predict"
    )
    console.print(
        f"batches       {len(task.batches):,} an epoch; "
        f"{recipe.train.steps:,} steps are {task.epoch(recipe.train.steps):.1f} epochs"
    )
    console.print(
        f"memory        {_peak() / 2**20:,.0f} MiB at the peak, of which weights, "
        f"gradients and optimizer {16 * size / 2**20:,.0f} MiB"
    )
    typical = sorted(times)[len(times) // 2]
    console.print(
        f"time          {typical * 1e3:.0f} ms a step: about {recipe.train.steps * typical / 60:.1f} minutes "
        "without evaluations"
    )


def _peak() -> int:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1024 if sys.platform != "darwin" else 1)


@contextmanager
def _bar(console: Console, text: str) -> Iterator[Tell]:
    columns = (TextColumn(text), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def model_card(recipe: Recipe, folder: Path, found: dict[str, float]) -> str:
    """README.md of a run: what it is, what it was made of, what it can do."""
    lines = [f"# {recipe.title or folder.name}", "", f"A {recipe.system} trained by Regard."]
    lines += ["", "    " + (f"regard train {folder}/recipe.toml --out ANOTHER"), ""]
    data = (
        f"made: {recipe.data.made}, {' to '.join(recipe.data.languages)}"
        if recipe.data.made
        else ", ".join(recipe.data.train)
    )
    lines += [f"Data: {data}.", ""]
    if found:
        lines += ["| measure | test | definition |", "|---|---|---|"]
        lines += [f"| {name} | {value:.4f} | {getattr(value, 'definition', '')} |" for name, value in found.items()]
        lines += [""]
    lines += [
        f"Ask it with `regard predict {folder.name} TEXT`, look into it with `regard look {folder.name} TEXT`.",
        "",
    ]
    return "\n".join(lines)
