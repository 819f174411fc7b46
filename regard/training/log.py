"""What a run says while it trains: metrics.jsonl, a progress bar or plain lines, TensorBoard when asked, env.json."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from regard.config import TrainConfig
from regard.disk import write
from regard.errors import ConfigError
from regard.training.checkpoint import Say

Line = dict[str, Any]


class Log:
    """Everything that is said, to everyone who listens."""

    def __init__(
        self,
        folder: Path,
        config: TrainConfig,
        say: Say = print,
        *,
        step: int = 0,
        evaluated: int = 0,
        console: Console | None = None,
    ) -> None:
        console = console or Console(stderr=True)
        self.say = say
        self.board = Board(folder / "tensorboard", step) if config.tensorboard else None
        self.journal = Journal(folder / "metrics.jsonl", say)
        self.journal.forget(step, evaluated)
        self.looks: Journal | None = None
        self.show: Show = Bar(step, config.steps, console) if console.is_terminal else Lines(config.steps, say)

    def step(self, step: int) -> None:
        self.show.step(step)

    def train(self, step: int, numbers: Mapping[str, float]) -> None:
        self._write({"step": step, **numbers}, "train", numbers)
        self.show.train(step, numbers)

    def evaluation(self, step: int, metrics: Mapping[str, float], *, best: bool) -> None:
        definitions = {name: value.definition for name, value in metrics.items() if hasattr(value, "definition")}
        line = {"step": step, "valid": {name: float(value) for name, value in metrics.items()}, "best": best}
        self._write(line | ({"definitions": definitions} if definitions else {}), "valid", metrics)
        self.show.evaluation(step, metrics, best)

    def look(self, step: int, found: Line) -> None:
        """looks.jsonl: where the model looked; what an earlier start wrote from this step on is dropped."""
        if self.looks is None:
            self.looks = Journal(self.journal.path.with_name("looks.jsonl"), self.say)
            self.looks.forget(step - 1, step - 1)
        self.looks.write({"step": step, **found})

    def bad(self, step: int, numbers: Mapping[str, float], file: str) -> None:
        self._write({"step": step, **numbers, "bad": file}, "train", numbers)

    def final(self, step: int, which: str, of: Sequence[int]) -> None:
        self.journal.write({"step": step, "final": which, "of": list(of)})
        self.say(f"model.safetensors: the {which} weights, of step {', '.join(map(str, of))}")

    def _write(self, line: Line, group: str, numbers: Mapping[str, float]) -> None:
        self.journal.write(line)
        if self.board is not None:
            self.board.write(line["step"], group, numbers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.show.close()
        self.journal.close()
        if self.looks is not None:
            self.looks.close()
        if self.board is not None:
            self.board.close()


class Journal:
    """metrics.jsonl: one JSON object a line, each step once and in order, whatever happened to the run."""

    def __init__(self, path: Path, say: Say = print) -> None:
        self.path = path
        self.say = say
        self.troubles: list[str] = []
        self.file = path.open("ab")

    def write(self, line: Line) -> None:
        """A full disk costs a line of the log, not the training."""
        try:
            self.file.write(json.dumps(plain(line), ensure_ascii=False, allow_nan=False).encode() + b"\n")
            self.file.flush()
        except OSError as error:
            self._lost(error)

    def sync(self) -> None:
        """Before a checkpoint, so that a checkpoint on disk has its lines on disk."""
        os.fsync(self.file.fileno())

    def forget(self, step: int, evaluated: int) -> None:
        """Drops what lies ahead of a run that goes on from this step, and a line cut short by a kill."""
        self.file.close()
        lines = [line for line in read_metrics(self.path) if not ahead(line, step, evaluated)]
        write(self.path, b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines))
        self.file = self.path.open("ab")

    def close(self) -> None:
        try:
            self.file.close()
        except OSError as error:
            self._lost(error)

    def _lost(self, error: OSError) -> None:
        if not self.troubles:
            self.troubles = [f"{self.path} could not be written: {error.strerror}"]
            self.say(f"warning: {self.troubles[0]}; training goes on")


def read_metrics(path: Path) -> list[Line]:
    """The lines of a metrics.jsonl, up to the first that is not whole."""
    lines: list[Line] = []
    for text in path.read_bytes().split(b"\n") if path.exists() else []:
        try:
            line = json.loads(text)
            line["step"]
        except (ValueError, TypeError, KeyError):
            break
        lines.append(line)
    return lines


def ahead(line: Line, step: int, evaluated: int) -> bool:
    if "final" in line:
        return bool(line["step"] >= step)
    return bool(line["step"] > (evaluated if "valid" in line else step))


def plain(value: Any) -> Any:
    """JSON has no NaN, and a NaN must not be hidden: it is written as "nan"."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class Show(Protocol):
    """Where a person watches."""

    def step(self, step: int) -> None: ...
    def train(self, step: int, numbers: Mapping[str, float]) -> None: ...
    def evaluation(self, step: int, metrics: Mapping[str, float], best: bool) -> None: ...
    def close(self) -> None: ...


