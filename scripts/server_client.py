"""A client of `tinychat serve` for the scripts that measure and try it: standard library only."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

Event = dict[str, Any]


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
            data = line.removeprefix(b"data: ")
            if data != line and data.strip() != b"[DONE]":
                yield json.loads(data)
