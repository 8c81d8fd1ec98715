"""A connection to a server by Streamable HTTP, through the official SDK: the extra ``tinychat[mcp]``.

The SDK is asynchronous: a thread of its own has the event loop, and requests are handed to it.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError, Future
from contextlib import AsyncExitStack, suppress
from time import monotonic
from typing import Any

import httpx2
from mcp import Client, Implementation, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CONNECTION_CLOSED

from tinychat.errors import McpError, McpRefusedError
from tinychat.json_file import one_line
from tinychat.mcp.connection import MOST_TURNS, POLL_SECONDS, PROGRESS, Connection, Wait
from tinychat.mcp.protocol import STATELESS_VERSION, Json, Peer, client_info, peer_of
from tinychat.mcp.rate import LONGEST_MESSAGE, TOO_LONG, TOO_MUCH, Rate
from tinychat.mcp.server_settings import ServerSettings

_CONNECT_SECONDS = 10.0
_CLOSE_SECONDS = 5.0
_LONGEST_REASON = 300
_LOGGERS = ("mcp", "client", "httpx2", "httpcore2")


def connect(settings: ServerSettings) -> HttpConnection:
    """Connect to a server, and agree on a version of the protocol.

    `McpError` if it cannot be reached, does not answer in time, or speaks none of the versions that are known.
    """
    for name in _LOGGERS:
        # Its warnings would be drawn over the chat.
        logging.getLogger(name).propagate = False
        logging.getLogger(name).addHandler(logging.NullHandler())
    connection = HttpConnection(settings)
    try:
        connection.wait_until_ready()
    except BaseException:
        connection.close()
        raise
    return connection


class HttpConnection(Connection):
    """A client of the SDK and the thread that runs it."""

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(settings.name)
        self._settings = settings
        self._ready: Future[Client] = Future()
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self._refusal = ""
        self._thread = threading.Thread(target=self._run, name=f"mcp-{self.name}", daemon=True)
        self._thread.start()

    def wait_until_ready(self) -> None:
        """Wait for the server's introduction; `McpError` if it does not come."""
        until = monotonic() + self._settings.timeout + _CLOSE_SECONDS
        while True:
            try:
                self._ready.result(POLL_SECONDS)
            except TimeoutError:
                if monotonic() < until:
                    continue
                raise self._error("did not answer in time") from None
            return

    def close(self) -> None:
        """End the connection, and the session if the server has one."""
        # A loop that has ended is closed.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(_CLOSE_SECONDS)

    def request(self, method: str, params: Json, wait: Wait) -> Json:
        """Return the result of a request."""
        client = self._ready.result()
        signs: queue.SimpleQueue[Json | None] = queue.SimpleQueue()
        if self._end:
            raise self._error(f"is gone: {self._end}")
        answer = asyncio.run_coroutine_threadsafe(_ask(client, method, params, lambda: signs.put(PROGRESS)), self._loop)
        answer.add_done_callback(lambda _: signs.put(None))
        try:
            self._answer(method, signs, wait)
            return answer.result()
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                self._end = _reason(error)
                raise self._error(f"is gone: {self._end}") from None
            problem = f"the MCP server {self.name} refuses {method}: {_reason(error)}"
            raise McpRefusedError(problem, error.code, error.data) from None
        except CancelledError:
            raise self._error(f"is gone: {self._end or 'the connection was closed'}") from None
        except McpError:
            raise
        except Exception as error:
            raise self._error(f"fails at {method}: {_reason(error)}") from None
        finally:
            answer.cancel()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
            self._end = "the connection was closed"
        except BaseException as error:
            self._end = _reason(error) + (f" ({self._refusal})" if self._refusal else "")
            if not self._ready.done():
                self._ready.set_exception(self._error(f"cannot be reached: {self._end}; check its url"))

    def _stop(self) -> None:
        self._closing.set()
        if self._main is not None and not self._ready.done():
            self._main.cancel()

    async def _serve(self) -> None:
        self._main = asyncio.current_task()
        async with AsyncExitStack() as stack:
            timeout = httpx2.Timeout(_CONNECT_SECONDS, read=MOST_TURNS * self._settings.timeout)
            hooks = {"response": [self._receive]}
            http = httpx2.AsyncClient(headers=dict(self._settings.headers), timeout=timeout, event_hooks=hooks)
            await stack.enter_async_context(http)
            way = streamable_http_client(self._settings.url, http_client=http, max_sse_event_size=LONGEST_MESSAGE)
            info = Implementation(**client_info())
            client = Client(way, client_info=info, message_handler=self._note, cache=None)
            async with asyncio.timeout(self._settings.timeout):
                await stack.enter_async_context(client)
            self.peer = _peer(client)
            self._ready.set_result(client)
            if client.protocol_version == STATELESS_VERSION and self.peer.changing:
                wanted: dict[str, Any] = {f"{kind}_list_changed": True for kind in self.peer.changing}
                await stack.enter_async_context(client.listen(**wanted))
            await self._closing.wait()

    async def _receive(self, response: httpx2.Response) -> None:
        """Bound what a response may bring: a body as a whole, a stream of events by the second."""
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        response.stream = _LimitedStream(response.stream, is_stream)
        self._refusal = f"HTTP {response.status_code}" if response.is_error else ""

    async def _note(self, message: object) -> None:
        self.changes.note(str(getattr(message, "method", "")))


async def _ask(client: Client, method: str, params: Json, on_progress: Callable[[], None]) -> Json:
    """Send one of the requests of `McpServer`, and return the result as the protocol has it."""

    async def told(progress: float, total: float | None, message: str | None) -> None:
        on_progress()

    result: Any
    match method:
        case "tools/list":
            result = await client.list_tools(cursor=params.get("cursor"))
        case "resources/list":
            result = await client.list_resources(cursor=params.get("cursor"))
        case "prompts/list":
            result = await client.list_prompts(cursor=params.get("cursor"))
        case "tools/call":
            result = await client.call_tool(params["name"], params["arguments"], progress_callback=told)
        case "resources/read":
            result = await client.read_resource(params["uri"])
        case "prompts/get":
            result = await client.get_prompt(params["name"], params["arguments"])
        case _:
            raise ValueError(f"no request {method}")
    found: Json = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return found


def _peer(client: Client) -> Peer:
    info = client.server_info
    return peer_of(
        {
            "serverInfo": {} if info is None else info.model_dump(by_alias=True, mode="json"),
            "capabilities": client.server_capabilities.model_dump(by_alias=True, mode="json", exclude_none=True),
        },
        client.protocol_version,
    )


class _LimitedStream(httpx2.AsyncByteStream):
    """The bytes of a response, up to a limit."""

    def __init__(self, stream: Any, is_endless: bool) -> None:
        self._stream, self._is_endless = stream, is_endless

    async def __aiter__(self) -> AsyncIterator[bytes]:
        rate, total = Rate(), 0
        async for data in self._stream:
            total += len(data)
            if self._is_endless and not rate.admits(len(data)):
                raise httpx2.ReadError(TOO_MUCH)
            if not self._is_endless and total > LONGEST_MESSAGE:
                raise httpx2.ReadError(TOO_LONG)
            yield data

    async def aclose(self) -> None:
        await self._stream.aclose()


def _reason(error: BaseException) -> str:
    """Return the reason of an error, or of the first in a group, as one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return one_line(str(error).partition("\n")[0], _LONGEST_REASON) or type(error).__name__
