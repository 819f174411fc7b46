"""The front: a place in the waiting room for each request, given up once its client has gone; and the way back."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from fastapi import Request, Response

from regard.serve.queue import Ticket, Worker

Found = TypeVar("Found")

SHORT = 10_000  # letters that are cut into tokens in less time than it takes to ask another thread


@asynccontextmanager
async def place(request: Request, worker: Worker) -> AsyncIterator[Ticket]:
    ticket = worker.enter()
    listening = asyncio.create_task(_listen(request, ticket))
    try:
        yield ticket
    finally:
        listening.cancel()
        ticket.leave()
        if not ticket.placed:
            worker.give_back()


async def _listen(request: Request, ticket: Ticket) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    ticket.leave()


async def packed(request: Request, data: bytes, kind: str, headers: dict[str, str]) -> Response:
    """Smaller on the way, where it is worth it and the client can unpack."""
    headers = {**headers, "vary": "accept-encoding"}
    if len(data) > 1000 and "gzip" in request.headers.get("accept-encoding", ""):
        data = await asyncio.to_thread(gzip.compress, data, 5)
        headers["content-encoding"] = "gzip"
    return Response(data, media_type=kind, headers=headers)


async def aside(letters: int, work: Callable[[], Found]) -> Found:
    """Long texts are prepared in another thread, so that nobody waits for them."""
    return work() if letters < SHORT else await asyncio.to_thread(work)
