"""Small runs of several tasks, a server of them without a socket, and an engine that steps when it is told to."""

from __future__ import annotations

import asyncio
import atexit
import json
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Semaphore, Thread
from typing import Any

import httpx2 as httpx
import tiny
from rich.console import Console

import regard
from regard import run
from regard.config import make_recipe
from regard.decode.engine import Engine, Event
from regard.models import schema
from regard.pipeline import Pipeline
from regard.serve.address import bind
from regard.serve.app import application
from regard.serve.guard import Guard
from regard.serve.metrics import Metrics
from regard.serve.models import Models
from regard.serve.server import Serving

KEY = "a-key-for-tests"
TEXT = "the cat sat on the mat . a dog ran in the park . birds fly over the old house . "
TRAIN = {"steps": 20, "tokens": 512, "warmup": 1, "threads": 1, "evaluate_every": 0, "save_every": 20, "rate": 0.01}


@cache
def home() -> Path:
    place = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    (place / "stream.txt").write_text(TEXT * 20, "utf-8")
    sentences = [part.strip() for part in TEXT.split(" . ") if part.strip()]
    labelled = [f"{sentence}\t{'one' if i % 2 else 'two'}" for i, sentence in enumerate(sentences * 4)]
    (place / "labelled.tsv").write_text("\n".join(labelled), "utf-8")
    (place / "documents.txt").write_text("\n\n".join("\n".join(sentences[::way]) for way in (1, -1, 1)), "utf-8")
    return place


def recipe(task: str, system: str, file: str, model: dict[str, Any], tokens: dict[str, Any]) -> dict[str, Any]:
    return {
        "system": system, "task": {"name": task}, "train": TRAIN, "tokens": tokens,
        "model": {"dim": 16, "heads": 2, "layers": 1, "context": 64, **model},
        "data": {"train": [str(home() / file)], "valid": [str(home() / file)], "longest": 48},
    }  # fmt: skip


@cache
def folder(name: str) -> Path:
    """A run of the task of that name; each is trained once."""
    if name == "rewrite":
        return tiny.trained()
    pieces = {"kind": "wordpiece", "size": 120}
    values = {
        "language": lambda: recipe("language", "gpt", "stream.txt", {}, {"kind": "char"}),
        "classify": lambda: recipe("classify", "bert", "labelled.tsv", {"hidden": 32}, pieces),
        "masked": lambda: recipe("masked", "bert", "documents.txt", {"hidden": 32}, pieces),
        "recurrent": lambda: {**tiny.recipe(train=TRAIN), "system": "seq2seq", "model": {"dim": 16, "embedding": 8}},
    }[name]()
    run.start(make_recipe(values, schema), home() / name, Console(quiet=True))
    return home() / name


@cache
def pipeline(name: str) -> Pipeline:
    return regard.load(folder(name), device="cpu")


def stepped() -> type[Engine]:
    """An engine that makes a step when `allowed` is released."""

    class Stepped(Engine):
        allowed = Semaphore(0)

        def step(self) -> list[Event]:
            assert self.allowed.acquire(timeout=20), "the test allowed no further step"
            return super().step()

    return Stepped


class Served:
    """A server without a socket, and whoever asks it."""

    def __init__(self, *names: str, **how: Any) -> None:
        guard = {name: how.pop(name) for name in ("names", "limits") if name in how}
        self.metrics = Metrics()
        self.models = Models([folder(name) for name in names], device="cpu", metrics=self.metrics, **how)
        self.app = application(self.models, self.metrics, key=KEY, **guard)

    @property
    def worker(self) -> Any:
        return self.models.workers[0]

    def ask(self, method: str, path: str, **how: Any) -> httpx.Response:
        async def one(client: httpx.AsyncClient) -> httpx.Response:
            return await client.request(method, path, **how)

        return self.run(one)

    def run(self, work: Callable[[httpx.AsyncClient], Coroutine[Any, Any, Any]]) -> Any:
        async def whole() -> Any:
            async with client(self.app) as asking:
                return await work(asking)

        return asyncio.run(whole())


def client(app: Guard) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app),  # type: ignore[arg-type]
        base_url="http://127.0.0.1:8000",
        headers={"authorization": f"Bearer {KEY}"},
        timeout=20,
    )


@contextmanager
def serving(*names: str, **how: Any) -> Iterator[Served]:
    served = Served(*names, **how)
    served.models.load()
    if served.models.trouble is not None:
        raise served.models.trouble
    try:
        yield served
    finally:
        served.models.stop()


async def knock(app: Guard, path: str, query: bytes) -> int:
    """The status of a request without any header but a host: all that it knows stands in its address."""
    found: list[int] = []
    messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Any:
        return next(messages, None) or await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            found.append(message["status"])

    await app(scope_of("GET", path, {"host": "localhost"}, query), receive, send)
    return found[0]


def scope_of(method: str, path: str, headers: dict[str, str], query: bytes = b"") -> dict[str, Any]:
    return {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query,
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()], "http_version": "1.1",
        "scheme": "http", "server": ("localhost", 80), "client": ("127.0.0.1", 1), "root_path": "", "asgi": {},
    }  # fmt: skip


async def until(true: Callable[[], bool], seconds: float = 10) -> None:
    """Waits for what another thread does."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.002)


@contextmanager
def listening(served: Served, **how: Any) -> Iterator[Serving]:
    """The same on a socket; `port` is where."""
    with bind("127.0.0.1", 0, exactly=True) as listener:
        server = Serving(served.app, served.models, say=lambda text: None, **how)
        server.port = listener.getsockname()[1]  # type: ignore[attr-defined]
        thread = Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        server.thread = thread  # type: ignore[attr-defined]
        try:
            yield server
        finally:
            server.should_exit = server.force_exit = True
            thread.join(10)
            assert not thread.is_alive(), "the server did not leave"


def over(server: Serving, **how: Any) -> httpx.Client:
    base = f"http://127.0.0.1:{server.port}"  # type: ignore[attr-defined]
    return httpx.Client(base_url=base, headers={"authorization": f"Bearer {KEY}"}, timeout=20, **how)


def plug(server: Serving) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)  # type: ignore[attr-defined]


def request(body: dict[str, Any], path: str = "/v1/predict") -> bytes:
    """As it goes over the wire."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


def rest(line: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    found = b""
    with suppress(ConnectionResetError):
        while chunk := line.recv(65_536):
            found += chunk
    return found
