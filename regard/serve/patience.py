"""A connection on which nothing moves is closed.

uvicorn waits for ever for the rest of a request, and for a client that takes its answer a byte at a time. Here a client
that owes us bytes, or will not take ours, is given some seconds and no more.
"""

from __future__ import annotations

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.serve.refusal import Refusal

PATIENCE = 15.0  # seconds; longer than the guard's for a body, which has the courtesy to answer
LINGER = 2.0  # seconds for the rest of a body that was refused: a client reads why when it has sent enough
OWING = (h11.IDLE, h11.SEND_BODY)


class Patient(H11Protocol):
    patience = PATIENCE
    reading: asyncio.TimerHandle | None = None
    writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            _stopped(self.reading)
            self.reading = self.loop.call_later(min(LINGER, self.patience), self.transport.abort)
        else:
            self._await_request()

    def _await_request(self) -> None:
        """The whole of a request has to be here in time, however many pieces it comes in."""
        if self.conn.their_state not in OWING or self.transport.is_closing():
            self.reading = _stopped(self.reading)
        elif self.reading is None:
            self.reading = self.loop.call_later(self.patience, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        _stopped(self.writing)
        self.writing = self.loop.call_later(self.patience, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.writing = _stopped(self.writing)

    def connection_lost(self, exc: Exception | None) -> None:
        self.reading, self.writing = _stopped(self.reading), _stopped(self.writing)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP at all."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()  # an answer is under way, and nothing else can be said
            return
        body = json.dumps(Refusal(400, "no_http", "this is no HTTP/1.1; ask with an HTTP client").json).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def _stopped(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    if timer is not None:
        timer.cancel()
    return None
