"""One thread at a time; a process that is forked meanwhile has none of the others, and finds nobody there."""

from __future__ import annotations

import os
from threading import Lock
from weakref import WeakSet


class Alone:
    def __init__(self) -> None:
        self.lock = Lock()
        _known.add(self)

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


_known = WeakSet[Alone]()


def _begin_anew() -> None:
    for alone in _known:
        alone.lock = Lock()


os.register_at_fork(after_in_child=_begin_anew)
