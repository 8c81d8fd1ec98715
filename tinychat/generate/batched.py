"""Many replies of one driver, as many at once as pay."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from contextlib import closing
from itertools import chain
from time import perf_counter

from tinychat.errors import FieldError, TinychatError
from tinychat.generate.driver import Driver
from tinychat.generate.prompt import Prompt
from tinychat.generate.reply import Delta, Reply
from tinychat.generate.request import Request
from tinychat.generate.run import Run

Asked = tuple[Prompt, Request] | TinychatError
"""A prompt to answer, or the error that comes instead."""

BatchEvent = tuple[int, Delta | Reply | TinychatError]
"""The number of a reply among those asked for, from 0, and a delta of it; at last the whole reply, or its error."""

BatchResult = tuple[int, Reply | TinychatError]
"""The number of a reply among those asked for, from 0, and the whole reply, or its error."""

# More at once are tried as long as they bring so much more.
LEVELS = (8, 12, 16, 24, 32, 48, 64)
WORTHWHILE = 1.04
STEPS_PER_LEVEL = 12
WINDOW = 4096
"""A reply is begun so far ahead of the oldest one that is not over: whoever wants them in order stores no more."""


class BatchSizeTuner:
    """Finds how many replies at once are fastest.

    A step over more rows costs more once it is no longer bound by memory; how many that are depends on the machine and
    the model. Levels are tried from the lowest up, each for some steps, until one brings hardly more than the one
    before. A number that is given stays.
    """

    def __init__(self, count: int | None = None) -> None:
        self.count = LEVELS[0] if count is None else count
        self._level = 0
        self._best: float | None = None
        self._rows, self._seconds, self._steps = 0, 0.0, 0
        self._is_settled = count is not None

    def note(self, rows: int, seconds: float, is_full: bool) -> None:
        """Count a step of so many tokens, if as many replies were written as there may be."""
        if self._is_settled or not is_full:
            return
        self._rows, self._seconds, self._steps = self._rows + rows, self._seconds + seconds, self._steps + 1
        if self._steps < STEPS_PER_LEVEL:
            return
        rate = self._rows / self._seconds
        self._rows, self._seconds, self._steps = 0, 0.0, 0
        if self._best is not None and rate < WORTHWHILE * self._best:
            self._is_settled, self.count = True, LEVELS[self._level - 1]
        elif self._level + 1 == len(LEVELS):
            self._is_settled = True
        else:
            self._best, self._level = rate, self._level + 1
            self.count = LEVELS[self._level]


def write_many(
    driver: Driver, asked: Iterable[Run | TinychatError], parallel: int | None = None
) -> Generator[BatchEvent, None, None]:
    """Write replies, several at once, and yield their events as they come.

    `asked` is read as needed, `WINDOW` replies ahead of the oldest at most; an error in it is yielded. `parallel`
    replies are written at once, by default a number found by measurement.
    """
    with closing(_steps(driver, asked, parallel, True)) as steps:
        for step in steps:
            yield from step


def whole_replies(
    driver: Driver, asked: Iterable[Run | TinychatError], parallel: int | None = None
) -> Generator[list[BatchResult], None, None]:
    """Write replies as `write_many` does, in less time: yield those that end together, and nothing before."""
    with closing(_steps(driver, asked, parallel, False)) as steps:
        for step in steps:
            yield [(number, got) for number, got in step if not isinstance(got, Delta)]


def replies_in_order(driver: Driver, asked: Iterable[Run | TinychatError], parallel: int | None) -> list[Reply]:
    """Write replies as `whole_replies` does; return them in the order in which they were asked for.

    The first error that comes is raised; FieldError for `parallel` below 1.
    """
    if parallel is not None and parallel < 1:
        raise FieldError("parallel", f"must be 1 or more, not {parallel}")
    replies: dict[int, Reply] = {}
    for number, got in chain.from_iterable(whole_replies(driver, asked, parallel)):
        if isinstance(got, TinychatError):
            raise got
        replies[number] = got
    return [replies[number] for number in sorted(replies)]


def _steps(
    driver: Driver, asked: Iterable[Run | TinychatError], parallel: int | None, deltas: bool
) -> Generator[list[BatchEvent], None, None]:
    """Yield the events of a step; without `deltas` of as many as it takes until a reply is over."""
    tuner = BatchSizeTuner(parallel)
    coming = enumerate(asked)
    runs: dict[int, Run] = {}
    begun, rows, started = 0, 0, 0.0

    def has_enough() -> bool:
        nonlocal rows, started
        now = perf_counter()
        tuner.note(driver.rows - rows, now - started, len(runs) == tuner.count)
        rows, started = driver.rows, now
        return deltas or len(runs) < tuner.count or any(run.is_over for run in runs.values())

    try:
        while True:
            new = []
            while len(runs) < tuner.count and begun - next(iter(runs), begun) < WINDOW:
                if (one := next(coming, None)) is None:
                    break
                number, run = one
                begun = number + 1
                if isinstance(run, TinychatError):
                    yield [(number, run)]
                    continue
                if not deltas:
                    # An error is the last event.
                    run.events = deque(maxlen=1)
                runs[number] = run
                new.append(run)
            if not runs:
                return
            rows, started = driver.rows, perf_counter()
            driver.step(*new, is_enough=has_enough)
            events = list[BatchEvent]()
            for number, run in [*runs.items()]:
                found = _read_events(run) if deltas or run.is_over else []
                events += [(number, event) for event in found]
                if found and not isinstance(found[-1], Delta):
                    del runs[number]
            yield events
    finally:
        for run in runs.values():
            driver.cancel(run)


def _read_events(run: Run) -> list[Delta | Reply | TinychatError]:
    """Return the deltas that nobody has read; at last the error that ended the run, or the whole reply."""
    # Asked before the events are read: another thread's step may end it meanwhile.
    is_over = run.is_over
    found: list[Delta | Reply | TinychatError] = []
    while run.events:
        event = run.events.popleft()
        if isinstance(event, TinychatError):
            return [*found, event]
        if isinstance(event, Delta):
            found.append(event)
    return [*found, run.reply] if is_over else found
