"""The front's side of the waiting room: a place for each request, given up as soon as its client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from fastapi import Request

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


async def aside(letters: int, work: Callable[[], Found]) -> Found:
    """Long texts are prepared in another thread, so that nobody waits for them."""
    return work() if letters < SHORT else await asyncio.to_thread(work)
