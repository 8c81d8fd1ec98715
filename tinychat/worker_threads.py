"""Threads beside the one that waits for them: work with a limit on its time, and items that are made ahead."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from queue import Empty, Queue, SimpleQueue
from threading import Event, Thread
from typing import Any, TypeVar

_TICK_SECONDS = 0.1
# How long the end of `made_ahead` waits for an item that is being made: it may never come, from a pipe.
_END_SECONDS = 1.0
_Result = TypeVar("_Result")
_Item = TypeVar("_Item")


class TookTooLongError(Exception):
    """The work did not end in its time."""


class _Worker:
    """A thread that runs one function after the other: a new thread for each costs ten times as much."""

    def __init__(self) -> None:
        self.works: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self.outcomes: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        Thread(target=self._run, name="work with a limit", daemon=True).start()

    def _run(self) -> None:
        while (work := self.works.get()) is not None:
            try:
                self.outcomes.put((work(), None))
            except BaseException as error:
                self.outcomes.put((None, error))
            del work


_idle = deque[_Worker]()
if hasattr(os, "register_at_fork"):
    # The threads are the parent's.
    os.register_at_fork(after_in_child=_idle.clear)


def run_within(seconds: float, work: Callable[[], _Result]) -> _Result:
    """Return the result of `work`, whose errors are raised here.

    `TookTooLongError` if it does not end: nothing can stop its thread, which ends with it.
    """
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
    worker.works.put(work)
    try:
        result, error = _outcome(worker, seconds)
    except BaseException:
        worker.works.put(None)
        raise
    _idle.append(worker)
    if error is not None:
        raise error
    found: _Result = result
    return found


def _outcome(worker: _Worker, seconds: float) -> tuple[Any, BaseException | None]:
    """Wait in many short waits, so that time in which the process is stopped does not count."""
    for _ in range(max(1, round(seconds / _TICK_SECONDS))):
        with suppress(Empty):
            return worker.outcomes.get(timeout=_TICK_SECONDS)
    raise TookTooLongError


def made_ahead(items: Iterable[_Item], count: int) -> Generator[_Item, None, None]:
    """Yield items that a thread makes, up to `count` of them before they are asked for, or raise its error."""
    made: Queue[tuple[_Item | None, BaseException | None]] = Queue(count)
    is_stopped = Event()

    def make() -> None:
        ending: BaseException = StopIteration()
        try:
            for item in items:
                made.put((item, None))
                if is_stopped.is_set():
                    return
        except BaseException as error:
            ending = error
        made.put((None, ending))

    thread = Thread(target=make, daemon=True)
    thread.start()
    try:
        while True:
            item, error = made.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        is_stopped.set()
        with suppress(Empty):
            while True:
                made.get_nowait()
        thread.join(_END_SECONDS)
