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


class Crowd:
    """Says once that others use cores that these threads count on."""

    def __init__(self, threads: int, cores: int | None = None, look: Callable[[], Used | None] = used) -> None:
        self.threads, self.cores, self.look = threads, cores or os.cpu_count() or 1, look
        self.before = look() if threads > 1 else None

    def word(self) -> str:
        """What is to be said of the time since it was last asked; mostly nothing."""
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
