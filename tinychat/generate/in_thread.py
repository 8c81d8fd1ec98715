"""Iterators for event loops: each step of a plain one runs in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")


async def in_thread(items: Generator[_Item, None, None]) -> AsyncIterator[_Item]:
    """Yield what a generator yields; it is closed in its thread when nobody asks for more."""
    loop, end = asyncio.get_running_loop(), object()
    with ThreadPoolExecutor(1) as thread:
        try:
            while (item := await loop.run_in_executor(thread, next, items, end)) is not end:
                yield item  # type: ignore[misc]
        finally:
            # Behind a step that may still be running there.
            thread.submit(items.close)
