"""The replies to one request, as events on the server's loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from tinychat.errors import TinychatError
from tinychat.generate.reply import Delta
from tinychat.generate.run import Prefill
from tinychat.serve.api_error import as_api_error

if TYPE_CHECKING:
    from tinychat.generate.run import Event
    from tinychat.generate.stream import Stream


class ChoiceEvent(NamedTuple):
    """An event of the choice of this number; `event` is None at its end."""

    choice: int
    event: Delta | Prefill | None


class Replies:
    """Writes the choices of a request at once; leaving the context ends what is still written.

    Parameters
    ----------
    streams : sequence of Stream
        One for each choice, none of them started.
    """

    def __init__(self, streams: Sequence[Stream]) -> None:
        self.streams = streams
        self._queue: asyncio.Queue[tuple[int, Event | None]] = asyncio.Queue()

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for index, stream in enumerate(self.streams):
            stream.listen(self._poster(loop, index))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in self.streams:
            stream.drop()

    async def events(self, patience: float | None = None) -> AsyncGenerator[ChoiceEvent | None, None]:
        """Yield the events of all choices as they come, and None after so many seconds without one.

        Raises
        ------
        ApiError
            If a choice ends in an error.
        """
        left = len(self.streams)
        while left:
            try:
                async with asyncio.timeout(patience):
                    index, event = await self._queue.get()
            except TimeoutError:
                yield None
                continue
            if isinstance(event, TinychatError):
                raise as_api_error(event)
            left -= event is None
            yield ChoiceEvent(index, event)

    def _poster(self, loop: asyncio.AbstractEventLoop, index: int) -> Callable[[Event | None], None]:
        def post(event: Event | None) -> None:
            # A loop that has ended wants nothing more.
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._queue.put_nowait, (index, event))

        return post
