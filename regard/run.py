"""A run is a folder: recipe, tokenizers, data, checkpoints, weights, model card. Start, go on with, or measure one."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from regard.card import model_card
from regard.config import Recipe, Split, make_recipe, merge, read_toml, write_toml
from regard.data.tokenizer import signatures
from regard.device import find_device
from regard.disk import write
from regard.errors import ConfigError, DataError, RegardError, writing
from regard.fast import quicken
from regard.interop.recipe import NOWHERE
from regard.models import build, schema
from regard.pipeline import Pipeline, load, read_run
from regard.pipeline.base import Progress as Tell
from regard.prepare import has, prepare
from regard.prepare.shared import begun, completed
from regard.recipes import find_recipe
from regard.tasks import Task
from regard.training import Run, loop, settle
from regard.training import start as start_run
from regard.training.log import board_writer, clock
from regard.weights import begin_with

Say = Callable[[str], None]
Report = dict[str, dict[str, Any]]

PATIENCE = 10.0  # seconds between plain lines about work that takes long


def train(recipe: str | Path | Recipe, out: str | Path | None = None, **settings: Any) -> Pipeline:
    """Trains a recipe by name, file or value: `regard.train("demo", "runs/short", train={"steps": 100})`."""
    if isinstance(recipe, Recipe):
        name, values = "run", recipe.model_dump(mode="json", exclude_none=True)
        values["model"] = recipe.model.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    else:
        name, values = Path(recipe).stem, read_toml(find_recipe(str(recipe)))
    folder = Path(out) if out is not None else Path("runs") / name
    start(make_recipe(merge(values, settings), schema), folder, Console(stderr=True))
    return load(folder)


def start(recipe: Recipe, folder: Path, console: Console) -> dict[str, float]:
    """A new run, to its end; returns the test metrics, where there is a test split."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"{folder} exists already; go on with it by: regard resume {folder}, or name another folder with --out"
        )
    recipe = _whole(recipe)
    find_device(recipe.train.device)
    if recipe.train.tensorboard:
        board_writer()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        with writing(folder), _nothing_left_of(folder):
            recipe, task = _prepare(recipe, folder, console)
        return _work(recipe, task, folder, console)


def resume(folder: Path, console: Console) -> dict[str, float]:
    """Goes on with a run as if nothing had happened."""
    recipe = read_run(folder)
    with _alone(folder):
        with writing(folder):
            recipe, task = _prepare(recipe, folder, console)
        return _work(recipe, task, folder, console)


def _whole(recipe: Recipe) -> Recipe:
    """A recipe with data of its own, that can be trained, with the settings of the model that it begins with."""
    if NOWHERE in recipe.data.train:
        what = f'data.train = "{NOWHERE}": the recipe is that of a run that was imported, and has no data of its own'
        raise ConfigError(f"{what}; name yours with --data.train FILE, and begin with the run by --train.begin RUN")
    if recipe.train.schedule == "plateau" and not has(recipe.data, "valid"):
        what = 'train.schedule = "plateau" looks at evaluations, but there is no validation split'
        raise ConfigError(f"{what}; name its files with --data.valid FILE")
    return completed(recipe, read_run(begun(recipe))) if recipe.train.begin else recipe


def _prepare(recipe: Recipe, folder: Path, console: Console) -> tuple[Recipe, Task]:
    """The recipe is there from the first moment, so that whatever is killed can be resumed."""
    write(folder / "recipe.toml", write_toml(recipe).encode())
    with _counting(console) as (say, count):
        recipe, task = prepare(recipe, folder, say, count)
    write(folder / "recipe.toml", write_toml(recipe).encode())
    return recipe, task


def _work(recipe: Recipe, task: Task, folder: Path, console: Console) -> dict[str, float]:
    say = _sayer(console)
    run = _begin(recipe, folder, say)
    size = sum(p.numel() for p in run.model.parameters())
    say(f"{recipe.system} with {size:,} parameters, on {run.device}; run folder {folder}")
    try:
        loop.train(run, task, recipe.train, say)
    except torch.OutOfMemoryError:
        tokens, more = recipe.train.tokens, 2 * recipe.train.accumulate
        raise RegardError(
            f"the GPU has too little memory for train.tokens = {tokens}; "
            f"the same training in smaller bites: --train.tokens {tokens // 2} --train.accumulate {more}"
        ) from None
    found = evaluate(folder, console, device=str(run.device)) if has(recipe.data, "test") else {}
    with writing(folder):
        write(folder / "README.md", model_card(recipe, folder, run, found).encode())
    return found


def _begin(recipe: Recipe, folder: Path, say: Say = lambda text: None) -> Run:
    """A model with the seed's weights, or those of the run to begin with; the loop takes up a checkpoint where there is
    one.
    """
    device = settle(recipe.train)
    model = build(recipe.system, recipe.model)  # type: ignore[arg-type]
    if recipe.train.begin and not recipe.train.fresh and not (folder / "checkpoints").exists():
        fresh = begin_with(begun(recipe) / "model.safetensors", model)
        say(f"begins with the weights of {recipe.train.begin}; fresh: {', '.join(fresh) or 'nothing'}")
    run = start_run(folder, model, recipe.train, device=device, dim=getattr(recipe.model, "dim", None))
    run.vocabulary = signatures(folder)
    quicken(run.model)
    return run


