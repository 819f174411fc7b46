"""Ratios in one run: engines take turns, medians are compared, and the table goes to results/ with the hardware."""

from __future__ import annotations

import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from regard.errors import DataError

RESULTS = Path(__file__).parent / "results"
LOAD = float(os.environ.get("BENCH_LOAD") or os.getloadavg()[0])  # before anything was raced; `make bench` tells it
BUSY = 0.5  # a load above which a table tells of it
MORE = {
    "cpu": " with VNNI",
    "cpu-zen4": " with VNNI, Zen 4",
    "cpu-vnni": " with VNNI, Intel",
    "cpu-amx": " with VNNI and AMX",
}  # than PyTorch tells of a kind of CPU
ZEN4 = "25"  # the family of that processor, as /proc/cpuinfo has it
LEAST, PATIENCE = 6, 20.0  # rounds that a race has at least; seconds after which no further one is begun


@dataclass
class Comparison:
    """Our engine against others at one piece of work. `work` is what a run does, in units of `unit`."""

    name: str
    unit: str
    ours: str
    work: dict[str, float]
    seconds: dict[str, list[float]] = field(default_factory=dict)
    machine: str = ""  # which was raced on; empty: this one
    chosen: dict[str, str] = field(default_factory=dict)  # how an engine was raced, where other ways were tried
    peaks: dict[str, int] = field(default_factory=dict)  # bytes that an engine held at most, where it was measured
    same: float | None = None  # share of the tokens in common with the peer, where they were counted

    def rate(self, engine: str) -> float:
        return self.work[engine] / statistics.median(self.seconds[engine])

    def ratio(self, peer: str) -> tuple[float, float, float]:
        """Ours over the peer's, with a 95 % interval: pairs of neighbouring runs, resampled."""
        share = self.work[self.ours] / self.work[peer]
        pairs = [
            share * theirs / ours for ours, theirs in zip(self.seconds[self.ours], self.seconds[peer], strict=True)
        ]
        dice = random.Random(0)
        medians = sorted(statistics.median(dice.choices(pairs, k=len(pairs))) for _ in range(2000))
        return statistics.median(pairs), medians[50], medians[-51]


def race(
    name: str,
    unit: str,
    engines: dict[str, Callable[[], float]],
    *,
    rounds: int = 7,
    warm: int = 2,
    patience: float = PATIENCE,
) -> Comparison:
    """Each engine does its work and returns how much it was; the first one is ours. They take turns in every round, of
    which there are fewer on a slow machine."""
    for _ in range(warm):
        work = {engine: run() for engine, run in engines.items()}
    found = Comparison(name, unit, next(iter(engines)), work, {engine: [] for engine in engines})
    begun = clock()
    for number in range(rounds):
        if number >= LEAST and clock() - begun > patience:
            break
        for engine, run in engines.items():
            before = clock()
            run()
            found.seconds[engine].append(clock() - before)
    return found


Told = Callable[[Sequence[Comparison]], str]


def refuse_others(asked: Sequence[str], known: Sequence[str]) -> None:
    """A word that is not known ends it in one sentence, before anything is raced or written."""
    if "--help" in asked:
        print((sys.modules["__main__"].__doc__ or "").strip())
        sys.exit()
    if unknown := [word for word in asked if word not in known]:
        instead = f"write {', '.join(known)}, or no word" if known else "no words are wanted"
        sys.exit(f"{', '.join(unknown)}: not known; {instead}")


def raced(main: Callable[..., None], *asked: Any) -> None:
    """Where its data is missing, a race says so in one sentence, and those behind it have their turn."""
    try:
        main(*asked)
    except DataError as error:
        print(f"not raced: {error}")


def clock() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def best_threads(run: Callable[[], Any]) -> int:
    """1 or all cores, whichever is quicker for this work."""
    took = {}
    for threads in {1, len_cores()}:
        torch.set_num_threads(threads)
        run()
        before = clock()
        run()
        took[threads] = clock() - before
    return min(took, key=lambda threads: took[threads])


def in_common(some: Sequence[Sequence[Any]], others: Sequence[Sequence[Any]]) -> float:
    """Which share of the tokens come before the first that differs."""
    shares = []
    for one, other in zip(some, others, strict=True):
        differs = [i for i, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]]
        shares.append((differs[0] if differs else len(one)) / len(one))
    return statistics.mean(shares)


def common_told(comparisons: Sequence[Comparison]) -> str:
    shares = (f"{c.name}: {c.same:.0%}" for c in comparisons if c.same is not None)
    return f"so many of their tokens come before the first that differs: {'; '.join(shares)}"


