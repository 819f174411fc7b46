"""On a socket: clients that hang up, dawdle or talk nonsense, and a server that is told to stop."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2 as httpx
import pytest
from served import KEY, folder, listening, over, pipeline, plug, request, rest, serving, stepped, until

from regard.cli import main
from regard.decode.engine import Engine, Event
from regard.errors import ConfigError
from regard.serve.address import bind, is_every, is_loopback
from regard.serve.patience import LINGER, Patient
from regard.view.contract import page_files

LONG = {"input": "twenty-three", "shortest": 20, "longest": 20, "beam": 1}
HEAD = f"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\n".encode()


def test_a_connection_is_used_again_and_again() -> None:
    (expected,) = pipeline("rewrite").ask(["five"])
    with serving("rewrite") as served, listening(served) as server, over(server) as asking:
        for _ in range(3):
            reply = asking.post("/v1/predict", json={"input": "five"}).json()
            assert reply["answers"][0]["answers"][0]["text"] == expected.text
        assert asking.get("/", params={"token": KEY}).text.startswith("<!doctype html>")
        assert len(server.server_state.connections) == 1


def test_whoever_hangs_up_is_forgotten() -> None:
    engine = stepped()
    with serving("rewrite", engine=engine) as served, listening(served) as server:
        with plug(server) as line:
            line.sendall(request(LONG))
            asyncio.run(until(lambda: len(served.worker.live) == 1))
        asyncio.run(until(lambda: all(job.ticket.left for job, _ in served.worker.live.values())))
        engine.allowed.release()
        asyncio.run(until(lambda: served.worker.idle))
        assert served.worker.engine.live == ()
        assert served.metrics.steps.total() == 1
        asyncio.run(until(lambda: served.metrics.requests.total(code="499") == 1))


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /v1/predict HT",
        HEAD,
        HEAD + b"content-length: 100\r\n\r\n{",
        HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\n{",
        request({"input": "five"}) + b"GET",
    ],
    ids=["nothing", "half a line", "half a head", "half a body", "half a chunk", "half of a second request"],
)
def test_what_does_not_come_is_not_waited_for(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Patient, "patience", 0.3)
    with serving("rewrite") as served, listening(served) as server, plug(server) as line:
        line.sendall(sent)
        began = time.monotonic()
        rest(line)
        assert time.monotonic() - began < 3


def test_whoever_does_not_take_the_answer_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Patient, "patience", 0.3)
    with serving("rewrite") as served, listening(served) as server, plug(server) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        largest = max(page_files().items(), key=lambda file: len(file[1]))[0]
        asked = f"GET /{largest} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
        line.setblocking(False)
        end = time.monotonic() + 10
        while time.monotonic() < end and (not server.server_state.total_requests or server.server_state.connections):
            try:
                line.send(asked * 50)
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                break
        asyncio.run(until(lambda: not server.server_state.connections))


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        HEAD + b"content-length: x\r\n\r\n",
        HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\n{}",
        HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=lambda sent: ascii(sent)[-30:],
)
def test_what_is_no_http_is_told_so(sent: bytes) -> None:
    with serving("rewrite") as served, listening(served) as server, plug(server) as line:
        line.sendall(sent)
        head, _, body = rest(line).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(body)["error"]["message"] == "this is no HTTP/1.1; ask with an HTTP client"
        with over(server) as asking:
            assert asking.get("/healthz").status_code == 200


def test_a_body_without_end_is_cut_short() -> None:
    def body() -> Iterator[bytes]:
        while True:
            yield b"x" * 65_536

    with serving("rewrite") as served, listening(served) as server, over(server) as asking:
        began = time.monotonic()
        with suppress(httpx.TransportError):  # closed in the middle of a sentence, if it does not listen
            assert asking.post("/v1/predict", content=body()).status_code == 413
        assert time.monotonic() - began < 3 * LINGER
        assert served.app.held == 0
        assert asking.get("/healthz").status_code == 200


def ask_for_long(asking: httpx.Client, found: list[Any]) -> Thread:
    thread = Thread(target=lambda: found.append(asking.post("/v1/predict", json=LONG)))
    thread.start()
    return thread


def test_told_to_stop_it_finishes_what_it_has_accepted() -> None:
    engine, found = stepped(), list[Any]()
    with serving("rewrite", engine=engine) as served, listening(served) as server, over(server) as asking:
        thread = ask_for_long(asking, found)
        asyncio.run(until(lambda: len(served.worker.live) == 1))
        server.handle_exit(signal.SIGTERM, None)
        with over(server) as another:
            assert another.post("/v1/predict", json=LONG).status_code == 503
            assert another.get("/readyz").status_code == 503
        engine.allowed.release(100)
        thread.join(10)
        assert found[0].status_code == 200
        server.thread.join(10)  # type: ignore[attr-defined]
        assert not server.thread.is_alive()  # type: ignore[attr-defined]
        with pytest.raises(httpx.ConnectError), over(server) as another:
            another.get("/healthz")


def test_what_takes_too_long_to_finish_is_told_so() -> None:
    class Slow(Engine):
        def step(self) -> list[Event]:
            time.sleep(0.1)
            return super().step()

    found = list[Any]()
    with serving("rewrite", engine=Slow) as served, listening(served, grace=0.3) as server, over(server) as asking:
        thread = ask_for_long(asking, found)
        asyncio.run(until(lambda: len(served.worker.live) == 1))
        server.handle_exit(signal.SIGTERM, None)
        server.thread.join(10)  # type: ignore[attr-defined]
        thread.join(10)
    assert found[0].status_code == 503


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what was under way is just dropped
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_told_twice_it_leaves() -> None:
    engine, found = stepped(), list[Any]()
    with serving("rewrite", engine=engine) as served, listening(served) as server, over(server) as asking:
        thread = ask_for_long(asking, found)
        asyncio.run(until(lambda: len(served.worker.live) == 1))
        began = time.monotonic()
        server.handle_exit(signal.SIGTERM, None)
        server.handle_exit(signal.SIGTERM, None)
        server.thread.join(10)  # type: ignore[attr-defined]
        assert time.monotonic() - began < 5
        engine.allowed.release(100)
        served.models.stop()
        asking.close()
        thread.join(10)


# ---- the verb


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def ready(asking: httpx.Client) -> bool:
    try:
        return asking.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_the_verb_serves_until_it_is_told_to_stop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port, found = free_port(), list[Any]()
    monkeypatch.setenv("REGARD_API_KEY", KEY)

    def ask() -> None:
        key, end = {"authorization": f"Bearer {KEY}"}, time.monotonic() + 15
        try:
            with httpx.Client(base_url=f"http://localhost:{port}", headers=key) as asking:
                while time.monotonic() < end and not ready(asking):
                    time.sleep(0.02)
                found.append(asking.post("/v1/predict", json={"input": "five"}))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = Thread(target=ask)
    thread.start()
    assert main(["serve", str(folder("rewrite")), "--port", str(port), "--device", "cpu"]) == 0
    thread.join()
    assert found[0].status_code == 200
    said = capsys.readouterr()
    assert said.out == f"http://127.0.0.1:{port}/\n", "a key that was given is not shown"
    assert said.err.startswith("your key goes behind the address of the page, as ?token=…, or into the header Author")
    assert f"{folder('rewrite').name} is ready" in said.err.splitlines()


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ([], 2, "which run? Name its folder, for example runs/demo"),
        (["x", "--host", "0.0.0.0"], 2, "--host 0.0.0.0 can be reached from other machines; give a key with --api-key"),
        (["x", "--api-key", "schlüssel"], 2, "--api-key: a header holds plain letters and digits alone"),
        (["x", "--prot", "1"], 2, "prot: no such setting; did you mean 'port'?"),
        (["nowhere", "--port", "0"], 4, "nowhere: no such folder; runs are made by: regard train RECIPE --out nowhere"),
        (["a/x", "b/x", "--port", "0"], 2, "b/x: another run that is served is called 'x' too; rename one of them"),
    ],
    ids=str,
)
def test_the_verb_says_what_is_wrong(
    words: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REGARD_API_KEY", raising=False)
    assert main(["serve", *words]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"regard: {sentence}")


def test_a_port_that_is_taken_is_passed_over_unless_it_was_asked_for() -> None:
    with bind("127.0.0.1", 0, exactly=False) as first:
        first.listen()
        port = first.getsockname()[1]
        with bind("127.0.0.1", port, exactly=False) as second:
            assert second.getsockname()[1] > port
        with pytest.raises(
            ConfigError, match=rf"^--port {port}: cannot listen there on 127\.0\.0\.1 \(.*choose another"
        ):
            bind("127.0.0.1", port, exactly=True)


def test_what_is_sent_goes_at_once() -> None:
    """A short answer on a connection that stays open does not wait until what came before it is acknowledged."""
    with serving("rewrite") as served, listening(served) as server, over(server) as asking:
        asking.get("/healthz")
        (connection,) = server.server_state.connections
        line = connection.transport.get_extra_info("socket")
        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        took = []
        for _ in range(20):
            began = time.monotonic()
            asking.get("/healthz")
            took.append(time.monotonic() - began)
        assert min(took) < 0.03


def test_which_addresses_others_can_reach() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "192.168.1.2", "::", "example.org")] == [False] * 4
    assert [is_every(host) for host in ("0.0.0.0", "::", "127.0.0.1", "example.org")] == [True, True, False, False]


def test_help_is_instant() -> None:
    """Nothing heavy is imported for it."""
    source = Path(__file__).parents[2] / "regard" / "cli" / "serving.py"
    top = [line for line in source.read_text("utf-8").splitlines() if line.startswith(("import ", "from "))]
    assert not [line for line in top if "torch" in line or "fastapi" in line or "regard.serve.app" in line]
