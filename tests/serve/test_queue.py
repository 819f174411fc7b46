"""The waiting room: who comes in, who is turned away, who leaves before the next step, and who goes on."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from served import KEY, Served, client, folder, pipeline, scope_of, serving, stepped, until
from torch import nn

from regard.decode.engine import Engine, Event
from regard.errors import DataError
from regard.models import build
from regard.serve import training
from regard.serve.guard import Limits
from regard.serve.metrics import Metrics
from regard.serve.queue import Heed, Reading, Worker
from regard.training.checkpoint import found, step_of

LONG = {"input": "twenty-three", "shortest": 20, "longest": 20, "beam": 1}
SHORT = {"input": "five", "longest": 3, "beam": 1}


async def post(asking: httpx.AsyncClient, body: dict[str, Any]) -> httpx.Response:
    return await asking.post("/v1/predict", json=body)


def time_is_over(served: Served) -> None:
    """Of all that is live, however long the machine took to come here."""
    for job, _ in served.worker.live.values():
        job.ticket.deadline = time.monotonic()


def test_a_full_waiting_room_turns_away_and_says_when_to_come_back() -> None:
    engine = stepped()
    with serving("rewrite", rows=1, waiting=2, engine=engine) as served:

        async def work(asking: httpx.AsyncClient) -> list[httpx.Response]:
            tasks = [asyncio.create_task(post(asking, LONG))]
            await until(lambda: len(served.worker.live) == 1)
            tasks += [asyncio.create_task(post(asking, SHORT)) for _ in range(2)]
            await until(lambda: len(served.worker.waiting) == 2)
            over = await post(asking, SHORT)
            engine.allowed.release(100)
            return [over, *await asyncio.gather(*tasks)]

        over, *others = served.run(work)
    assert over.status_code == 429
    assert over.headers["retry-after"] == "1"
    assert over.json()["error"]["message"] == "2 requests wait already; try again in 1 s"
    assert [reply.status_code for reply in others] == [200, 200, 200]


def test_rows_enter_and_leave_in_mid_decode() -> None:
    engine = stepped()
    with serving("rewrite", rows=2, engine=engine) as served:

        async def work(asking: httpx.AsyncClient) -> tuple[bool, list[httpx.Response]]:
            long = asyncio.create_task(post(asking, LONG))
            await until(lambda: len(served.worker.live) == 1)
            engine.allowed.release(5)
            await until(lambda: served.metrics.steps.total() == 5)
            short = asyncio.create_task(post(asking, SHORT))
            await until(lambda: len(served.worker.waiting) == 1)
            engine.allowed.release(5)
            first = await short
            overtaken = not long.done()
            engine.allowed.release(30)
            return overtaken, [await long, first]

        overtaken, replies = served.run(work)
    assert overtaken
    for body, reply in zip((LONG, SHORT), replies, strict=True):
        how = {name: value for name, value in body.items() if name != "input"}
        (expected,) = pipeline("rewrite").ask([body["input"]], **how)
        assert [one["text"] for one in reply.json()["answers"][0]["answers"]] == [expected.text]


def test_after_the_deadline_the_work_is_stopped() -> None:
    engine = stepped()
    with serving("rewrite", seconds=20, engine=engine) as served:

        async def work(asking: httpx.AsyncClient) -> httpx.Response:
            task = asyncio.create_task(post(asking, LONG))
            await until(lambda: len(served.worker.live) == 1)
            time_is_over(served)
            engine.allowed.release()
            return await task

        reply = served.run(work)
        assert served.worker.engine.live == ()
        assert served.metrics.steps.total() == 1
        assert served.metrics.dropped.total(cause="deadline") == 1
    assert reply.status_code == 504
    assert reply.json()["error"]["message"].startswith("no answer within 20 s, so the work was stopped; ask for less")


def test_a_model_that_hangs_is_not_waited_for() -> None:
    engine = stepped()
    with serving("rewrite", seconds=0.1, engine=engine) as served:
        assert served.ask("POST", "/v1/predict", json=LONG).status_code == 504
        engine.allowed.release()


@asynccontextmanager
async def raw(
    served: Served, path: str, body: dict[str, Any], query: bytes = b""
) -> AsyncIterator[tuple[asyncio.Event, list[Any]]]:
    """A request without a client: the event lets it hang up, the list has what it was sent."""
    left, sent = asyncio.Event(), list[Any]()
    messages = iter([{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}])

    async def receive() -> Any:
        for message in messages:
            return message
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = {"host": "localhost", "authorization": f"Bearer {KEY}", "content-type": "application/json"}
    scope = scope_of("GET" if query else "POST", path, headers, query)
    task = asyncio.create_task(served.app(scope, receive, send))  # type: ignore[arg-type]
    try:
        yield left, sent
    finally:
        await asyncio.wait_for(task, 10)


@pytest.mark.parametrize("stream", [False, True])
def test_whoever_hangs_up_frees_its_rows_before_the_next_step(stream: bool) -> None:
    engine = stepped()
    path, body = ("/v1/completions", {"prompt": "the cat", "max_tokens": 40, "n": 3, "seed": 1, "stream": True})
    path, body = (path, body) if stream else ("/v1/predict", LONG)
    with serving("language" if stream else "rewrite", engine=engine) as served:

        async def work() -> None:
            async with raw(served, path, body) as (left, _):
                await until(lambda: len(served.worker.live) == (3 if stream else 1))
                engine.allowed.release(2)
                await until(lambda: served.metrics.steps.total() == 2)
                left.set()
                await until(lambda: all(job.ticket.left for job, _ in served.worker.live.values()))
                engine.allowed.release()  # the step that it is in
                await until(lambda: served.worker.idle)

        asyncio.run(work())
        assert served.worker.engine.live == ()
        assert served.metrics.steps.total() == 3
        assert served.metrics.dropped.total(cause="gone") == 1
        engine.allowed.release(100)
        answer = {"input": "the", "longest": 3} if stream else SHORT
        assert served.ask("POST", "/v1/predict", json=answer).status_code == 200


def test_events_come_while_the_model_is_at_work() -> None:
    engine = stepped()
    with serving("language", engine=engine) as served:

        async def work() -> tuple[int, list[Any]]:
            body = {"prompt": "the cat", "max_tokens": 5, "temperature": 0, "stream": True}
            async with raw(served, "/v1/completions", body) as (_, sent):
                engine.allowed.release(2)
                await until(lambda: len(sent) == 3)
                early = len(sent)
                engine.allowed.release(10)
            return early, sent

        early, sent = asyncio.run(work())
    assert early == 3, "the head, and an event for each of two tokens"
    assert sent[-1]["body"] == b"data: [DONE]\n\n"


def test_a_deadline_in_mid_stream_is_told_as_an_event() -> None:
    engine = stepped()
    with serving("language", engine=engine) as served:

        async def work() -> list[Any]:
            body = {"prompt": "the cat", "temperature": 0, "stream": True}  # what is drawn may be the end at once
            async with raw(served, "/v1/completions", body) as (_, sent):
                engine.allowed.release(1)
                await until(lambda: len(sent) == 2)
                time_is_over(served)
                engine.allowed.release(1)
            return sent

        sent = asyncio.run(work())
    assert sent[0]["status"] == 200
    assert json.loads(sent[-1]["body"].removeprefix(b"data: "))["error"]["code"] == "deadline"


@pytest.mark.parametrize("way", ["step", "event"])
def test_a_failure_is_told_and_the_next_request_is_answered(way: str, caplog: pytest.LogCaptureFixture) -> None:
    failures = [RuntimeError("out of memory")]

    class Failing(Engine):
        def step(self) -> list[Event]:
            if failures and way == "step":
                raise failures.pop()
            events = super().step()
            return [Event(events[0].live, (), error=failures.pop()), *events[1:]] if failures else events

    with serving("rewrite", engine=Failing) as served, caplog.at_level(logging.CRITICAL, "regard.serve"):
        first = served.ask("POST", "/v1/predict", json=LONG)
        second = served.ask("POST", "/v1/predict", json=LONG)
        assert served.worker.idle
        assert served.worker.engine.live == ()
        assert served.metrics.fallen.total() == 1
        assert served.worker.is_alive()
    assert first.status_code == 503
    assert first.json()["error"]["message"] == "the model failed and was set up anew; ask again"
    assert second.status_code == 200


def test_draining_finishes_what_was_accepted_and_takes_nothing_new() -> None:
    engine = stepped()
    with serving("rewrite", engine=engine) as served:

        async def work(asking: httpx.AsyncClient) -> list[httpx.Response]:
            accepted = asyncio.create_task(post(asking, LONG))
            await until(lambda: len(served.worker.live) == 1)
            served.models.drain()
            refused = [await post(asking, SHORT), await asking.get("/readyz"), await asking.get("/healthz")]
            engine.allowed.release(100)
            return [*refused, await accepted]

        late, ready, alive, accepted = served.run(work)
    assert [late.status_code, ready.status_code] == [503, 503]
    assert late.json()["error"]["message"].startswith("the server is about to stop and takes nothing new")
    assert (alive.status_code, accepted.status_code) == (200, 200)


def test_stopping_tells_whoever_waits() -> None:
    engine = stepped()
    with serving("rewrite", rows=1, engine=engine) as served:

        async def work(asking: httpx.AsyncClient) -> list[httpx.Response]:
            tasks = [asyncio.create_task(post(asking, LONG)) for _ in range(3)]
            await until(lambda: len(served.worker.live) == 1 and len(served.worker.waiting) == 2)
            stopping = asyncio.create_task(asyncio.to_thread(served.models.stop))
            await until(lambda: served.worker.over)
            engine.allowed.release(1)  # the step that it is in
            await stopping
            return await asyncio.gather(*tasks)

        assert [reply.status_code for reply in served.run(work)] == [503] * 3


def test_a_server_answers_before_its_models_are_loaded() -> None:
    served = Served("rewrite")
    reply = served.ask("POST", "/v1/predict", json=SHORT)
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
    assert "is being loaded; try again in a second" in reply.json()["error"]["message"]
    assert served.ask("GET", "/readyz").status_code == 503
    assert served.ask("GET", "/healthz").status_code == 200
    assert served.ask("GET", "/v1/models").json()["data"][0]["ready"] is False


def test_what_is_alike_is_read_together_and_what_cannot_be_read_fails_alone() -> None:
    batches: list[list[str]] = []

    def read(texts: Sequence[str], heed: Heed) -> list[str]:
        batches.append(list(texts))
        if "bad" in texts:
            raise DataError("this one cannot be read; write another")
        return [text.upper() for text in texts]

    async def work() -> list[Any]:
        worker = Worker("reader", None, waiting=9, seconds=5, metrics=Metrics())
        tickets = [worker.enter() for _ in range(5)]
        asked = [["a", "b"], ["bad"], ["c"], ["d"], ["e"] * 70]
        for ticket, texts, key in zip(tickets, asked, ["k", "k", "other", "k", "k"], strict=True):
            worker.put(Reading(ticket, texts, read, key))
        worker.start()
        found = await asyncio.gather(*(ticket.done() for ticket in tickets), return_exceptions=True)
        worker.stop()
        return found

    first, bad, other, last, many = asyncio.run(work())
    assert (first, other, last, many) == (["A", "B"], ["C"], ["D"], ["E"] * 70)
    assert isinstance(bad, DataError)
    assert batches[0] == ["a", "b", "bad", "d", *["e"] * 60], "as many as are read at once"


def test_a_failure_in_reading_is_told_counted_and_over(caplog: pytest.LogCaptureFixture) -> None:
    with serving("classify") as served, caplog.at_level(logging.CRITICAL, "regard.serve"):

        def fail(*_: Any) -> None:
            hook.remove()
            raise RuntimeError("out of memory")

        hook = served.models.find(None).pipeline.model.register_forward_pre_hook(fail)
        first, second = (served.ask("POST", "/v1/predict", json={"input": "the cat sat"}) for _ in range(2))
        assert served.metrics.fallen.total() == 1
        assert served.worker.is_alive()
    assert (first.status_code, second.status_code) == (503, 200)


def test_who_has_much_to_read_lets_others_go_between() -> None:
    order: list[str] = []

    def read(texts: Sequence[str], heed: Heed) -> Sequence[str]:
        order.extend(texts)
        return texts

    async def work() -> list[Any]:
        worker = Worker("reader", None, waiting=9, seconds=5, metrics=Metrics())
        tickets = [worker.enter() for _ in range(3)]
        for ticket, texts in zip(tickets, (["a1", "a2", "a3"], ["b1", "b2"], ["c1"]), strict=True):
            worker.put(Reading(ticket, texts, read, at_once=1))
        worker.start()
        found = await asyncio.gather(*(ticket.done() for ticket in tickets))
        worker.stop()
        return found

    assert asyncio.run(work()) == [["a1", "a2", "a3"], ["b1", "b2"], ["c1"]]
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]


# ---- what is read in one go is stopped as well

WATCHED = {"input": "five", "shortest": 200, "longest": 200}


class Slow:
    """Words that take their time; `calls` says how often the model has been asked for some."""

    def __init__(self, served: Served) -> None:
        self.calls = 0
        pipeline = served.models.find(None).pipeline
        assert pipeline is not None
        for part in pipeline.model.modules():
            if isinstance(part, nn.Embedding):
                part.register_forward_pre_hook(self.wait)

    def wait(self, *_: Any) -> None:
        self.calls += 1
        time.sleep(0.02)


def watched(name: str) -> tuple[str, dict[str, Any]]:
    """What takes a slow model four seconds, or with embeddings of many texts two."""
    return {
        "rewrite": ("/v1/trace", WATCHED),
        "recurrent": ("/v1/trace", WATCHED),
        "language": ("/v1/predict", {"input": ["the"] * 60, "choices": ["a", "b"] * 20}),
    }[name]


WATCHES = pytest.mark.parametrize("name", ["rewrite", "recurrent", "language"])


@WATCHES
def test_what_is_being_read_stops_at_the_deadline(name: str) -> None:
    path, body = watched(name)
    with serving(name, seconds=0.4) as served:
        slow = Slow(served)
        assert served.ask("POST", path, json=body).status_code == 504
        asyncio.run(until(lambda: served.worker.idle))
        assert 0 < slow.calls < 50
        assert served.metrics.dropped.total(cause="deadline") == 1


@WATCHES
def test_what_is_being_read_stops_when_its_client_has_gone(name: str) -> None:
    path, body = watched(name)
    with serving(name) as served:
        slow = Slow(served)

        async def work() -> None:
            async with raw(served, path, body) as (left, _):
                await until(lambda: slow.calls > 2)
                left.set()
                await until(lambda: served.worker.idle)

        asyncio.run(work())
        assert slow.calls < 50
        assert served.metrics.dropped.total(cause="gone") == 1


@WATCHES
def test_what_is_being_read_stops_when_the_server_does(name: str) -> None:
    path, body = watched(name)
    with serving(name) as served:
        slow = Slow(served)

        async def work(asking: httpx.AsyncClient) -> httpx.Response:
            task = asyncio.create_task(asking.post(path, json=body))
            await until(lambda: slow.calls > 2)
            await asyncio.to_thread(served.models.stop)
            return await task

        began = time.monotonic()
        assert served.run(work).status_code == 503
        assert not served.worker.is_alive()
        assert time.monotonic() - began < 2


def test_the_course_of_a_training_stops_with_its_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint is a model of its own: each stops, and those that follow do not begin."""
    run = Path(shutil.copytree(folder("rewrite"), tmp_path / "run"))
    first, *_ = found(run / "checkpoints")
    for step in range(10, 20):
        shutil.copytree(first, first.with_name(f"step-{step:08d}"))
    built: list[nn.Module] = []

    def slow(system: str, config: Any) -> nn.Module:
        built.append(build(system, config))
        if len(built) == 2:
            built[1].words.register_forward_pre_hook(lambda *_: time.sleep(0.1))  # type: ignore[operator, union-attr]
        return built[-1]

    monkeypatch.setattr(training, "build", slow)
    monkeypatch.setattr("served.folder", lambda name: run)
    with serving("run") as served:

        async def work() -> None:
            async with raw(served, "/v1/runs/run/training", {}, b"text=five") as (left, _):
                await until(lambda: len(built) == 2)
                left.set()
                await until(lambda: served.worker.idle, 0.5)

        asyncio.run(work())
        assert len(built) == 2
        assert served.metrics.dropped.total(cause="gone") == 1
        course = served.ask("GET", "/v1/runs/run/training?text=five").json()
    assert [look["step"] for look in course["checkpoints"]] == [step_of(path) for path in found(run / "checkpoints")]


