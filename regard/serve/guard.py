"""The door, before anything else looks at a request: whose it is, by which name it came, and how large it may become.

Another web page can make a browser send requests to this machine, and a name that it owns can be made to point here. So
"only this machine" is no protection: a request has to carry the key, and to call the server by a name that is its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from regard.serve.metrics import Metrics
from regard.serve.refusal import Refusal, broken, busy

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger("regard.serve")

LOOPBACK = ("127.0.0.1", "localhost", "::1")
KEYED = ("/v1/", "/metrics", "/openapi.json")  # and "/"; the page's files are the same on every machine
UNHURRIED = ("/healthz", "/readyz", "/metrics")  # answered however much is going on

SECURITY = [
    (b"content-security-policy", b"default-src 'self'; img-src 'self' data: blob:; object-src 'none'; "
     b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]  # fmt: skip


@dataclass(frozen=True)
class Limits:
    body: int = 1 << 20
    """Bytes of a request."""
    held: int = 64 << 20
    """Bytes of all requests that are being read."""
    seconds: float = 10.0
    """For a body to arrive."""
    at_once: int = 512
    """Requests under way."""


class Guard:
    """An ASGI application around another. `names` are those that it may be called by; none: any. `check_room` refuses
    work before anything is spent on it.
    """

    def __init__(
        self,
        app: App,
        *,
        key: str,
        names: Collection[str] = LOOPBACK,
        limits: Limits = Limits(),
        metrics: Metrics,
        check_room: Callable[[], None] = lambda: None,
    ) -> None:
        self.app, self.key, self.names, self.limits, self.metrics = app, key, names, limits, metrics
        self.check_room = check_room
        self.under_way, self.held = 0, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._answer(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        else:  # a websocket
            await send({"type": "websocket.close", "code": 1003})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, number, status = time.perf_counter(), secrets.token_hex(8), 499
        scope["request_id"] = number

        async def sealed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = [pair for pair in message.get("headers", ()) if pair[0] != b"x-request-id"]
                message = {**message, "headers": [*given, *SECURITY, (b"x-request-id", number.encode())]}
            await send(message)

        self.under_way += 1
        try:
            await self._enter(scope, receive, sealed)
        except Exception:
            log.exception("request %s failed", number)
            if status != 499:
                raise  # half of an answer has been sent: the connection is closed
            await refuse(sealed, broken(number))
        finally:
            self.under_way -= 1
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.requests.add(route=route, code=str(status))
            self.metrics.seconds.add(time.perf_counter() - began, route=route)

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = bytearray()
        try:
            self._check(scope)
            await self._read(body, receive)
            await self.app(scope, _after(bytes(body), receive), send)
        except Refusal as no:
            await refuse(send, no)
        except _Left:
            return
        finally:
            self.held -= len(body)

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        path = scope["path"]
        if self.names and (name := _name(headers.get(b"host", b"").decode("latin-1"))) not in self.names:
            known = ", ".join(sorted({*self.names}))
            sentence = f"this server is not called {name[:80]!r}; call it by {known}, or start it with --names"
            raise Refusal(421, "wrong_host", sentence)
        if (path == "/" or path.startswith(KEYED)) and not self._knows_key(scope, headers):
            wanted = "open the address that was printed, or send the header Authorization: Bearer KEY"
            raise Refusal(401, "wrong_key", f"the key is missing or wrong; {wanted}")
        if self.under_way > self.limits.at_once and path not in UNHURRIED:
            raise busy(f"{self.limits.at_once} requests are under way")
        if scope["method"] == "POST":
            self.check_room()
        if (length := headers.get(b"content-length", b"0")).isdigit() and int(length) > self.limits.body:
            raise self._too_large()

    def _knows_key(self, scope: Scope, headers: dict[bytes, bytes]) -> bool:
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0].encode()
        return secrets.compare_digest(given.strip(), self.key.encode())

    async def _read(self, body: bytearray, receive: Receive) -> None:
        """Counted while it comes in: what a client announces need not be true, and need not be announced."""
        more = True
        try:
            async with asyncio.timeout(self.limits.seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Left
                    chunk, more = message.get("body", b""), message.get("more_body", False)
                    if len(body) + len(chunk) > self.limits.body:
                        raise self._too_large()
                    if self.held + len(chunk) > self.limits.held:
                        raise busy("the bodies of other requests take all the memory that there is for them")
                    self.held += len(chunk)
                    body += chunk
        except TimeoutError:
            sentence = f"the body was not here within {self.limits.seconds:g} s; send it faster, or less of it"
            raise Refusal(408, "slow_body", sentence) from None

    def _too_large(self) -> Refusal:
        most = self.limits.body
        return Refusal(413, "body_too_large", f"a body may have {most:,} bytes and this one has more; send it in parts")


async def refuse(send: Send, no: Refusal) -> None:
    body = json.dumps(no.json).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **no.headers}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": no.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


class _Left(Exception):
    """The client has gone in the middle of its body."""


def _after(body: bytes, receive: Receive) -> Receive:
    """The body in one piece, then whatever comes: that the client has gone."""
    told = False

    async def next_message() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message


def _name(host: str) -> str:
    """Without its port: `localhost:8000`, `[::1]:8000`."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
