"""An iterator over the deltas of one reply."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

from tinychat.errors import TinychatError
from tinychat.generate.driver import Driver
from tinychat.generate.loop_posts import loop_poster
from tinychat.generate.reply import Delta, Reply, Summary
from tinychat.generate.run import Event, Prefill, Run

if TYPE_CHECKING:
    import asyncio

    from tinychat.generate.prefix_miss import PrefixMiss

PrefillProgress = Callable[[int, int], None]
"""Called with (tokens done, tokens to run): once at the start, then after each chunk."""


class Stream(Iterator[Delta], AsyncIterator[Delta]):
    """Reads one reply; iterate it once, stop at any time.

    ``for`` makes the steps of the driver that bring its deltas; with ``async for`` a thread of the driver's does.
    Nothing runs before the first delta is asked for. A stream that is dropped frees its sequence, whose cache serves
    the next prompt with a common prefix.

    `on_prefill` is called with (tokens done, tokens to run) while the prompt is read, `cancelled` before each step:
    True ends the reply as interrupted. `token_ids` are those of the deltas that were read.
    """

    def __init__(
        self,
        driver: Driver,
        run: Run,
        on_prefill: PrefillProgress | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self.reply: Reply = run.reply
        self.token_ids: list[int] = []
        self._driver, self._run = driver, run
        self._on_prefill, self._cancelled = on_prefill, cancelled
        # For event loops: what the driver's thread has posted.
        self._posted: asyncio.Queue[Event | None] | None = None
        weakref.finalize(self, driver.drop, run).atexit = False

    def __next__(self) -> Delta:
        while (event := self._next_event()) is not None:
            if isinstance(event, Delta):
                return event
            if self._on_prefill is not None:
                self._on_prefill(event.done, event.total)
        raise StopIteration

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Delta:
        if self._posted is None:
            self._posted = self._listen()
        while (event := await self._posted.get()) is not None:
            if isinstance(delta := self._read(event), Delta):
                return delta
        raise StopAsyncIteration

    def listen(self, post: Callable[[Event | None], None]) -> None:
        """Let the driver's own thread write the reply and call `post` with each event; at last with None."""
        self._run.listener = post
        self.start()
        if self._run.is_over:
            post(None)

    def _listen(self) -> asyncio.Queue[Event | None]:
        """Post the events of the reply to this thread's loop."""
        # Imported here: programs without an event loop, the command line among them, start faster.
        import asyncio

        posted = asyncio.Queue[Event | None]()
        self.listen(loop_poster(asyncio.get_running_loop(), posted.put_nowait))
        return posted

    def _next_event(self) -> Prefill | Delta | None:
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
        return self._read(run.events.popleft())

    def _read(self, event: Event) -> Prefill | Delta:
        """Count the tokens of an event, or raise it."""
        if isinstance(event, TinychatError):
            raise event
        if isinstance(event, Delta):
            self.token_ids += event.ids
        return event

    def start(self) -> None:
        """Submit the reply: whoever steps first then writes it beside others."""
        if not self._run.is_submitted:
            self._driver.submit(self._run)

    def close(self) -> None:
        """End the reply."""
        self._driver.cancel(self._run)
        self._run.events.clear()

    def drop(self) -> None:
        """End the reply at the next step, without waiting for it."""
        self._driver.drop(self._run)

    async def aclose(self) -> None:
        """End the reply; the event loop goes on meanwhile."""
        import asyncio

        await asyncio.to_thread(self.close)

    @property
    def summary(self) -> Summary:
        """Counts and times so far; a reply that did not reach its end counts as interrupted."""
        return self.reply.summary

    @property
    def prefill_seconds(self) -> float:
        """Time for reading the prompt so far."""
        return self.reply.summary.prefill_seconds or self._run.seconds

    @property
    def miss(self) -> PrefixMiss | None:
        """Why less of the prompt was cached than its conversation would suggest; None where that is not so."""
        return self._run.miss

    def to_end(self) -> Reply:
        """Wait until the reply ends, and return it."""
        for _ in self:
            pass
        return self.reply
