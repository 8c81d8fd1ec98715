"""Many replies of one model, as many at once as pay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from tinychat.errors import TinychatError
from tinychat.generate.prompt import Prompt, check_prompt
from tinychat.generate.reply import Piece, Reply
from tinychat.generate.request import Request
from tinychat.generate.run import Run

if TYPE_CHECKING:
    from tinychat.generate.model import Model

# More at once are tried as long as they bring so much more.
LEVELS = (8, 12, 16, 24, 32, 48, 64)
WORTHWHILE = 1.04
STEPS_PER_LEVEL = 12


class RowsThatPay:
    """Finds how many replies at once are fastest, by what the steps take.

    A step over more rows costs more once it is no longer bound by memory; how many that are depends on the machine and
    the model. Levels are tried from the lowest up, each for some steps, until one brings hardly more than the one
    before.
    """

    def __init__(self) -> None:
        self.count = LEVELS[0]
        self._level = 0
        self._best: float | None = None
        self._rows, self._seconds, self._steps = 0, 0.0, 0
        self._is_settled = False

    def note(self, rows: int, seconds: float, is_full: bool) -> None:
        """Take in a step of that many tokens; it counts only if as many replies were written as there may be."""
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


class Written(NamedTuple):
    """What one of many replies has got.

    Attributes
    ----------
    number : int
        Its place among those asked for, counted from 0.
    reply : Reply or None
        None where nothing could be asked.
    piece : Piece or None
    error : TinychatError or None
        What ended it, in the place of a piece.
    is_last : bool
        Whether nothing more comes for this one.
    """

    number: int
    reply: Reply | None
    piece: Piece | None
    error: TinychatError | None
    is_last: bool


def write_many(
    model: Model, asked: Iterable[tuple[Prompt, Request] | TinychatError], parallel: int | None = None
) -> Iterator[Written]:
    """Write a reply to each prompt, several at once, and yield what they get as it comes.

    Parameters
    ----------
    model : Model
    asked : iterable of (Prompt, Request)
        Read as it is needed. An error in the place of one stands for itself.
    parallel : int, optional
        How many at once; found by measurement when omitted.
    """
    pay = RowsThatPay() if parallel is None else None
    most = LEVELS[0] if parallel is None else parallel
    driver, coming = model.driver, enumerate(asked)
    runs: dict[int, Run] = {}
    try:
        while True:
            while len(runs) < most and (one := next(coming, None)) is not None:
                number, what = one
                try:
                    runs[number] = _submitted(model, what)
                except TinychatError as error:
                    yield Written(number, None, None, error, True)
            if not runs:
                return
            started, before, is_full = perf_counter(), driver.rows, len(runs) == most
            driver.step()
            if pay is not None:
                pay.note(driver.rows - before, perf_counter() - started, is_full)
                most = pay.count
            for number, run in [*runs.items()]:
                if run.is_over:
                    del runs[number]
                yield from _written(number, run)
    finally:
        for run in runs.values():
            driver.cancel(run)


def _submitted(model: Model, what: tuple[Prompt, Request] | TinychatError) -> Run:
    if isinstance(what, TinychatError):
        raise what
    prompt, request = what
    check_prompt(prompt.ids, model.engine, model.context_size)
    run = Run(Reply(prompt, request, model.tokenizer, model.stop_ids), ahead=None)
    model.driver.submit(run)
    return run


def _written(number: int, run: Run) -> Iterator[Written]:
    while run.events:
        event = run.events.popleft()
        is_last = run.is_over and not run.events
        if isinstance(event, Piece):
            yield Written(number, run.reply, event, None, is_last)
        elif isinstance(event, TinychatError):
            yield Written(number, run.reply, None, event, is_last)
