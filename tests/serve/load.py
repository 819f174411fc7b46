"""Clients by the hundred against a server in a process of its own: plain sockets, so that they cost little."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from served import KEY, request


@dataclass
class Process:
    inner: subprocess.Popen[str]
    port: int

    def memory(self, what: str = "VmRSS") -> int:
        """Bytes: VmRSS now, VmHWM at most."""
        told = Path(f"/proc/{self.inner.pid}/status").read_text()
        return int(re.search(rf"{what}:\s+(\d+) kB", told)[1]) * 1024  # type: ignore[index]

    def metrics(self) -> dict[str, float]:
        sent = f"GET /metrics?token={KEY} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
        text = asyncio.run(ask(self.port, sent)).text
        return {name: float(value) for name, value in re.findall(r"^([^#\s]\S*) (\S+)$", text, re.M)}

    def answered(self) -> Counter[int]:
        """By status, as the server counts them; of /v1/predict and what never got so far."""
        found: Counter[int] = Counter()
        for name, value in self.metrics().items():
            if told := re.fullmatch(r'regard_requests_total\{code="(\d+)",route="(/v1/predict|other)"\}', name):
                found[int(told[1])] += int(value)
        return found


@contextmanager
def process(folder: Path, *words: str) -> Iterator[Process]:
    command = [sys.executable, "-m", "regard", "serve", str(folder), "--port", "0", "--device", "cpu", *words]
    environment = {**os.environ, "REGARD_API_KEY": KEY}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as inner:
        try:
            assert inner.stdout is not None
            found = Process(inner, int(inner.stdout.readline().split(":")[2].partition("/")[0]))
            end = time.monotonic() + 60
            while asyncio.run(ask(found.port, b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n")).status != 200:
                assert time.monotonic() < end, "it was not ready within a minute"
                time.sleep(0.1)
            yield found
        finally:
            inner.terminate()
            try:
                inner.wait(40)
            finally:
                inner.kill()


@dataclass
class Reply:
    status: int  # 0: the connection broke
    headers: dict[str, str] = field(default_factory=dict)
    text: str = ""
    seconds: float = 0.0
    sent: float = 0.0  # when the whole of the request was on its way; 0: it never was

    @property
    def came(self) -> float:
        """When the answer was here, or the connection had broken."""
        return self.sent + self.seconds

    @property
    def answer(self) -> str:
        return str(json.loads(self.text)["answers"][0]["answers"][0]["text"])


class Client:
    """One connection, made anew when it breaks."""

    def __init__(self, port: int) -> None:
        self.port, self.reader, self.writer = port, None, None  # type: ignore[var-annotated]

    async def ask(self, sent: bytes) -> Reply:
        began = 0.0
        try:
            if self.writer is None or self.reader is None:
                self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
            self.writer.write(sent)
            began = time.monotonic()
            head, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await self.reader.readexactly(int(headers["content-length"]))
            return Reply(int(head.split()[1]), headers, body.decode(), time.monotonic() - began, began)
        except (OSError, EOFError):
            await self.close()
            return Reply(0, seconds=time.monotonic() - began if began else 0.0, sent=began)

    async def close(self) -> None:
        if self.writer is not None:
            await closed(self.writer)
        self.reader = self.writer = None


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def ask(port: int, sent: bytes) -> Reply:
    client = Client(port)
    try:
        return await client.ask(sent)
    finally:
        await client.close()


async def crowd(port: int, bodies: list[dict[str, Any]], clients: int, seconds: float) -> list[tuple[int, Reply]]:
    """Each client asks again as soon as it has an answer, for so many seconds: which body, and what came. Whose
    connection breaks does not come again."""
    found: list[tuple[int, Reply]] = []
    end = time.monotonic() + seconds
    wire = [request(body) for body in bodies]

    async def one(number: int) -> None:
        client = Client(port)
        while time.monotonic() < end:
            number = (number + 7) % len(wire)
            found.append((number, await client.ask(wire[number])))
            if not found[-1][1].status:
                return
        await client.close()

    await asyncio.gather(*(one(number) for number in range(clients)))
    return found


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def hold(port: int, sent: bytes, *, then: bytes = b"", pause: float = 0.0, read: bool = True) -> float:
    """Sends something, then the rest a byte at a time; seconds until the server has closed."""
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 10)
    with suppress(OSError, EOFError):
        writer.write(sent)
        if not read:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
        for byte in then:
            await asyncio.sleep(pause)
            writer.write(bytes([byte]))
            await writer.drain()
        if read:
            while await reader.read(65_536):
                pass
        else:
            while not writer.transport.is_closing() and time.monotonic() - began < 60:
                await asyncio.sleep(0.1)
                writer.write(b"\r\n")
    await closed(writer)
    return time.monotonic() - began
