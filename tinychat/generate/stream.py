"""A reply as its reader sees it: an iterator over what the driver writes."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

from tinychat.errors import TinychatError
from tinychat.generate.driver import Driver
from tinychat.generate.reply import Piece, Reply, Summary
from tinychat.generate.run import Event, MakeRoom, Prefill, Run
from tinychat.generate.sequence import Ids

if TYPE_CHECKING:
    from tinychat.generate.prefix_miss import PrefixMiss

PrefillProgress = Callable[[int, int], None]
"""Called with (tokens done, tokens to run): once at the start, then after each chunk."""


class Stream(Iterator[Piece]):
    """Reads one reply; iterate it once, stop at any time.

    Nothing runs before the first piece is asked for. A stream that is dropped gives its sequence back, which holds a
    prefix of prompt and reply for the next prompt that begins alike.

    Parameters
    ----------
    driver : Driver
    reply : Reply
        A new one for each stream, whose prompt `check_prompt` has let pass.
    on_prefill : callable, optional
        Called with (tokens done, tokens to run) while the prompt is read.
    cancelled : callable, optional
        Asked before each step; True ends the reply as interrupted.
    make_room, previous, removed, ahead
        See `tinychat.generate.run.Run`.

    Attributes
    ----------
    reply : Reply
        As given.
    token_ids : list of int
        The tokens of the pieces that were read.
    """

    def __init__(
        self,
        driver: Driver,
        reply: Reply,
        on_prefill: PrefillProgress | None = None,
        cancelled: Callable[[], bool] | None = None,
        make_room: MakeRoom | None = None,
        previous: Ids = (),
        removed: int = 0,
        ahead: int | None = 1,
    ) -> None:
        self.reply = reply
        self.token_ids: list[int] = []
        self._driver = driver
        self._run = Run(reply, make_room, previous, removed, ahead)
        self._on_prefill, self._cancelled = on_prefill, cancelled
        self._is_submitted = False
        weakref.finalize(self, driver.drop, self._run).atexit = False

    def __next__(self) -> Piece:
        while (event := self._next_event()) is not None:
            if isinstance(event, Piece):
                return event
            if self._on_prefill is not None:
                self._on_prefill(event.done, event.total)
        raise StopIteration

    def events(self) -> Iterator[Prefill | Piece]:
        """Yield pieces, and before them how far the prompt has been read.

        Raises
        ------
        TinychatError
            What ended the reply.
        """
        while (event := self._next_event()) is not None:
            yield event

    def _next_event(self) -> Prefill | Piece | None:
        """Return the next event; None at the end."""
        run = self._run
        self.start()
        while not run.events:
            if run.is_over:
                return None
            if self._cancelled is not None and self._cancelled():
                self._driver.cancel(run)
            else:
                self._driver.advance(run)
        event = run.events.popleft()
        if isinstance(event, TinychatError):
            raise event
        if isinstance(event, Piece):
            self.token_ids += event.ids
        return event

    def start(self) -> None:
        """Submit the reply, if it has not been: whoever steps first then writes it beside others."""
        if not self._is_submitted:
            self._is_submitted = True
            self._driver.submit(self._run)

    def close(self) -> None:
        """End the reply where it is."""
        self._driver.cancel(self._run)
        self._run.events.clear()

    @property
    def summary(self) -> Summary:
        """Counts and times so far; a reply that did not reach its end counts as interrupted."""
        return self.reply.summary

    @property
    def miss(self) -> PrefixMiss | None:
        """Why less of the prompt was cached than its conversation would suggest; None where that is not so."""
        return self._run.miss

    def to_end(self) -> Reply:
        """Wait until the reply ends, and return it."""
        for _ in self:
            pass
        return self.reply


class AsyncStream(AsyncIterator[Piece]):
    """Reads one reply in an event loop, while the driver's own thread writes it.

    Parameters
    ----------
    driver : Driver
    reply : Reply
        As for `Stream`.
    """

    def __init__(self, driver: Driver, reply: Reply) -> None:
        self.reply = reply
        self._driver = driver
        self._run: Run | None = None
        # Imported here, and where it is used: programs without a loop, the command line among them, start faster.
        import asyncio

        self._events: asyncio.Queue[Event | None] = asyncio.Queue()

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Piece:
        if self._run is None:
            self._begin()
        while (event := await self._events.get()) is not None:
            if isinstance(event, TinychatError):
                raise event
            if isinstance(event, Piece):
                return event
        raise StopAsyncIteration

    @property
    def summary(self) -> Summary:
        """As `Stream.summary`."""
        return self.reply.summary

    async def aclose(self) -> None:
        """End the reply where it is."""
        import asyncio

        if self._run is not None:
            await asyncio.to_thread(self._driver.cancel, self._run)

    def _begin(self) -> None:
        import asyncio

        loop, events = asyncio.get_running_loop(), self._events

        def post(event: Event | None) -> None:
            # A loop that has ended wants nothing more.
            if not loop.is_closed():
                loop.call_soon_threadsafe(events.put_nowait, event)

        self._run = Run(self.reply, listener=post)
        weakref.finalize(self, self._driver.drop, self._run).atexit = False
        self._driver.submit(self._run)
