"""A client of `tinychat serve` for the scripts that measure and try it: standard library only."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import perf_counter
from typing import Any, NamedTuple

Event = dict[str, Any]
_DATA = b"data: "


class TimedStream(NamedTuple):
    """A stream as it came: seconds to its first event, and all that came."""

    first_seconds: float
    data: bytes

    @property
    def events(self) -> list[Event]:
        """The events."""
        return [json.loads(line.removeprefix(_DATA)) for line in self.data.splitlines() if is_event(line)]

    @property
    def text(self) -> str:
        """The text of a completion."""
        return "".join(event["content"] for event in self.events)


@contextmanager
def running_server(model: str, *flags: str) -> Iterator[int]:
    """Serve a model by a process of its own until the context ends; yield the port."""
    command = [sys.executable, "-P", "-m", "tinychat", "serve", model, "--port", "0", "--cache-disk", "0", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if found := re.match(r"serving at http://127\.0\.0\.1:(\d+)/", line):
                yield int(found[1])
                return
        raise SystemExit(f"the server did not start: {''.join(lines)}")
    finally:
        process.terminate()
        process.stderr.read()
        process.wait()


@asynccontextmanager
async def opened(port: int, path: str, body: Event) -> AsyncIterator[asyncio.StreamReader]:
    """Send a request, and yield what brings the body of the answer; the connection ends with the context."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    try:
        writer.write(head.encode() + data)
        await writer.drain()
        status = await reader.readline()
        if b" 200 " not in status:
            raise SystemExit(f"{path}: {(await reader.read()).decode()}")
        while await reader.readline() != b"\r\n":
            pass
        yield reader
    finally:
        writer.close()


async def answer(port: int, path: str, body: Event) -> Any:
    """Return the object of an answer."""
    async with opened(port, path, body) as reader:
        return json.loads(await reader.read())


async def events(port: int, path: str, body: Event) -> AsyncIterator[Event]:
    """Yield the events of a stream."""
    async with opened(port, path, body | {"stream": True}) as reader:
        while line := await reader.readline():
            if is_event(line):
                yield json.loads(line.removeprefix(_DATA))


async def timed_stream(port: int, path: str, body: Event) -> TimedStream:
    """Receive a stream to its end; nothing is read out of it meanwhile: a client's work is not the server's time."""
    began = perf_counter()
    async with opened(port, path, body | {"stream": True}) as reader:
        lines: list[bytes] = []
        while line := await reader.readline():
            lines.append(line)
            if is_event(line):
                break
        first_seconds = perf_counter() - began
        return TimedStream(first_seconds, b"".join(lines) + await reader.read())


async def timed_streams(port: int, path: str, bodies: list[Event]) -> tuple[float, list[TimedStream]]:
    """Receive streams at once; return the seconds until the last has ended, and what came."""
    began = perf_counter()
    streams = await asyncio.gather(*(timed_stream(port, path, body) for body in bodies))
    return perf_counter() - began, streams


def is_event(line: bytes) -> bool:
    """Return whether a line of a stream is an event with an object."""
    return line.startswith(_DATA + b"{")
