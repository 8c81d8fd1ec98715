"""``POST /api/pull``: models of the catalog, downloaded and converted while the client looks on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from tinychat.errors import HubError, TinychatError
from tinychat.generate.loop_posts import loop_poster
from tinychat.serve.answering import unless_gone
from tinychat.serve.api_error import ApiError, as_api_error
from tinychat.serve.bodies import read_object
from tinychat.serve.body_fields import take_bool
from tinychat.serve.model_pool import Load, plain_name
from tinychat.serve.server import Pull, Server
from tinychat.serve.streamed import StreamedResponse
from tinychat.serve.wire import OLLAMA, Payload
from tinychat.store.catalog import CATALOG

_Step = tuple[int, int]


async def pull(server: Server, http: HttpRequest) -> Response:
    """Get a model of the catalog, and serve it from then on.

    `TinychatError` if the server was not started for that, there is no such model, one is being pulled, or it cannot be
    had.
    """
    if server.options.pull is None:
        raise ApiError(403, "models are not pulled: start the server with --allow-pull", "permission_error")
    body = await read_object(http)
    is_streamed = take_bool(body, "stream", True)
    take_bool(body, "insecure")
    given = body.pop("model", body.pop("name", None))
    name = plain_name(given) if isinstance(given, str) else ""
    if name not in CATALOG:
        known = ", ".join(CATALOG)
        raise ApiError(404, f"no model {str(given)[:100]!r} in the catalog: it has {known}", code="model_not_found")
    if server.is_pulling:
        raise ApiError(503, "a model is being pulled already: try again later", "server_error", retry_after=30)
    pulling = _Pull(server, server.options.pull, name)
    if not is_streamed:
        try:
            return JSONResponse(await unless_gone(http, pulling.whole()))
        finally:
            pulling.stop()
    stack, events = AsyncExitStack(), _sent(server, pulling)
    stack.callback(pulling.stop)
    stack.push_async_callback(events.aclose)
    return StreamedResponse(events, OLLAMA.media_type, stack)


class _Pull:
    """A download and its conversion, in a thread: stopped, it goes on there the next time."""

    def __init__(self, server: Server, pull: Pull, name: str) -> None:
        self._server, self._name = server, name
        self._is_stopped = False
        self._steps: asyncio.Queue[_Step | None] = asyncio.Queue()
        self._post = loop_poster(asyncio.get_running_loop(), self._steps.put_nowait)
        server.is_pulling = True
        self._work = asyncio.ensure_future(asyncio.to_thread(pull, name, self._progress))
        self._work.add_done_callback(self._end)

    def stop(self) -> None:
        """Let the thread end at its next step."""
        self._is_stopped = True

    async def lines(self) -> AsyncGenerator[Payload, None]:
        """Yield the progress; errors are those of `whole`."""
        yield {"status": "pulling manifest"}
        while (step := await self._steps.get()) is not None:
            yield {"status": f"pulling {self._name}", "completed": step[0], "total": step[1]}
        self._work.result()
        yield {"status": "success"}

    async def whole(self) -> Payload:
        """Return the last line; `TinychatError` if the model cannot be had."""
        return [line async for line in self.lines()][-1]

    def _progress(self, done: int, total: int) -> None:
        if self._is_stopped or self._server.is_ending:
            raise HubError("the download was stopped")
        self._post((done, total))

    def _end(self, work: asyncio.Future[tuple[Load, Path]]) -> None:
        self._server.is_pulling = False
        if not work.cancelled() and work.exception() is None:
            self._server.pool.add(self._name, *work.result())
        self._steps.put_nowait(None)


async def _sent(server: Server, pulling: _Pull) -> AsyncGenerator[str, None]:
    """Yield the lines of a stream; what goes wrong now is one, too."""
    try:
        async with aclosing(pulling.lines()) as lines:
            async for line in lines:
                yield OLLAMA.event(line)
    except TinychatError as error:
        server.metrics.errors_total += 1
        yield OLLAMA.event(OLLAMA.error(as_api_error(error)))
