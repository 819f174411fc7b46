"""What the page asks for: a trace is made once and kept for a while; its parts are immutable, small, and on demand."""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from regard.core.attention import Attention
from regard.decode.record import Record
from regard.errors import ConfigError
from regard.pipeline.base import Pipeline
from regard.pipeline.rewrite import Rewriter
from regard.serve.front import aside, packed, place
from regard.serve.queue import Heed, Reading
from regard.serve.reading import count, heeding
from regard.serve.refusal import Refusal
from regard.serve.schema import Looked
from regard.serve.strict import REFUSALS, Answer, Strict
from regard.serve.training import Courses, left_by, log_of, shown
from regard.serve.writing import check_work, question, writes
from regard.view import contract
from regard.view.capture import Trace

ROOM = 256 << 20  # bytes of all traces
MOST_KEPT = 1 << 26  # numbers and letters of one trace while it is made
NODE = 600  # what a candidate takes besides its words, in either
HOUR = 3600.0

router = APIRouter(route_class=Strict, responses=REFUSALS)
BYTES: dict[int | str, dict[str, Any]] = {200: {"content": {"application/octet-stream": {}}}}

Id = Annotated[str, Path(max_length=64)]
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
    nodes = trace.tree["nodes"] if trace.tree else []
    return sum(array.nbytes for array in arrays) + sum(NODE + len(node["text"]) for node in nodes)


@router.post("/v1/trace")
async def make(asked: Looked, request: Request) -> Response:
    """Watches a model while it answers; heads can be silenced, words and looks forced."""
    model, pipeline, worker = request.app.state.models.asked(asked.model)
    how = asked.model_dump(exclude_none=True, exclude={"model", "input", "silence", "force"})
    force = asked.force.model_dump(exclude_none=True) if asked.force else {}
    plan = {int(query): key for query, key in force.get("look", {}).items()}

    def look(texts: Sequence[str], heed: Heed) -> list[Trace]:
        with heeding(pipeline.model, heed):
            found = [contract.trace_of(pipeline, text, silence=asked.silence, force=force, **how) for text in texts]
        for trace in found:
            check_written(plan, steps_of(trace))
        return found

    async with place(request, worker) as ticket:
        await aside(len(asked.input), lambda: check_looking(pipeline, asked.input, how, worker.rows, plan))
        worker.put(Reading(ticket, [asked.input], look))
        (trace,) = await ticket.done()
    id = await asyncio.to_thread(contract.digest, trace)
    request.app.state.traces.put(id, trace, model.name)
    return Answer(_header(id, trace, model.name), headers={"cache-control": "no-store"})


def check_looking(
    pipeline: Pipeline, text: str, how: Mapping[str, Any], rows: int, plan: Mapping[int, int] = MappingProxyType({})
) -> None:
    """As much as /v1/predict may be asked for, and not more than there is room for: weights for each head and each pair
    of tokens, and all candidates with their words. By `plan`, positions written must look at positions read."""
    heads = sum(part.heads for part in pipeline.model.modules() if isinstance(part, Attention))
    if not writes(pipeline):
        pipeline.check(text)
        (length,) = count(pipeline, [text])
        _check_kept(heads * length**2)
        return
    settings = pipeline.decoding(**how)
    asked = question(pipeline, text, settings.model_copy(update={"coverage": 0.0}))
    check_work(asked.asks, rows)
    for ask in asked.asks[:1]:
        width, longest = ask.how.keep, asked.read + ask.limit
        candidates = settings.expand or max(width, Record.wide)
        _check_kept(width * ask.limit * (heads * longest + candidates * (NODE + longest)))
        if isinstance(pipeline, Rewriter):
            check_written(plan, ask.limit)
            check_read(plan, asked.read)


def _check_kept(numbers: int) -> None:
    if numbers > MOST_KEPT:
        what = f"{numbers:,} weights and words might have to be kept, and there is room for {MOST_KEPT:,}"
        raise Refusal(422, "too_much", f"{what}; look at a shorter text, or write a smaller beam or longest")


def check_written(plan: Mapping[int, int], steps: int) -> None:
    for query in plan:
        if query >= steps:
            what = f"the answer has no position {query}"
            raise ConfigError(f"force.look: {what}; name one from 0 to {steps - 1}")


def check_read(plan: Mapping[int, int], read: int) -> None:
    for query, key in plan.items():
        if key >= read:
            what = f"position {query} cannot look at {key} in a text of {read} tokens"
            raise ConfigError(f"force.look: {what}; name one from 0 to {read - 1}")


def steps_of(trace: Trace) -> int:
    """Of the search, whichever hypothesis got so far."""
    return len(trace.target) if trace.tree is None else 1 + max(node["step"] for node in trace.tree["nodes"])


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
    data, kind = await asyncio.to_thread(lambda: _written(make(trace)))
    return await packed(request, data, kind, headers)


def _written(found: bytes | dict[str, Any]) -> tuple[bytes, str]:
    if isinstance(found, bytes):
        return found, "application/octet-stream"
    return json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"), "application/json"


@router.get("/v1/runs/{name}/training")
async def training(name: Name, request: Request, text: Annotated[str, Query(max_length=2000)] = "") -> Response:
    """The log of a run, and where the model looked in one text after each checkpoint."""
    _, pipeline, worker = request.app.state.models.asked(name)
    courses: Courses = request.app.state.courses
    about, looks = text or shown(pipeline), [] if text else await asyncio.to_thread(left_by, pipeline)
    if not looks:
        check_looking(pipeline, about, {}, worker.rows)
        async with place(request, worker) as ticket:
            worker.put(courses.looking(ticket, pipeline, text))
            await ticket.done()
        looks = courses.of(pipeline, text)
    course = {"metrics": await asyncio.to_thread(log_of, pipeline), "text": about, "checkpoints": looks}
    return Answer(course, headers={"cache-control": "no-store"})
