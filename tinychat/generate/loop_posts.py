"""Events for an event loop from another thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import asyncio

_Event = TypeVar("_Event")


def loop_poster(loop: asyncio.AbstractEventLoop, take: Callable[[_Event], object]) -> Callable[[_Event], None]:
    """Return a function that lets the loop call `take` with an event; one thread at a time may call it.

    It wakes the loop once for all events that wait: each time a byte goes into the pipe through which the loop gets
    signals, too, and a full one loses them.
    """
    waiting: deque[_Event] = deque()
    woken = False

    def post(event: _Event) -> None:
        nonlocal woken
        waiting.append(event)
        # A loop that has ended wants nothing more.
        if not woken and not loop.is_closed():
            woken = True
            loop.call_soon_threadsafe(take_all)

    def take_all() -> None:
        nonlocal woken
        # Before the first is taken: what is posted from now on wakes the loop again.
        woken = False
        while waiting:
            take(waiting.popleft())

    return post