# ---- the door, while much is going on


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async def work() -> httpx.Response:
        served = Served("rewrite", limits=Limits(seconds=0.05))

        async def body() -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.sleep(5)

        async with client(served.app) as asking:
            return await asking.post("/v1/predict", content=body(), headers={"content-type": "application/json"})

    reply = asyncio.run(work())
    assert reply.status_code == 408
    assert reply.json()["error"]["message"].startswith("the body was not here within 0.05 s; send it faster")


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        (Limits(at_once=1), "1 requests are under way; try again in a second"),
        (Limits(held=600), "the bodies of other requests take all the memory"),
    ],
)
def test_much_at_once_is_turned_away(limits: Limits, sentence: str) -> None:
    engine = stepped()
    with serving("rewrite", engine=engine, limits=limits) as served:
        body = {**LONG, "input": "five " * 80}

        async def work(asking: httpx.AsyncClient) -> list[httpx.Response]:
            first = asyncio.create_task(post(asking, body))
            await until(lambda: len(served.worker.live) == 1)
            over = await post(asking, body)
            healthy = await asking.get("/healthz")
            engine.allowed.release(100)
            return [over, healthy, await first]

        over, healthy, first = served.run(work)
        assert served.app.held == 0
        assert served.app.under_way == 0
    assert (over.status_code, healthy.status_code, first.status_code) == (429, 200, 200)
    assert over.json()["error"]["message"].startswith(sentence)
    assert over.headers["retry-after"] == "1"
