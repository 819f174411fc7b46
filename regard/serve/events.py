"""Server-sent events: an answer that is read while it is written. Each event is `data: JSON` and an empty line."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi import Response

from regard.serve.guard import Receive, Scope, Send
from regard.serve.refusal import Refusal

DONE = b"data: [DONE]\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # a proxy passes them on at once
]


class Events(Response):
    """A response of events. Its status is sent by then, so a failure is one more event, and [DONE] does not follow."""

    def __init__(self, events: AsyncIterator[dict[str, Any]]) -> None:
        self.events, self.background = events, None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        async with aclosing(self.events) as events:  # type: ignore[type-var]
            last = DONE
            try:
                async for event in events:
                    await send({"type": "http.response.body", "body": encoded(event), "more_body": True})
            except Refusal as no:
                last = encoded(no.json)
        await send({"type": "http.response.body", "body": last})


def encoded(event: dict[str, Any]) -> bytes:
    """One line, whatever the text: JSON has no bare line breaks."""
    return b"data: " + json.dumps(event, ensure_ascii=False).encode("utf-8", "replace") + b"\n\n"
