"""The server on its socket: it listens before its models are loaded, and is let go in two steps.

The first SIGTERM or SIGINT: what has been accepted is finished, anything new is refused with 503, and it leaves when
nothing is left to do, or after some seconds. The second: it leaves.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from types import FrameType

from uvicorn import Config, Server

from regard.serve.address import BACKLOG
from regard.serve.guard import App
from regard.serve.models import Models
from regard.serve.patience import PATIENCE, Patient

GRACE = 30.0  # seconds for what has been accepted


class Serving(Server):
    def __init__(self, app: App, models: Models, *, grace: float = GRACE, say: Callable[[str], None] = print) -> None:
        super().__init__(
            Config(
                app,
                http=Patient, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
                proxy_headers=False,
                date_header=False, timeout_keep_alive=int(PATIENCE), timeout_graceful_shutdown=2, backlog=BACKLOG,
            )
        )  # fmt: skip
        self.models, self.grace, self.say = models, grace, say
        self.told: set[str] = set()  # which models are ready
        self.leaving: float | None = None  # since when
        self.signals: list[int] = []

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.signals.append(sig)
        if self.leaving is None:
            self.leaving = time.monotonic()
            self.models.drain()
            self.say(f"finishing what was accepted, for at most {self.grace:g} s; once more leaves at once")
        else:
            self.should_exit = self.force_exit = True

    async def on_tick(self, counter: int) -> bool:
        for model in self.models:
            if model.ready and model.name not in self.told:
                self.told.add(model.name)
                self.say(f"{model.name} is ready")
        if self.models.trouble is not None:
            return True
        if self.leaving is not None and self._idle():
            return True
        if self.leaving is not None and time.monotonic() - self.leaving > self.grace:
            await asyncio.to_thread(self.models.stop)  # whoever still waits is told so
            return True
        return await super().on_tick(counter)

    def _idle(self) -> bool:
        return self.models.idle and not self.server_state.tasks

    def listen(self, sockets: Sequence[socket.socket]) -> int:
        """Until it is told to stop; returns the exit code."""
        self.models.begin()
        try:
            self.run(sockets=list(sockets))
        finally:
            self.models.stop()
        if self.models.trouble is not None:
            raise self.models.trouble
        return 128 + self.signals[-1] if self.force_exit else 0