# ---- measuring


def evaluate(
    folder: Path,
    console: Console,
    *,
    split: Split = "test",
    files: Sequence[str] = (),
    device: str = "auto",
    arithmetic: str = "fp32",
    how: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """The task's metrics on a split of the run or on other files.

    evaluation.json is the run's own score: of its test split, decoded as its recipe says. Others are not written there.
    """
    pipeline = load(folder, device=device, arithmetic=arithmetic)
    if not files and not has(pipeline.recipe.data, split):
        other = next((name for name in ("valid", "test") if has(pipeline.recipe.data, name)), None)
        hint = f"write --split {other}, or name files" if other else "name files"
        raise DataError(f"{folder} has no {split} split; {hint} with --data")
    with _bar(console, f"evaluating on {split if not files else files[0]}") as tell:
        found = pipeline.measure(split, files, how or {}, say=_sayer(console), progress=tell)
    if split == "test" and not files and not how and arithmetic == "fp32":
        with writing(folder):
            write(folder / "evaluation.json", json.dumps(report(found), indent=1, ensure_ascii=False).encode())
    return found


def report(found: Mapping[str, float]) -> Report:
    """Measures with their definitions, for JSON."""
    return {name: {"value": float(v), "definition": getattr(v, "definition", "")} for name, v in found.items()}


def rehearse(recipe: Recipe, console: Console) -> None:
    """Data, model and a few steps in a scratch folder: parameters, memory, expected time."""
    recipe = _whole(recipe)
    find_device(recipe.train.device)
    say = _sayer(console)
    with TemporaryDirectory() as scratch:
        with _counting(console) as (begun, count):
            recipe, task = prepare(recipe, Path(scratch), begun, count)
        run = _begin(recipe, Path(scratch), say)
        typical, wanted = _few_steps(run, task, recipe)
        batch = task.batch("train", 0)
        size, steps = sum(p.numel() for p in run.model.parameters()), recipe.train.steps
        say(f"parameters    {size:,}")
        if (vocab := recipe.model.vocab) is not None:  # type: ignore[attr-defined]
            say(f"vocabulary    {vocab:,}")
        say(f"first batch   {_shapes(batch)}; {wanted:,} to predict a step")
        say(f"batches       {1 / task.epoch(1):,.0f} an epoch; {steps:,} steps are {task.epoch(steps):.1f} epochs")
        say(f"memory        {_peak(run.device) / 2**20:,.0f} MiB at the peak")
        say(f"time          {typical * 1e3:.0f} ms a step: about {clock(steps * typical)} without evaluations")


def _shapes(batch: Any) -> str:
    tables = {name: table.shape for name, table in vars(batch).items() if isinstance(table, torch.Tensor)}
    return ", ".join(f"{name} {' × '.join(map(str, shape))}" for name, shape in tables.items() if len(shape) > 1)


def _few_steps(run: Run, task: Task, recipe: Recipe) -> tuple[float, int]:
    """Seconds of a step, the median of a few, for the first one warms up; and what the first had to predict."""
    if recipe.train.compile:
        loop.compile_in_place(run.model)
    feed, times, counts = loop.Feed(run, task), [], []
    for _ in range(min(6, recipe.train.steps)):
        before = time.perf_counter()
        sums, _, _ = loop.gradients(run, task, recipe.train, feed)
        sums["norm"] = loop.scale(run, sums["count"], recipe.train.clip)
        counts.append(int(loop.read(sums)["count"]))
        loop.update(run, recipe.train)
        run.model.zero_grad()
        run.step += 1
        times.append(time.perf_counter() - before)
    return sorted(times)[len(times) // 2], counts[0]


def _peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource
    import sys

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# ---- what is said, and what is left when something fails


def _sayer(console: Console) -> Say:
    return lambda text: console.print(text, markup=False, soft_wrap=True)


@contextmanager
def _counting(console: Console) -> Iterator[tuple[Say, Callable[[int], None]]]:
    """Says what is begun and how far it is: in place on a terminal, else with a plain line now and then."""
    say, last = _sayer(console), time.monotonic()

    def count(done: int) -> None:
        nonlocal last
        status.update(f"{done:,} so far")
        if not console.is_terminal and time.monotonic() - last >= PATIENCE:
            say(f"{done:,} so far")
            last = time.monotonic()

    with console.status("getting ready") as status:
        yield say, count


@contextmanager
def _bar(console: Console, text: str) -> Iterator[Tell]:
    """A bar on a terminal; elsewhere a plain line now and then."""
    last = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal last
        progress.update(bar, completed=done, total=total)
        if not console.is_terminal and time.monotonic() - last >= PATIENCE:
            _sayer(console)(f"{text}: {done:,} of {total:,}")
            last = time.monotonic()

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(text, total=None)
        yield tell


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two trainings in one folder would spoil each other. The lock goes with the process, however it ends."""
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = f"{folder} is being trained by another process"
            raise RegardError(f"{what}; wait for it, or name another folder") from None
        yield
    finally:
        os.close(handle)


@contextmanager
def _nothing_left_of(folder: Path) -> Iterator[None]:
    """A run that cannot begin leaves no folder, so that the same command works once its cause is mended."""
    try:
        yield
    except (RegardError, OSError):
        shutil.rmtree(folder, ignore_errors=True)
        raise
