"""Being told to stop, by a signal or by the clock, without losing anything."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from regard.errors import RegardError

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 143}


class Stopped(RegardError):
    """Told to stop, with a checkpoint on disk; `how` says where it stopped and how to go on."""

    def __init__(self, reason: str, how: str, code: int) -> None:
        super().__init__(f"stopped by {reason}{how}")
        self.reason, self.code = reason, code


class Interrupted(BaseException):
    """Ends what may be dropped half-way. Not an Exception, so that nobody catches it by accident."""


class Stop:
    """Within this context a signal is only heard; the loop asks after each step. A second Ctrl-C does not wait."""

    def __init__(self, minutes: float = 0.0) -> None:
        self.deadline = time.monotonic() + 60 * minutes if minutes else math.inf
        self.heard: signal.Signals | None = None
        self.droppable = False
        self.before: dict[signal.Signals, Any] = {}

    @property
    def asked(self) -> bool:
        return self.heard is not None or time.monotonic() >= self.deadline

    @property
    def reason(self) -> str:
        return "the time limit" if self.heard is None else self.heard.name

    @property
    def code(self) -> int:
        return 143 if self.heard is None else CODES[self.heard]

    @contextmanager
    def dropping(self) -> Iterator[None]:
        """What runs in here is dropped at once when told to stop, by Interrupted."""
        self.droppable = True
        try:
            if self.asked:
                raise Interrupted
            yield
        finally:
            self.droppable = False

    def hear(self, number: int, frame: FrameType | None) -> None:
        if number == self.heard == signal.SIGINT:
            raise KeyboardInterrupt
        self.heard = signal.Signals(number)
        if self.droppable:
            self.droppable = False
            raise Interrupted

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python does not allow handlers
            self.before = {number: signal.signal(number, self.hear) for number in CODES}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
