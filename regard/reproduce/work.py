"""From jobs to finished runs: what is finished is left alone, what was stopped goes on, what is missing is begun."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from regard import run
from regard.config import Recipe, write_toml
from regard.data.text import find
from regard.disk import write
from regard.errors import CheckpointError, ConfigError, RegardError
from regard.pipeline import read_run
from regard.prepare.shared import DECIDED
from regard.reproduce.study import Job
from regard.training.stop import Stop, Stopped

# Not the cell's, but the machine's, the folder's or the data's.
OPEN = {"train.device", "train.threads", "train.begin", "data.labels", *(f"model.{name}" for name in DECIDED)}
PAUSE = 0.2  # seconds between looks at the processes
GO_ON = "; every run is saved, and the same command goes on"


def work(jobs: Sequence[Job], console: Console, *, at_once: int = 1) -> list[Job]:
    """Brings every run to its end, one after another here or several at a time elsewhere; gives those that failed."""
    waiting = _possible(_whole(jobs, console), console)
    first = [job for job in _begun_with(waiting) if not job.finished]
    _bring(first, console, at_once)
    ready = [job for job in waiting if job.begins is None or job.begins.finished]
    return [job for job in waiting if job not in ready] + _bring(ready, console, at_once)


def room(jobs: Sequence[Job]) -> int:
    """How many of these runs go at a time on a CPU: as many as it has cores for, where each says how many threads it
    has, else one."""
    threads = [_threads(job) for job in jobs if not job.finished]
    return max(1, min(len(threads), _cores() // max(threads))) if threads and all(threads) else 1


def _threads(job: Job) -> int:
    """0 where PyTorch chooses."""
    return int(job.values.get("train", {}).get("threads", 0))


def _cores() -> int:
    return os.cpu_count() or 1


def _begun_with(jobs: Iterable[Job]) -> Iterable[Job]:
    return {job.begins.folder: job.begins for job in jobs if job.begins is not None}.values()


def _whole(jobs: Sequence[Job], console: Console) -> list[Job]:
    """Those whose folders can be read; of the others it is told, and they are left as they are."""
    found = [(job, damage(job)) for job in jobs]
    for job, why in found:
        if why:
            console.print(f"left out: {job.name}, which is damaged: {why}", markup=False, soft_wrap=True)
    return [job for job, why in found if not why]


def _possible(jobs: Sequence[Job], console: Console) -> list[Job]:
    """Those to be made. Data that is missing is missed before anything is begun; whoever has theirs goes on."""
    waiting = [(job, job.missing()) for job in jobs if not job.finished]
    if waiting and len(waiting) == len(jobs) and all(missing for _, missing in waiting):
        find(waiting[0][1])  # says where it was looked for
    for missing in dict.fromkeys(missing for _, missing in waiting if missing):
        console.print(f"left out: all that needs {missing}, which is not there", markup=False, soft_wrap=True)
    return [job for job, missing in waiting if not missing]


def check(job: Job) -> None:
    """Its recipe can be; and a run with other settings is not this cell, whatever its folder is called."""
    if job.begins is not None:
        check(job.begins)
    if not damage(job) and (found := difference(job)):
        raise ConfigError(f"{job.folder} was {found}; choose another folder with --out")


def damage(job: Job) -> str:
    """Why the recipe of this folder, or of the one that it begins with, cannot be read; nothing where it can."""
    try:
        if job.begun:
            read_run(job.folder)
    except CheckpointError as error:
        return str(error)
    return damage(job.begins) if job.begins is not None else ""


def difference(job: Job) -> str:
    """The first setting in which the run of this folder is not the cell; none where they agree."""
    asked = dict(_settings(job.recipe()))
    for name, value in _settings(read_run(job.folder)) if job.begun else ():
        if name not in OPEN and value != asked.get(name):
            return f"made with {name} = {value!r}, but {asked.get(name)!r} is asked for"
    return ""


def _settings(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    whole = recipe.model_dump(mode="json")
    yield "system", recipe.system
    for part in ("data", "tokens", "task", "model", "train", "decode"):
        yield from ((f"{part}.{name}", value) for name, value in whole[part].items())


def _bring(jobs: Sequence[Job], console: Console, at_once: int) -> list[Job]:
    """A child goes on when its parent is killed; what it works at is left to it."""
    busy = [job for job in jobs if job.busy]
    for job in busy:
        console.print(f"left out: {job.name}, which another process is training", markup=False, soft_wrap=True)
    free = [job for job in jobs if job not in busy]
    return _here(free, console) if at_once == 1 else _elsewhere(free, console, at_once)


def _here(jobs: Sequence[Job], console: Console) -> list[Job]:
    failed = []
    for number, job in enumerate(jobs, 1):
        console.print(f"\n[bold]{job.name}[/] ({number} of {len(jobs)})")
        try:
            _finish(job, console)
        except Stopped as stopped:
            raise Stopped(stopped.reason, GO_ON, stopped.code) from None
        except RegardError as error:
            console.print(f"{job.name} failed: {error}", markup=False, soft_wrap=True)
            failed.append(job)
    return failed


def _finish(job: Job, console: Console) -> None:
    threads = torch.get_num_threads()
    try:
        if job.begun:
            run.resume(job.folder, console)
        else:
            run.start(job.recipe(), job.folder, console)
    finally:
        torch.set_num_threads(threads)  # those of one run are not the next one's


def _elsewhere(jobs: Sequence[Job], console: Console, at_once: int) -> list[Job]:
    """Each in a process of its own. When told to stop, all of them save what they have."""
    waiting, failed = list(jobs), []
    working: list[tuple[Job, subprocess.Popen[bytes]]] = []
    with Stop() as stop:
        try:
            while (waiting or working) and not stop.asked:
                while waiting and len(working) < at_once:
                    job = waiting.pop(0)
                    working.append((job, _begin(job, at_once)))
                    console.print(f"{job.name}: begun, its words go to {_beside(job, 'log')}", soft_wrap=True)
                time.sleep(PAUSE)
                for job, process in [pair for pair in working if pair[1].poll() is not None]:
                    working.remove((job, process))
                    failed += [job] if process.returncode else []
                    console.print(f"{job.name}: {_outcome(job, process.returncode)}", markup=False, soft_wrap=True)
        finally:
            for _, process in working:
                process.terminate()
            for _, process in working:
                process.wait()
    if stop.asked:
        raise Stopped(stop.reason, GO_ON, stop.code)
    return failed


def _begin(job: Job, at_once: int) -> subprocess.Popen[bytes]:
    """`regard train` or `regard resume`. A session of its own, so that Ctrl-C reaches it once, through us."""
    recipe = _beside(job, "toml")
    recipe.parent.mkdir(parents=True, exist_ok=True)
    write(recipe, write_toml(job.recipe()).encode())
    words = ["resume", str(job.folder)] if job.begun else ["train", str(recipe), "--out", str(job.folder)]
    threads = _threads(job) or max(1, _cores() // at_once)
    _beside(job, "log").unlink(missing_ok=True)  # a child that outlived its parent writes on in the old one
    with _beside(job, "log").open("xb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "regard", *words],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env={"OMP_NUM_THREADS": str(threads), **os.environ},
        )  # fmt: skip


def _beside(job: Job, kind: str) -> Path:
    return job.folder.with_name(f"{job.folder.name}.{kind}")


def _outcome(job: Job, code: int) -> str:
    if code == 0:
        return "finished"
    said = _beside(job, "log").read_text("utf-8", "replace").strip().rpartition("\n")[2]
    return f"failed with exit code {code}: {said}"
