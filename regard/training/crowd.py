"""Whether others work on the same cores: threads that wait for one another lose far more by it than the others gain."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

LEAST = 5.0  # seconds to judge by
STAT = Path("/proc/stat")
QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: time and the period that it is of, both in microseconds


class Used(NamedTuple):
    """Seconds that have passed, seconds of all cores that were worked, and those that this process worked."""

    passed: float
    by_all: float
    by_us: float


def used() -> Used | None:
    """So far; None where the system does not tell."""
    try:
        user, nice, system, _, _, *rest = map(int, STAT.read_text().split("\n", 1)[0].split()[1:9])
    except (OSError, ValueError):
        return None
    ticks = user + nice + system + sum(rest)  # idle and waiting for a disk are no work
    return Used(time.perf_counter(), ticks / os.sysconf("SC_CLK_TCK"), sum(os.times()[:4]))


def allowed() -> int:
    """Cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        time, period = map(int, QUOTA.read_text().split())
    except (OSError, ValueError):  # there is no such file, or "max" in it
        return cores
    return max(1, min(cores, time // period))


class Crowd:
    """Says once that there are more threads than cores, or that others use cores that these threads count on."""

    def __init__(self, threads: int, cores: int | None = None, look: Callable[[], Used | None] = used) -> None:
        self.threads, self.cores, self.look = threads, cores or allowed(), look
        whole = cores is not None or self.cores == os.cpu_count()  # else nobody tells who works on our part of them
        self.before = look() if threads > 1 and whole else None
        self.many = threads > self.cores

    def word(self) -> str:
        """What is to be said of the time since it was last asked; mostly nothing."""
        if self.many:
            self.many, self.before = False, None
            return (
                f"warning: this trains with {self.threads} threads on {self.cores} cores, which wait for one another; "
                f"write train.threads = {self.cores}"
            )
        now = None if self.before is None else self.look()
        if now is None or self.before is None or now.passed - self.before.passed < LEAST:
            return ""
        passed, by_all, by_us = (after - before for after, before in zip(now, self.before, strict=True))
        others, self.before = (by_all - by_us) / passed, now
        if others < 0.25 or others + self.threads < self.cores + 0.25:
            return ""
        self.before = None
        fewer = max(1, self.cores - math.ceil(others))
        return (
            f"warning: others use {others:.1f} of the {self.cores} cores, and this trains with {self.threads} threads, "
            f"which wait for one another; stop the others, or write train.threads = {fewer}"
        )