class Lines:
    """No terminal: one line an interval."""

    def __init__(self, steps: int, say: Say) -> None:
        self.steps = steps
        self.say = say

    def step(self, step: int) -> None:
        """Single steps would be too many lines."""

    def train(self, step: int, numbers: Mapping[str, float]) -> None:
        left = clock((self.steps - step) * numbers["seconds_per_step"])
        self.say(f"step {step}/{self.steps}  {brief(numbers)}  left {left}")

    def evaluation(self, step: int, metrics: Mapping[str, float], best: bool) -> None:
        self.say(f"step {step}/{self.steps}  valid: {figures(metrics)}{'  (best)' if best else ''}")

    def close(self) -> None:
        """Nothing to take down."""


class Bar:
    """A terminal: one bar that stays in its place. What is printed meanwhile appears above it."""

    def __init__(self, step: int, steps: int, console: Console) -> None:
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[valid]}"),
        )
        self.progress = Progress(*columns, console=console)
        self.bar = self.progress.add_task("", completed=step, total=steps, numbers="", valid="")
        self.progress.start()

    def step(self, step: int) -> None:
        self.progress.update(self.bar, completed=step)

    def train(self, step: int, numbers: Mapping[str, float]) -> None:
        self.progress.update(self.bar, numbers=brief(numbers))

    def evaluation(self, step: int, metrics: Mapping[str, float], best: bool) -> None:
        self.progress.update(self.bar, valid=f"valid: {figures(metrics)}")

    def close(self) -> None:
        self.progress.stop()


def board_writer() -> Any:
    """TensorBoard's own, where it is installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        what = "train.tensorboard: TensorBoard is not installed"
        raise ConfigError(f"{what}; write pip install 'regard[tensorboard]'") from None
    return SummaryWriter


class Board:
    """TensorBoard's files; what an earlier start wrote after `step` is crossed out."""

    def __init__(self, folder: Path, step: int) -> None:
        self.writer = board_writer()(str(folder), purge_step=step + 1)

    def write(self, step: int, group: str, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(f"{group}/{name}", float(value), step)

    def close(self) -> None:
        self.writer.close()


def brief(numbers: Mapping[str, float]) -> str:
    return f"loss {numbers['loss']:.4f}  {numbers['tokens_per_second']:,.0f} tokens/s  rate {numbers['rate']:.2e}"


def figures(metrics: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def write_environment(folder: Path, config: TrainConfig, device: torch.device, say: Say) -> None:
    """env.json: what a run stands on. What differs from the last start is said, for it may change the last bits."""
    path = folder / "env.json"
    now = environment(config, device)
    try:
        before = json.loads(path.read_bytes())
    except (OSError, ValueError):
        before = now
    changed = [name for name in ("torch", "device", "cuda", "threads") if before.get(name) != now[name]]
    if changed:
        what = ", ".join(f"{name} {now[name]} instead of {before.get(name)}" for name in changed)
        say(f"{what}: the run goes on, equivalent but perhaps not bit for bit")
    write(path, json.dumps(now, indent=1).encode())


def environment(config: TrainConfig, device: torch.device) -> dict[str, Any]:
    cpu = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: sys.modules[name].__version__ for name in ("regard", "torch", "numpy", "safetensors")},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu,
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "threads": torch.get_num_threads(),
        "seed": config.seed,
    }
