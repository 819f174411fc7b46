"""The routes. Each is short: find the model, take a place, put the work into it, shape the answer."""

from __future__ import annotations

import base64
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from typing import Any

import numpy as np
from fastapi import APIRouter, FastAPI, Request, Response
from starlette.exceptions import HTTPException

from regard import __version__
from regard.errors import ConfigError
from regard.pipeline.base import Pipeline
from regard.pipeline.language import Writer
from regard.serve import schema, trace
from regard.serve.completions import Completing
from regard.serve.events import Events
from regard.serve.front import aside, packed, place
from regard.serve.guard import LOOPBACK, Guard, Limits
from regard.serve.metrics import Metrics
from regard.serve.models import Models
from regard.serve.queue import Ticket, Worker, Writing
from regard.serve.reading import asking, embedding
from regard.serve.refusal import Refusal, draining, loading, nothing_here
from regard.serve.strict import REFUSALS, Answer, Strict, told
from regard.serve.training import Courses
from regard.serve.writing import check_work, question, writes
from regard.view import contract

router = APIRouter(route_class=Strict, responses=REFUSALS)


def application(
    models: Models,
    metrics: Metrics,
    *,
    key: str,
    names: Collection[str] = LOOPBACK,
    limits: Limits = Limits(),
) -> Guard:
    """The server without its socket: an ASGI application."""
    app = FastAPI(title="Regard", version=__version__, docs_url=None, redoc_url=None)
    app.state.models, app.state.metrics = models, metrics
    app.state.traces, app.state.courses = trace.Traces(), Courses()
    app.include_router(router)  # looked through in this order: what is asked most comes first
    app.include_router(trace.router)
    for name in contract.page_files():
        app.add_route("/" if name == "index.html" else f"/{name}", page(name), include_in_schema=False)
    app.add_exception_handler(HTTPException, _no_route)
    return Guard(app, key=key, names=names, limits=limits, metrics=metrics, check_room=models.check_room)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code != 405:
        return told(nothing_here())
    allowed = (error.headers or {}).get("Allow", "")
    answer = told(Refusal(405, "no_such_method", f"{request.method} is not for this address; use {allowed}"))
    answer.headers["allow"] = allowed
    return answer


# ---- asking


@router.post("/v1/predict", response_model=schema.Predicted)
async def predict(asked: schema.Predict, request: Request) -> Response:
    """Whatever the run's task is: a text or several in, as many answers out."""
    served, pipeline, worker = request.app.state.models.asked(asked.model)
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    how = asked.model_dump(exclude_none=True, exclude={"model", "input"})
    pipeline.refuse_unknown(how)
    answer = _written if writes(pipeline) and not how.keys() & {"embed", "choices"} else _read
    async with place(request, worker) as ticket:
        answers = await answer(pipeline, worker, ticket, texts, how)
    number = f"pred-{secrets.token_hex(12)}"
    return Answer({"id": number, "model": served.name, "task": pipeline.recipe.task.name, "answers": answers})


async def _written(
    pipeline: Pipeline, worker: Worker, ticket: Ticket, texts: list[str], how: dict[str, Any]
) -> list[dict[str, Any]]:
    prefix = how.pop("prefix", "")
    settings = pipeline.decoding(**how)
    questions = await aside(
        sum(map(len, texts)),
        lambda: [question(pipeline, text, settings, prefix=prefix, number=n) for n, text in enumerate(texts, 1)],
    )
    asks = [ask for one in questions for ask in one.asks]
    check_work(asks, worker.rows)
    if not asks:  # nothing answers nothing
        return [one.json([]) for one in questions]
    worker.put(Writing(ticket, asks, [None] * len(asks)))
    found = iter(await ticket.done())
    return [one.json([next(found) for _ in one.asks]) for one in questions]


async def _read(
    pipeline: Pipeline, worker: Worker, ticket: Ticket, texts: list[str], how: dict[str, Any]
) -> list[dict[str, Any]]:
    worker.put(await aside(sum(map(len, texts)), lambda: asking(pipeline, ticket, texts, how)))
    found: list[dict[str, Any]] = await ticket.done()
    return found


EVENTS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}


@router.post("/v1/completions", response_model=schema.Completion, responses=EVENTS)
async def completions(asked: schema.Completions, request: Request) -> Response:
    """Goes on with a prompt; with stream = true, while it is written."""
    served, pipeline, worker = request.app.state.models.asked(asked.model)
    if not isinstance(pipeline, Writer):
        task = pipeline.recipe.task.name
        raise ConfigError(f"{served.name} has the task {task!r} and does not go on with a text; ask it by /v1/predict")
    completing = Completing(asked, served, pipeline, worker)
    if not completing.stream:
        return Answer(await completing.whole(request))
    pieces = completing.pieces(request)
    first = await anext(pieces)  # what is refused is refused with its status, before anything is sent
    return Events(_chain(first, pieces))


async def _chain(first: dict[str, Any], others: AsyncIterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    yield first
    async for event in others:
        yield event


@router.post("/v1/embeddings", response_model=schema.EmbeddingList)
async def embeddings(asked: schema.Embeddings, request: Request) -> Response:
    """A vector for each text, of length one."""
    served, pipeline, worker = request.app.state.models.asked(asked.model)
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    async with place(request, worker) as ticket:
        job, tokens = await aside(
            sum(map(len, texts)), lambda: embedding(pipeline, ticket, texts, asked.pooling or "mean")
        )
        worker.put(job)
        vectors = await ticket.done()
    coded = [_base64(vector) for vector in vectors] if asked.encoding_format == "base64" else vectors
    data = [{"object": "embedding", "index": number, "embedding": vector} for number, vector in enumerate(coded)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return Answer({"object": "list", "data": data, "model": served.name, "usage": usage})


def _base64(vector: list[float]) -> str:
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()


# ---- what runs there are, and how they are


@router.get("/v1/models", response_model=schema.ModelList)
async def models(request: Request) -> Response:
    return Answer({"object": "list", "data": [model.json() for model in request.app.state.models]})


@router.get("/v1/models/{name}", response_model=schema.Model)
async def model(name: str, request: Request) -> Response:
    return Answer(request.app.state.models.find(name).json())


@router.get("/healthz", response_model=schema.Health)
async def healthz() -> Response:
    """The process lives."""
    return Answer({"status": "alive"})


@router.get("/readyz", response_model=schema.Health)
async def readyz(request: Request) -> Response:
    """Every model is loaded, and the server is not about to stop."""
    served: Models = request.app.state.models
    if not served.open:
        raise draining()
    for one in served:
        if not one.ready:
            raise loading(one.name)
    return Answer({"status": "ready"})


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    return Response(request.app.state.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


# ---- the page


def page(name: str) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    """From memory, and by its own names alone: nothing that a client writes becomes a path."""
    data, kind = contract.page_file(name)

    async def answer(request: Request) -> Response:
        return await packed(request, data, kind, {"cache-control": "no-cache"})

    return answer
