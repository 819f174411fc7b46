"""What the page asks for: a trace is made once and kept for a while; its parts are immutable, small, and on demand."""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from regard.serve.front import packed, place
from regard.serve.queue import Reading
from regard.serve.refusal import Refusal
from regard.serve.schema import Looked
from regard.serve.strict import REFUSALS, Answer, Strict
from regard.serve.training import Courses, held_out
from regard.view import contract
from regard.view.capture import Trace

ROOM = 256 << 20  # bytes of all traces
HOUR = 3600.0

router = APIRouter(route_class=Strict, responses=REFUSALS)
BYTES: dict[int | str, dict[str, Any]] = {200: {"content": {"application/octet-stream": {}}}}

Id = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
Name = Annotated[str, Path(max_length=200)]
Head = Annotated[int, Path(ge=-1, le=4096)]
Place = Annotated[int, Path(ge=0, le=65_536)]


@dataclass
class Kept:
    trace: Trace
    model: str
    used: float = 0.0

    def __post_init__(self) -> None:
        self.size = size_of(self.trace)


class Traces:
    """The newest, as far as there is room; those that nobody asked for in an hour are forgotten."""

    def __init__(self, room: int = ROOM, seconds: float = HOUR) -> None:
        self.room, self.seconds = room, seconds
        self.kept: OrderedDict[str, Kept] = OrderedDict()

    def put(self, id: str, trace: Trace, model: str) -> None:
        self.kept[id] = Kept(trace, model)
        self.get(id)
        while len(self.kept) > 1 and (self._over() or self._old()):
            self.kept.popitem(last=False)

    def get(self, id: str) -> Kept:
        if id not in self.kept:
            raise Refusal(404, "no_such_trace", "this trace is not kept, or no longer; ask for it again")
        self.kept[id].used = time.monotonic()
        self.kept.move_to_end(id)
        return self.kept[id]

    def _over(self) -> bool:
        return sum(one.size for one in self.kept.values()) > self.room

    def _old(self) -> bool:
        return time.monotonic() - next(iter(self.kept.values())).used > self.seconds


def size_of(trace: Trace) -> int:
    arrays = [*trace.maps.values()]
    for part in trace.parts.values():
        arrays += [array for array in (part.q, part.k, part.v, part.scores) if array is not None]
    return sum(array.nbytes for array in arrays)


@router.post("/v1/trace")
async def make(asked: Looked, request: Request) -> Response:
    """Watches a model while it answers; heads can be silenced, words and looks forced."""
    model, pipeline, worker = request.app.state.models.asked(asked.model)
    how = asked.model_dump(exclude_none=True, exclude={"model", "input", "silence", "force"})
    force = asked.force.model_dump(exclude_none=True) if asked.force else {}
    pipeline.check(asked.input)

    def look(texts: Any) -> list[Trace]:
        return [contract.trace_of(pipeline, text, silence=asked.silence, force=force, **how) for text in texts]

    async with place(request, worker) as ticket:
        worker.put(Reading(ticket, [asked.input], look))
        (trace,) = await ticket.done()
    id = await asyncio.to_thread(contract.digest, trace)
    request.app.state.traces.put(id, trace, model.name)
    return Answer(_header(id, trace, model.name), headers={"cache-control": "no-store"})


def _header(id: str, trace: Trace, model: str) -> dict[str, Any]:
    return {"id": id, "name": model, **contract.header(trace)}


@router.get("/v1/trace/{id}")
async def header(id: Id, request: Request) -> Response:
    model = request.app.state.traces.get(id).model
    return await part(request, id, lambda trace: _header(id, trace, model))


@router.get("/v1/trace/{id}/thumbs", response_class=Response, responses=BYTES)
async def thumbs(id: Id, request: Request) -> Response:
    return await part(request, id, contract.thumbs)


@router.get("/v1/trace/{id}/head/{name}/{h}", response_class=Response, responses=BYTES)
async def head(id: Id, name: Name, h: Head, request: Request) -> Response:
    return await part(request, id, lambda trace: contract.head(trace, name, h))


@router.get("/v1/trace/{id}/row/{name}/{h}/{q}", response_class=Response, responses=BYTES)
async def row(id: Id, name: Name, h: Head, q: Place, request: Request) -> Response:
    return await part(request, id, lambda trace: contract.row(trace, name, h, q))


@router.get("/v1/trace/{id}/arithmetic/{name}/{h}/{q}")
async def arithmetic(id: Id, name: Name, h: Head, q: Place, request: Request) -> Response:
    return await part(request, id, lambda trace: contract.arithmetic(trace, name, h, q))


@router.get("/v1/trace/{id}/search")
async def search(id: Id, request: Request) -> Response:
    return await part(request, id, contract.search)


@router.get("/v1/trace/{id}/positions")
async def positions(id: Id, request: Request) -> Response:
    return await part(request, id, lambda trace: {"positions": trace.positions})


async def part(request: Request, id: str, make: Callable[[Trace], bytes | dict[str, Any]]) -> Response:
    """It never changes, so whoever has it need not get it again."""
    trace = request.app.state.traces.get(id).trace
    headers = {"etag": f'"{id}"', "cache-control": "private, max-age=3600, immutable"}
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    found = await asyncio.to_thread(make, trace)
    kind = "application/json" if isinstance(found, dict) else "application/octet-stream"
    data = json.dumps(found, ensure_ascii=False).encode("utf-8", "replace") if isinstance(found, dict) else found
    return await packed(request, data, kind, headers)


@router.get("/v1/runs/{name}/training")
async def training(name: Name, request: Request, text: Annotated[str, Query(max_length=2000)] = "") -> Response:
    """The log of a run, and where the model looked in one text after each checkpoint."""
    _, pipeline, worker = request.app.state.models.asked(name)
    courses: Courses = request.app.state.courses
    chosen = text or held_out(pipeline) or pipeline.example("a")
    pipeline.check(chosen)
    async with place(request, worker) as ticket:
        worker.put(Reading(ticket, [chosen], lambda texts: [courses.of(pipeline, one) for one in texts]))
        (course,) = await ticket.done()
    return Answer(course, headers={"cache-control": "no-store"})
