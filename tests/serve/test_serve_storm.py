"""The server in a storm: `make storm`. The model is of the demo's size."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any

import pytest
import tiny
from load import Client, Process, Reply, ask, closed, crowd, hold, percentile, process
from served import KEY, folder, request

import regard
from regard.config import merge, read_toml
from regard.data.spoken import spoken
from regard.recipes import find_recipe
from regard.serve.patience import PATIENCE
from regard.view.contract import page_files

pytestmark = [pytest.mark.storm, pytest.mark.timeout(600)]

TEXTS = [source for _, source, _ in spoken(("en", "de"), "test", 60)]
SEARCHES: list[dict[str, Any]] = [{"beam": 1}, {"beam": 4}, {"sample": True, "seed": 1}]
BODIES = [{"input": text, **SEARCHES[number % 3]} for number, text in enumerate(TEXTS)]
GREEDY = [{"input": text, "beam": 1} for text in TEXTS]
SECONDS = 20.0


@cache
def demo() -> Path:
    settings = {"data": {"count": 4000, "held": 8}, "train": {"steps": 150, "evaluate_every": 0, "save_every": 150}}
    return tiny.train(Path(mkdtemp()) / "demo", merge(read_toml(find_recipe("demo")), settings))


@cache
def expected(greedy: bool = False) -> list[str]:
    pipeline = regard.load(demo(), device="cpu")
    bodies = GREEDY if greedy else BODIES
    return [pipeline.ask([body["input"]], **_how(body))[0].json["answers"][0]["text"] for body in bodies]


def _how(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "input"}


def check_answers(found: list[tuple[int, Reply]], greedy: bool = False) -> None:
    """None lost, none doubled, none mixed up."""
    for number, reply in found:
        assert reply.status != 200 or reply.answer == expected(greedy)[number]
    numbers = [reply.headers["x-request-id"] for _, reply in found if reply.status]
    assert len(numbers) == len(set(numbers))


def check_accounts(server: Process, found: list[tuple[int, Reply]], before: Counter[int]) -> None:
    """What was sent is what was answered, counted on both sides."""
    ours = Counter(reply.status for _, reply in found)
    theirs = server.answered()
    theirs.subtract(before)
    assert +theirs == +ours


def test_thirty_two_clients_for_two_minutes() -> None:
    expected()
    with process(demo()) as server:
        idle = percentile([reply.seconds for _, reply in asyncio.run(crowd(server.port, BODIES, 1, 5))], 0.5)
        asyncio.run(crowd(server.port, BODIES, 32, 5))
        before, memory = server.answered(), server.memory()
        found = asyncio.run(crowd(server.port, BODIES, 32, 120))
        check_accounts(server, found, before)
        grown = server.memory() / memory
    check_answers(found)
    assert Counter(reply.status for _, reply in found).keys() == {200}
    took = [reply.seconds for _, reply in found]
    print(f"{len(found)} answers, p50 {percentile(took, 0.5):.3f} s, p99 {percentile(took, 0.99):.3f} s, {grown:.3f}")
    print(f"alone, p50 {idle:.3f} s")
    assert percentile(took, 0.99) <= 3 * idle * 32
    assert grown < 1.02, "memory grows"


def test_thirty_two_at_once_are_quicker_than_one_after_another() -> None:
    """Measured 4 to 5 times as quick; other work on the machine, and clients on the same cores, blur it."""
    expected(greedy=True)
    rates: dict[int, list[float]] = {1: [], 32: []}
    with process(demo()) as server:
        for clients in (32, 1) * 4:
            began = time.monotonic()
            found = asyncio.run(crowd(server.port, GREEDY, clients, 6))
            rates[clients].append(len(found) / (time.monotonic() - began))
            check_answers(found, greedy=True)
            assert {reply.status for _, reply in found} == {200}
    ratio = median(
        many / one for many, one in zip(rates[32][1:], rates[1][1:], strict=True)
    )  # the first are to warm up
    print(f"{median(rates[32]):.0f} answers a second by 32, {median(rates[1]):.0f} by one: {ratio:.2f} times as many")
    assert ratio >= 3


def test_ten_times_as_much_as_it_can_take() -> None:
    """64 answers are written and 64 requests wait, at most; 1,280 clients ask."""
    expected()
    with process(demo(), "--seconds", str(SECONDS), "--rows", "64", "--waiting", "64") as server:
        before = server.answered()
        found = asyncio.run(crowd(server.port, BODIES, 1280, 60))
        calm = asyncio.run(ask(server.port, request(BODIES[0])))
        check_accounts(server, [*found, (0, calm)], before)
    check_answers(found)
    statuses = Counter(reply.status for _, reply in found)
    took = [reply.seconds for _, reply in found if reply.status == 200]
    print(f"{statuses}, accepted p99 {percentile(took, 0.99):.2f} s, then {calm.seconds:.2f} s")
    assert statuses.keys() == {200, 429}
    assert all(int(reply.headers["retry-after"]) >= 1 for _, reply in found if reply.status == 429)
    assert percentile(took, 0.99) <= SECONDS
    assert calm.status == 200
    assert calm.seconds <= 2


def test_two_hundred_hang_up() -> None:
    dice = random.Random(0)
    with process(demo()) as server:

        async def hang_up() -> None:
            await asyncio.sleep(dice.random() * 5)
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            body = {"input": dice.choice(TEXTS), "shortest": 400, "longest": 400, "beam": dice.choice([1, 4])}
            writer.write(request(body))
            await asyncio.sleep(dice.random() * 0.3)
            await closed(writer)

        async def all_of_them() -> None:
            await asyncio.gather(*(hang_up() for _ in range(200)))

        asyncio.run(all_of_them())
        end = time.monotonic() + 10
        while (told := server.metrics())['regard_live{model="demo"}'] or told['regard_waiting{model="demo"}']:
            assert time.monotonic() < end, "somebody is still written to"
            time.sleep(0.05)
        answered = server.answered()
        assert 150 < answered.total() <= 200, "some left before anybody had read what they wanted"
        assert set(answered) <= {200, 429, 499}
        assert answered[499] > 100
        assert asyncio.run(ask(server.port, request(BODIES[0]))).answer == expected()[0]


def test_slow_and_broken_clients_hurt_nobody() -> None:
    head = f"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\n".encode()
    whole = request(BODIES[0])
    largest = max(page_files().items(), key=lambda file: len(file[1]))[0]
    page = f"GET /{largest} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    kinds: list[dict[str, Any]] = [
        {"sent": b""},
        {"sent": b"POST /v1/pre"},
        {"sent": head},
        {"sent": head + b"content-length: 100\r\n\r\n{"},
        {"sent": head + b"transfer-encoding: chunked\r\n\r\n10\r\n{"},
        {"sent": head + b"transfer-encoding: chunked\r\n\r\nzz\r\n"},
        {"sent": b"", "then": head, "pause": 1.0},
        {"sent": head + b"content-length: 100\r\n\r\n", "then": b"{" * 99, "pause": 1.0},
        {"sent": page * 400, "read": False},
        {"sent": whole * 10 + b"GET"},
        {"sent": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"},
        {"sent": b"GET /" + b"a" * 100_000},
    ]
    with process(demo()) as server:

        async def storm() -> tuple[list[float], list[tuple[int, Reply]]]:
            broken = asyncio.gather(*(hold(server.port, **kind) for kind in kinds for _ in range(20)))
            resets = asyncio.to_thread(_reset, server.port, whole, 20)
            found = asyncio.create_task(crowd(server.port, BODIES, 4, 20))
            await resets
            return await broken, await found

        seconds, found = asyncio.run(storm())
        check_answers(found)
        assert Counter(reply.status for _, reply in found).keys() == {200}
        assert max(seconds) < PATIENCE + 10
        took = [reply.seconds for _, reply in found]
        print(f"240 broken clients: closed after {max(seconds):.1f} s; others p99 {percentile(took, 0.99):.2f} s")
        assert percentile(took, 0.99) < 3


def _reset(port: int, sent: bytes, times: int) -> None:
    """Half a request, or a whole one, and then a reset."""
    for number in range(times):
        line = socket.create_connection(("127.0.0.1", port))
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.sendall(sent if number % 2 else sent[:-5])
        line.close()


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_of_150_megabytes_costs_little(announced: bool) -> None:
    size, chunk = 150 << 20, b"x" * (1 << 16)
    form = f"content-length: {size}" if announced else "transfer-encoding: chunked"
    head = f"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\n{form}\r\n\r\n".encode()
    with process(demo()) as server:
        asyncio.run(ask(server.port, request(BODIES[0])))
        before, most, answer = server.memory(), 0, b""
        line = socket.create_connection(("127.0.0.1", server.port))
        line.sendall(head)
        try:
            for _ in range(size // len(chunk)):
                line.sendall(chunk if announced else b"10000\r\n" + chunk + b"\r\n")
                most = max(most, server.memory())
            answer = line.recv(65_536)
        except OSError:
            pass
        line.close()
        most = max(most, server.memory())
        print(f"{(most - before) / 2**20:.1f} MB for a body of 150 MB; {answer[:12]!r}")
        assert most - before < 20 << 20
        assert server.answered()[413] == 1
        assert asyncio.run(ask(server.port, request(BODIES[0]))).status == 200


@pytest.mark.parametrize("time_", range(5))
def test_told_to_stop_under_load_it_answers_all_that_it_took(time_: int) -> None:
    """Whatever was on its way when the signal came gets an answer, or is told that the server is about to stop."""
    with process(demo()) as server:

        async def storm() -> tuple[float, list[tuple[int, Reply]]]:
            load = asyncio.create_task(crowd(server.port, BODIES, 32, 20))
            await asyncio.sleep(1 + time_ / 5)
            told = time.monotonic()
            server.inner.send_signal(signal.SIGTERM)
            return told, await load

        told, found = asyncio.run(storm())
        assert server.inner.wait(40) == 0
    check_answers(found)
    accepted = [reply for _, reply in found if 0 < reply.sent < told]
    assert Counter(reply.status for reply in accepted).keys() <= {200, 503}, "somebody was let down"
    on_the_way = Counter(reply.status for reply in accepted if reply.came > told)
    print(f"{len(accepted)} asked before the signal; on the way then: {dict(on_the_way)}")
    assert on_the_way.total() >= 16
    assert on_the_way[200] >= on_the_way.total() / 2, "what was accepted is finished, not put off"
    assert {reply.status for _, reply in found} <= {200, 503, 0}


def test_two_thousand_cases_of_a_fuzzer() -> None:
    if find_spec("schemathesis") is None:
        pytest.skip("schemathesis is not installed, and no case was tried; it is in [storm]")
    with process(folder("language"), str(folder("masked")), str(demo())) as server:
        url = f"http://127.0.0.1:{server.port}"
        command = [
            sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json?token={KEY}", "--url", url,
            "--header", f"Authorization: Bearer {KEY}", "--max-examples", "60", "--seed", "1", "--continue-on-failure",
            "--exclude-checks", "positive_data_acceptance",  # a model may refuse what the schema of all models allows
        ]  # fmt: skip
        place = Path(mkdtemp())
        (place / "schemathesis.toml").write_text(
            "[checks.negative_data_rejection]\nexpected-statuses = [400, 401, 404, 405, 413, 415, 422]\n"
        )
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=place)
        told = server.metrics()
        failed = [name for name in told if re.search(r'code="5\d\d"', name) and "/readyz" not in name]
        assert not failed, "it was asked whether it is ready while it was loading, and nothing else may fail"
    assert done.returncode == 0, "\n".join(line[:200] for line in done.stdout.splitlines()[-100:])
    generated = re.search(r"(\d+) generated", done.stdout)
    assert generated, done.stdout[-2000:]
    print(f"{generated[1]} cases")
    assert int(generated[1]) >= 2000


def test_one_connection_many_requests() -> None:
    """Nothing is left of a request that is over."""
    with process(demo()) as server:

        async def many() -> list[int]:
            client = Client(server.port)
            found = [(await client.ask(request(BODIES[n % 60]))).status for n in range(300)]
            await client.close()
            return found

        assert set(asyncio.run(many())) == {200}
