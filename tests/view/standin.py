"""A server of the page that needs no framework: the contract's functions behind http.server, for tests and pictures."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote

from regard.errors import RegardError
from regard.view import contract
from regard.view.capture import Trace

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
Make = Callable[[dict[str, Any]], Trace]


class Standin:
    def __init__(self, make: Make, models: list[dict[str, Any]], training: dict[str, Any] | None = None) -> None:
        self.make, self.models, self.training = make, models, training
        self.traces: dict[str, Trace] = {}
        self.sent = 0

    def add(self, trace: Trace) -> str:
        name = contract.digest(trace)
        self.traces[name] = trace
        return name

    def answer(self, path: str) -> tuple[bytes, str]:
        parts = [unquote(part) for part in path.split("?")[0].strip("/").split("/")]
        match parts:
            case [""]:
                return contract.page_file("index.html")
            case ["v1", "models"]:
                return _json({"data": self.models})
            case ["v1", "runs", _, "training"]:
                return _json(self.training or {})
            case ["v1", "trace", name]:
                return _json({"id": name, **contract.header(self.traces[name])})
            case ["v1", "trace", name, "thumbs"]:
                return contract.thumbs(self.traces[name]), "application/octet-stream"
            case ["v1", "trace", name, "head", which, h]:
                return contract.head(self.traces[name], which, int(h)), "application/octet-stream"
            case ["v1", "trace", name, "row", which, h, q]:
                return contract.row(self.traces[name], which, int(h), int(q)), "application/octet-stream"
            case ["v1", "trace", name, "arithmetic", which, h, q]:
                return _json(contract.arithmetic(self.traces[name], which, int(h), int(q)))
            case ["v1", "trace", name, "search"]:
                return _json(contract.search(self.traces[name]))
            case ["v1", "trace", name, "positions"]:
                return _json({"positions": self.traces[name].positions})
        return contract.page_file("/".join(parts))


def _json(data: Any) -> tuple[bytes, str]:
    return json.dumps(data).encode(), "application/json"


@contextmanager
def standing_in(standin: Standin) -> Iterator[str]:
    """The address of the page while the server runs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.reply(lambda: standin.answer(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self.reply(lambda: _json({"id": standin.add(standin.make(body))}))

        def reply(self, work: Callable[[], tuple[bytes, str]]) -> None:
            try:
                status, (body, kind) = 200, work()
            except KeyError:
                status, (body, kind) = 404, _json({"error": {"message": "no such thing"}})
            except RegardError as error:
                status, (body, kind) = 422, _json({"error": {"message": str(error)}})
            body = gzip.compress(body, 3)
            standin.sent += len(body)
            self.send_response(status)
            for name, value in (
                ("content-type", kind), ("content-length", str(len(body))), ("content-encoding", "gzip"),
                ("content-security-policy", POLICY), ("x-content-type-options", "nosniff"),
            ):  # fmt: skip
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
