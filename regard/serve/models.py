"""The runs that are served: loaded one after another while the server already answers, asked by name, and let go."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from regard.decode.engine import Engine
from regard.errors import ConfigError, RegardError, nearest
from regard.pipeline import Pipeline, load
from regard.serve.metrics import Gauge, Metrics
from regard.serve.queue import Worker
from regard.serve.refusal import Refusal, draining, loading
from regard.serve.training import held_out, newest
from regard.serve.writing import writes
from regard.training.checkpoint import found

ROWS = 64  # hypotheses that an engine carries along
WAITING = 64  # requests
SECONDS = 60.0  # for an answer, the waiting included


class Model:
    """A run, its pipeline and its worker; both are missing until it is loaded."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder, self.created = name, folder, int(time.time())
        self.pipeline: Pipeline | None = None
        self.worker: Worker | None = None
        self.example = ""  # something to ask it

    @property
    def ready(self) -> bool:
        return self.worker is not None

    def asked(self) -> tuple[Pipeline, Worker]:
        if self.pipeline is None or self.worker is None:
            raise loading(self.name)
        return self.pipeline, self.worker

    def json(self) -> dict[str, Any]:
        pipeline = self.pipeline
        recipe = pipeline.recipe if pipeline else None
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "regard",
            "ready": self.ready,
            "system": recipe.system if recipe else "",
            "task": recipe.task.name if recipe else "",
            "parameters": sum(p.numel() for p in pipeline.model.parameters()) if pipeline else None,
            "longest": pipeline.longest if pipeline else None,
            "settings": sorted(pipeline.takes - {"shots", "coverage"}) if pipeline else [],  # what a client may set
            "example": self.example,
        }


class Models:
    def __init__(
        self,
        folders: Sequence[Path],
        *,
        rows: int = ROWS,
        waiting: int = WAITING,
        seconds: float = SECONDS,
        device: str = "auto",
        arithmetic: str = "fp32",
        metrics: Metrics,
        engine: Callable[..., Engine] = Engine,
    ) -> None:
        self.rows, self.waiting, self.seconds, self.device, self.metrics = rows, waiting, seconds, device, metrics
        self.arithmetic, self.engine = arithmetic, engine
        self.by_name: dict[str, Model] = {}
        for folder in folders:
            name = folder.resolve().name
            if name in self.by_name:
                raise ConfigError(f"{folder}: another run that is served is called {name!r} too; rename one of them")
            self.by_name[name] = Model(name, folder)
        self.open = True
        self.trouble: RegardError | None = None
        metrics.gauges += [
            Gauge("regard_waiting", "requests that wait", lambda: {w.model: len(w.waiting) for w in self.workers}),
            Gauge("regard_live", "answers being written", lambda: {w.model: len(w.live) for w in self.workers}),
            Gauge("regard_ready", "1 where a model is loaded", lambda: {m.name: m.ready for m in self}),
        ]

    def __iter__(self) -> Any:
        return iter(self.by_name.values())

    @property
    def workers(self) -> list[Worker]:
        return [model.worker for model in self if model.worker is not None]

    @property
    def ready(self) -> bool:
        return self.open and all(model.ready for model in self)

    def find(self, name: str | None) -> Model:
        """By name, and by nothing else: no path ever comes from a request."""
        if name is None:
            return next(iter(self))
        if name not in self.by_name:
            raise Refusal(404, "no_such_model", f"no model is called {name[:80]!r}; {nearest(name[:80], self.by_name)}")
        return self.by_name[name]

    def asked(self, name: str | None) -> tuple[Model, Pipeline, Worker]:
        if not self.open:
            raise draining()
        model = self.find(name)
        return model, *model.asked()

    def check_room(self) -> None:
        """Where no model has any, a request need not be read."""
        workers = self.workers
        if workers and all(worker.full for worker in workers):
            workers[0].turn_away()

    # ---- a server's life

    def begin(self) -> Thread:
        """Loads them in a thread of its own."""
        thread = Thread(target=self._settle, name="loading", daemon=True)
        thread.start()
        return thread

    def _settle(self) -> None:
        """What is there by then stays until the end: Python need not look through it for garbage again and again."""
        self.load()
        gc.collect()
        gc.freeze()

    def load(self) -> None:
        """The first that cannot be loaded is the server's `trouble`."""
        for model in self:
            try:
                self._load(model)
            except (RegardError, OSError) as error:
                self.trouble = error if isinstance(error, RegardError) else RegardError(f"{model.folder}: {error}")
                return

    def _load(self, model: Model) -> None:
        training = not (model.folder / "model.safetensors").exists() and found(model.folder / "checkpoints")
        read = newest if training else load
        pipeline = read(model.folder, device=self.device, arithmetic=self.arithmetic)
        system: Any = pipeline.model
        make = (lambda: self.engine(system, rows=self.rows)) if writes(pipeline) else None
        worker = Worker(model.name, make, waiting=self.waiting, seconds=self.seconds, metrics=self.metrics)
        worker.start()
        with suppress(RegardError):  # data that cannot be read is no reason not to serve
            model.example = held_out(pipeline)
        model.pipeline, model.worker = pipeline, worker

    def drain(self) -> None:
        """Takes nothing new; what was accepted is finished."""
        self.open = False
        for worker in self.workers:
            worker.close()

    @property
    def idle(self) -> bool:
        return all(worker.idle for worker in self.workers)

    def stop(self) -> None:
        """Whoever still waits is told so."""
        self.drain()
        for worker in self.workers:
            worker.stop()
        for worker in self.workers:
            worker.join(5)
