"""A sample of rows, and the length of their replies."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING

from tinychat.errors import ContextError, TinychatError
from tinychat.generate.prompt import Prompt
from tinychat.generate.reply import Delta
from tinychat.generate.request import Request

if TYPE_CHECKING:
    from tinychat.generate.model import Model


class RowSample:
    """Prompts with their requests, of which at most `size` are kept: each that was added is as likely as any other.

    The same rows give the same sample. (Vitter, 1985, "Random sampling with a reservoir", algorithm R.)
    """

    def __init__(self, size: int) -> None:
        self.rows: list[tuple[Prompt, Request]] = []
        self._size, self._added, self._random = size, 0, Random(1)

    def add(self, prompt: Prompt, request: Request) -> None:
        """Add a row."""
        self._added += 1
        if len(self.rows) < self._size:
            self.rows.append((prompt, request))
        elif (index := self._random.randrange(self._added)) < self._size:
            self.rows[index] = (prompt, request)


@dataclass(frozen=True)
class ReplyLength:
    """Mean tokens of some replies: of so many `rows`, `cut` of which were longer than the time allowed."""

    tokens: float
    rows: int
    cut: int


def reply_length(model: Model, sample: RowSample, seconds: float) -> ReplyLength:
    """Answer the rows of a sample, for some seconds at most; return the mean length of the replies.

    `TinychatError` if no row could be answered: the error of the last one.
    """
    until = perf_counter() + seconds
    lengths: dict[int, int] = {}
    over: set[int] = set()
    problem: TinychatError | None = None
    with closing(model.write_many(sample.rows)) as events:
        for number, event in events:
            if isinstance(event, TinychatError):
                if not isinstance(event, ContextError):
                    raise event
                problem = event
            elif isinstance(event, Delta):
                lengths[number] = lengths.get(number, 0) + len(event.ids)
            else:
                over.add(number)
            if perf_counter() > until:
                break
    if problem is not None and not lengths:
        raise problem
    begun = lengths.keys() | over
    return ReplyLength(sum(lengths.values()) / max(1, len(begun)), len(begun), len(lengths.keys() - over))
