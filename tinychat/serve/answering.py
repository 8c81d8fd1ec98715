"""The way of a request through the server: read, wait for a turn, write the replies, send them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import ClassVar, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from tinychat.errors import TinychatError
from tinychat.generate.reply import Delta
from tinychat.generate.run import Prefill
from tinychat.generate.stream import Stream
from tinychat.serve.api_error import ApiError, as_api_error
from tinychat.serve.bodies import read_object
from tinychat.serve.model_pool import ServedModel
from tinychat.serve.replies import Replies
from tinychat.serve.server import Server, client_of
from tinychat.serve.streamed import StreamedResponse
from tinychat.serve.wire import OPENAI, Payload, Wire

_Result = TypeVar("_Result")


class Answer(ABC):
    """The answer to one request, in the form of one protocol."""

    wire: ClassVar[Wire] = OPENAI  # the form of its stream and errors

    def __init__(self, streams: Sequence[Stream], is_streamed: bool) -> None:
        self.streams = streams  # the replies that it consists of, not yet begun
        self.is_streamed = is_streamed  # whether it is sent while it is written
        self.wanted_slot: int | None = None  # number of the slot that the request asks for
        self.slot: int | None = None  # number of the one that it got

    def first(self) -> Iterable[Payload]:
        """Return the payloads that come before anything is written."""
        return ()

    def prepare(self) -> Iterable[Payload]:
        """Do what takes long before the replies are written, in a thread; return what is sent of it."""
        return ()

    @abstractmethod
    def take(self, index: int, event: Delta | Prefill | None) -> Iterable[Payload]:
        """Take an event of the reply of this index, None at its end; return what is sent of it."""

    def last(self) -> Iterable[Payload]:
        """Return the payloads that come after everything is written."""
        return ()

    def failed(self, error: ApiError) -> Iterable[Payload]:
        """Return the payloads that tell of an error in a stream, whose status is sent."""
        return (self.wire.error(error),)

    @abstractmethod
    def whole(self) -> Payload | list[Payload]:
        """Return the whole answer, after all events."""


Read = Callable[[Payload, ServedModel], Answer]
"""Reads a body for a model; raises a `TinychatError` if it cannot be answered."""


async def answer(server: Server, http: HttpRequest, read: Read) -> Response:
    """Answer a request, by a stream if it asks for one; `TinychatError` if it cannot be answered."""
    body = await read_object(http)
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(server.use(body.get("model")))
        found = await asyncio.to_thread(read, body, served)
        client, name = client_of(http), served.name
        if found.is_streamed:
            # Now, while the status can still tell.
            server.admission.check_room()
            events = _sent(server, client, name, found)
            # Else it is closed some time later where the client leaves while it takes an event.
            stack.push_async_callback(events.aclose)
            return StreamedResponse(events, found.wire.media_type, stack.pop_all())
        return JSONResponse(await unless_gone(http, _whole(server, client, name, found)))
    raise AssertionError("an exit stack swallows no errors")


async def _whole(server: Server, client: str, model: str, found: Answer) -> Payload | list[Payload]:
    async with aclosing(_written(server, client, model, found)) as payloads:
        async for _ in payloads:
            pass
    return found.whole()


async def _sent(server: Server, client: str, model: str, found: Answer) -> AsyncGenerator[str, None]:
    """Yield the events of a stream; what goes wrong now is an event too: the status is sent."""
    wire = found.wire
    try:
        for payload in found.first():
            yield wire.event(payload)
        async with aclosing(_written(server, client, model, found)) as payloads:
            async for written in payloads:
                if text := wire.ping if written is None else wire.event(written):
                    yield text
        for payload in found.last():
            yield wire.event(payload)
    except TinychatError as error:
        server.metrics.errors_total += 1
        for payload in found.failed(as_api_error(error)):
            yield wire.event(payload)
    if wire.end:
        yield wire.end


async def _written(server: Server, client: str, model: str, found: Answer) -> AsyncGenerator[Payload | None, None]:
    """Wait for a turn and write the replies; yield what is sent of them, and None after each time of silence."""
    async with AsyncExitStack() as stack:
        waiting = server.turn(client, model, found.streams, found.wanted_slot)
        entering = asyncio.ensure_future(stack.enter_async_context(waiting))
        try:
            while not (await asyncio.wait({entering}, timeout=server.options.ping_seconds))[0]:
                yield None
            turn = entering.result()
        finally:
            if entering.cancel():
                await asyncio.gather(entering, return_exceptions=True)
        found.slot = turn.slot.number
        for payload in await asyncio.to_thread(found.prepare):
            yield payload
        with Replies(found.streams, turn.release) as replies:
            async with aclosing(replies.events(server.options.ping_seconds)) as events:
                async for event in events:
                    if event is None:
                        yield None
                    else:
                        for payload in found.take(*event):
                            yield payload


async def unless_gone(http: HttpRequest, work: Awaitable[_Result]) -> _Result:
    """Wait for the work, and cancel it where the client goes away; errors of the work are raised.

    `ApiError`, which nobody reads, if the client is gone.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(http))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ApiError(499, "the client has gone away", code="client_closed_request")
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(http: HttpRequest) -> None:
    """Return once the client has gone away; its body has been read."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