def threads_told(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def chromium() -> str | None:
    """Where the browser is that pages are looked at with."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def len_cores() -> int:
    return len(os.sched_getaffinity(0))


def report(stem: str, title: str, note: str | Told, comparisons: list[Comparison], known: Sequence[str] = ()) -> None:
    """Prints one table, and writes it as Markdown and JSON. Works that are `known`, and were not raced this time, keep
    their lines; a note may be made of all lines."""
    place, here = RESULTS / f"{stem}-{kind()}", machine()
    lines = {c.name: replace(c, machine=c.machine or here) for c in [*_before(place, known), *comparisons]}
    found = [lines[name] for name in (known or lines) if name in lines]
    note = note if isinstance(note, str) else note(found)
    notes = Notes([c.machine for c in found])
    text = "\n".join([f"# {title}", "", note, "", *_table(found, notes), "", *notes])
    print(text)
    RESULTS.mkdir(exist_ok=True)
    place.with_suffix(".md").write_text(text, "utf-8")
    rows = [
        {"work": c.name, "unit": c.unit, "amount": c.work, "seconds": c.seconds, "machine": c.machine,
         "chosen": c.chosen, "peaks": c.peaks, "same": c.same} for c in found
    ]  # fmt: skip
    place.with_suffix(".json").write_text(json.dumps({"title": title, "rows": rows}, indent=1), "utf-8")


def _before(place: Path, known: Sequence[str]) -> list[Comparison]:
    """What was written there of these works."""
    if not known or not place.with_suffix(".json").exists():
        return []
    rows = json.loads(place.with_suffix(".json").read_text("utf-8"))["rows"]
    found = [
        Comparison(
            row["work"], row["unit"], next(iter(row["amount"])), row["amount"], row["seconds"], row["machine"],
            row.get("chosen", {}), row.get("peaks", {}), row.get("same"),  # older tables do not tell
        ) for row in rows
    ]  # fmt: skip
    return [c for c in found if c.name in known]


class Notes:
    """Below a table, on which machine its lines were raced, and when; where they differ, numbers say which is whose."""

    def __init__(self, machines: Sequence[str]) -> None:
        self.machines = sorted({*machines})

    def of(self, machine: str) -> str:
        """Behind the name of a line."""
        return f" [{self.machines.index(machine) + 1}]" if len(self.machines) > 1 else ""

    def __iter__(self) -> Iterator[str]:
        for machine in self.machines:
            yield f"{self.of(machine)} {machine}\n".lstrip()


def _table(comparisons: Sequence[Comparison], notes: Notes) -> Iterator[str]:
    measured = any(c.peaks for c in comparisons)
    yield "| work | engine | median | ours against it (95 % interval) |" + " peak memory |" * measured
    yield "|---|---|---|---|" + "---|" * measured
    for c in comparisons:
        for engine in c.work:
            against = "" if engine == c.ours else "**{:.2f}×** ({:.2f}–{:.2f})".format(*c.ratio(engine))
            told = f"{engine} ({c.chosen[engine]})" if engine in c.chosen else engine
            peak = f" {c.peaks[engine] / 2**30:.1f} GiB |" if engine in c.peaks else " |"
            yield (
                f"| {c.name}{notes.of(c.machine)} | {told} | {c.rate(engine):,.0f} {c.unit} | {against} |"
                + peak * measured
            )


def kind() -> str:
    """Of machines, each of which has tables of its own: how wide a CPU's registers are, whether it multiplies bytes in
    one instruction, or a tile of them, and one whole register at a time or, from Zen 5 on, two, decides many a race."""
    if torch.cuda.is_available():
        return "gpu"
    capability = torch.backends.cpu.get_cpu_capability()
    whole = capability == "AVX512" and "vnni" in _of_processor("flags")
    if whole and "amx_int8" in _of_processor("flags"):
        return "cpu-amx"
    if whole and _of_processor("vendor_id") != "AuthenticAMD":
        return "cpu-vnni"
    if whole and _of_processor("cpu family") == ZEN4:
        return "cpu-zen4"
    return "cpu" if whole else f"cpu-{capability.lower().replace(' ', '-')}"


def machine() -> str:
    """What was raced on, and what: hardware, versions, the commit, the day, and whether others were at work."""
    import transformers

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{len_cores()} cores of {_processor()}"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}"
    busy = f"busy: load average {LOAD:.1f} before" if LOAD > BUSY else ""
    return "; ".join(filter(None, (device, versions, _commit(), time.strftime("%Y-%m-%d"), busy)))


def _processor() -> str:
    """Its name, which a virtual machine often cuts short, its family, and the instructions that matter here: those
    that it has, or that all engines are held to."""
    named, family = _of_processor("model name") or platform.machine(), _of_processor("cpu family")
    named += f", family {family}" if family else ""
    used = torch.backends.cpu.get_cpu_capability() + MORE.get(kind(), "")
    return f"{named} ({'held to ' if os.environ.get('ATEN_CPU_CAPABILITY') else ''}{used})"


def _of_processor(what: str) -> str:
    """From /proc/cpuinfo; nothing where there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(what))
    except (OSError, StopIteration):
        return ""


def _commit() -> str:
    """And whether the code is another since. Nothing where git, or its folder, is not there."""
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        changed = _git("status", "--porcelain", "--", "../regard", "*.py")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"commit {commit}" + (" with changes" if changed else "")


def _git(*words: str) -> str:
    command = ["git", "-C", str(RESULTS.parent), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
