"""What a client is told when it gets no answer: a status, a code for programs, one sentence for people.

{"error": {"message": "…", "type": "overloaded", "code": "queue_full"}}
"""

from __future__ import annotations

from typing import Any

from regard.errors import RegardError

KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "unavailable_error",
    504: "timeout_error",
}  # every other status is a fault of the request


class Refusal(RegardError):
    """Answered with this status. `wait` says after how many seconds it is worth trying again."""

    def __init__(self, status: int, code: str, message: str, *, wait: int | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.wait = status, code, wait

    @property
    def json(self) -> dict[str, Any]:
        kind = KINDS.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "code": self.kind}}

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.wait is None else {"retry-after": str(self.wait)}


def nothing_here() -> Refusal:
    return Refusal(404, "no_such_route", "there is nothing at this address; /openapi.json lists what there is")


def full(waiting: int, wait: int) -> Refusal:
    sentence = f"{waiting} requests wait already; try again in {wait} s"
    return Refusal(429, "queue_full", sentence, wait=wait)


def busy(what: str) -> Refusal:
    return Refusal(429, "busy", f"{what}; try again in a second", wait=1)


def loading(name: str) -> Refusal:
    return Refusal(503, "loading", f"{name} is being loaded; try again in a second", wait=1)


def draining() -> Refusal:
    return Refusal(503, "draining", "the server is about to stop and takes nothing new; ask another", wait=5)


def fallen() -> Refusal:
    return Refusal(503, "restarted", "the model failed and was set up anew; ask again", wait=1)


def late(seconds: float) -> Refusal:
    sentence = f"no answer within {seconds:g} s, so the work was stopped; ask for less, or when it is quieter"
    return Refusal(504, "deadline", sentence)


def gone() -> Refusal:
    """Nobody reads this: the client has left. It is counted, as 499."""
    return Refusal(499, "gone", "the client left before the answer was ready")


def broken(request: str) -> Refusal:
    return Refusal(500, "broken", f"something failed that should not have; the server's log has it as {request}")
