"""A server asked by 32 clients against the same server asked by one: greedy answers a second, over a real socket.

python -m bench.serve                # the demo's model, trained for a quarter of its steps
python -m bench.serve RUN
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.harness import race, refuse_others, report
from regard.data.spoken import spoken

KEY = "bench"
CLIENTS, PHRASES, ROUNDS = 32, 256, 7
STEPS = 250  # of training: enough for answers that end where they should


def main(asked: Sequence[str]) -> None:
    refuse_others(asked, [word for word in asked[:1] if Path(word).is_dir()] or ["the folder of a run"])
    with TemporaryDirectory() as scratch:
        compare(Path(asked[0]) if asked else trained(Path(scratch) / "demo"))


def trained(folder: Path) -> Path:
    command = [sys.executable, "-m", "regard", "demo", "--steps", str(STEPS), "--out", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


def compare(folder: Path) -> None:
    texts = [source for _, source, _ in spoken(("en", "de"), "test", PHRASES)]
    with serving(folder) as port:
        alone, together = (asyncio.run(ask(port, texts, clients)) for clients in (1, CLIENTS))
        assert alone == together, "the answers depend on who else asks"
        engines = {
            f"{CLIENTS} clients": asking(port, texts, CLIENTS),
            "one at a time": asking(port, texts, 1),
        }
        found = race(f"{PHRASES} phrases", "answers/s", engines, rounds=ROUNDS, warm=1)
    note = (
        f"The server of `regard serve` in a process of its own, {PHRASES} phrases of the demo's test split to "
        "/v1/predict, greedy, each client on one connection that stays open. The clients take their share of the same "
        "cores, and so does whatever else runs. The answers of both were checked to be the same."
    )
    report("serve", f"A server with {CLIENTS} clients against one at a time", note, [found])


@contextmanager
def serving(folder: Path) -> Iterator[int]:
    """`regard serve`, ready; gives its port."""
    command = [sys.executable, "-m", "regard", "serve", str(folder), "--port", "0", "--device", "cpu"]
    environment = {**os.environ, "REGARD_API_KEY": KEY}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().split(":")[2].partition("/")[0])
            asyncio.run(_ready(port))
            yield port
        finally:
            process.terminate()


async def _ready(port: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with suppress(OSError, AssertionError):
            await ask(port, ["one"], 1)
            return
        await asyncio.sleep(0.2)
    raise TimeoutError("the server was not ready within a minute")


def asking(port: int, texts: list[str], clients: int) -> Callable[[], float]:
    def run() -> float:
        return float(len(asyncio.run(ask(port, texts, clients))))

    return run


async def ask(port: int, texts: list[str], clients: int) -> list[str]:
    """Each client takes the next text as soon as it has an answer."""
    found: dict[int, str] = {}
    waiting = iter(enumerate(texts))

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number, text in waiting:
            reply = await post(reader, writer, {"input": text, "beam": 1})
            found[number] = reply["answers"][0]["answers"][0]["text"]
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(client() for _ in range(clients)))
    return [found[number] for number in range(len(texts))]


async def post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: dict[str, Any]) -> dict[str, Any]:
    """As plain as it gets: the clients should cost little."""
    data = json.dumps(body).encode()
    head = f"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\n"
    writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
    told = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert told.startswith("HTTP/1.1 200"), told
    length = next(line for line in told.lower().split("\r\n") if line.startswith("content-length:"))
    reply: dict[str, Any] = json.loads(await reader.readexactly(int(length.partition(":")[2])))
    return reply


if __name__ == "__main__":
    main(sys.argv[1:])
