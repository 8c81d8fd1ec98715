"""The replies to one request, as events on the server's loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Self

from tinychat.errors import TinychatError
from tinychat.generate.loop_posts import loop_poster
from tinychat.generate.reply import Delta
from tinychat.generate.run import Prefill
from tinychat.serve.api_error import ApiError

if TYPE_CHECKING:
    from tinychat.generate.run import Event
    from tinychat.generate.stream import Stream

    _Posted = tuple[int, Event | None]


class ChoiceEvent(NamedTuple):
    """An event of the choice of this number; `event` is None at its end."""

    choice: int
    event: Delta | Prefill | None


class Replies:
    """Writes the choices of a request at once; leaving the context ends what is still written.

    There is one stream for each choice, none of them started. `on_written` is called on the loop when all are written,
    though perhaps not yet read.
    """

    def __init__(self, streams: Sequence[Stream], on_written: Callable[[], None]) -> None:
        self.streams = streams
        self._on_written = on_written
        self._unwritten = len(streams)
        self._queue: asyncio.Queue[_Posted] = asyncio.Queue()

    def __enter__(self) -> Self:
        post = loop_poster(asyncio.get_running_loop(), self._take)
        for index, stream in enumerate(self.streams):
            stream.listen(partial(_post, post, index))
        return self

    def __exit__(self, *_exception: object) -> None:
        for stream in self.streams:
            stream.drop()

    async def events(self, patience: float | None = None) -> AsyncGenerator[ChoiceEvent | None, None]:
        """Yield the events of all choices as they come, and None after so many seconds without one.

        `TinychatError` if a choice ends in one, or because the server ends.
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
                raise event
            if event is None:
                left -= 1
                self._check_end(self.streams[index])
            yield ChoiceEvent(index, event)
            # Neither taking nor sending waits while there is more of both: signals and other clients would.
            await asyncio.sleep(0)

    def _take(self, posted: _Posted) -> None:
        self._queue.put_nowait(posted)
        self._unwritten -= posted[1] is None
        if not self._unwritten:
            self._on_written()

    def _check_end(self, stream: Stream) -> None:
        if stream.reply.finish_reason in (None, "interrupted"):
            raise ApiError(503, "the server ended while it wrote the reply", "server_error", code="ending")


def _post(post: Callable[[_Posted], None], index: int, event: Event | None) -> None:
    post((index, event))
