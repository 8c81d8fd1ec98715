"""A run: one reply that the driver writes, and the events of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tinychat.errors import TinychatError
from tinychat.generate.drafts import DraftText
from tinychat.generate.prefix_miss import PrefixMiss
from tinychat.generate.reply import Delta, Reply
from tinychat.generate.sequence import Ids

if TYPE_CHECKING:
    from tinychat.engine.scheduled_chunk import ScheduledChunk
    from tinychat.engine.sequence import Sequence


class Prefill(NamedTuple):
    """How far the prompt has been read.

    Attributes
    ----------
    cached : int
        Leading tokens that did not have to run.
    done, total : int
        Of the others.
    seconds_left : float or None
        An estimate from the rate so far; None before the first chunk.
    """

    cached: int
    done: int
    total: int
    seconds_left: float | None


class Room(NamedTuple):
    """A shorter past for a reply whose context is full.

    Attributes
    ----------
    ids : list of int
        What stands before the reply now, in the place of its prompt.
    removed : int
        Tokens that may be cut out of the cache where the two pasts first differ, so that what follows them is not
        read again; 0 to read it again.
    """

    ids: list[int]
    removed: int = 0


MakeRoom = Callable[[Ids], Room | None]
"""Called with the reply so far when the context is full. None ends the reply."""

Event = Prefill | Delta | TinychatError
"""Progress of the prompt, text and tokens, or the error that ended the run."""


class Run:
    """A reply that the driver writes; its sequence is another one after it was put back.

    Parameters
    ----------
    reply : Reply
        Its prompt has been checked.
    make_room : callable, optional
        See `MakeRoom`; without one the reply ends where the context is full.
    ahead : int, optional
        Most deltas that wait for their reader before the run stands still; None for no limit.

    Attributes
    ----------
    listener : callable, optional
        Called with each event, in the driver's own thread or another that makes a step, instead of keeping them; at
        last with None.
    events : deque of Event
        What happened and has not been read.
    is_over : bool
        Whether no more events come.
    cached : int
        Leading tokens of the prompt that did not have to run.
    miss : PrefixMiss or None
        Why less of the prompt was cached than the turn before it has.
    sequence : Sequence
        Only while it runs.
    base : list of int
        What stands before the reply; less than its prompt once room was made.
    """

    sequence: Sequence

    def __init__(self, reply: Reply, make_room: MakeRoom | None = None, ahead: int | None = 1) -> None:
        self.reply = reply
        self.make_room = make_room
        self.listener: Callable[[Event | None], None] | None = None
        self.events: deque[Event] = deque()
        self.is_over = self.has_begun = False
        self.cached = 0
        self.miss: PrefixMiss | None = None
        self.base: list[int] = list(reply.prompt.ids)
        self.removed: int = reply.prompt.removed
        self.text: DraftText | None = None
        self.seconds: float = 0.0
        self._ahead = ahead

    @property
    def ids(self) -> list[int]:
        """The ids before the reply, and those of the reply so far."""
        return [*self.base, *self.reply.token_ids]

    @property
    def length(self) -> int:
        """Length of `ids`."""
        return len(self.base) + len(self.reply.token_ids)

    @property
    def wants_more(self) -> bool:
        """Whether somebody waits for the next event, or there is room for it."""
        return self.listener is not None or self._ahead is None or len(self.events) < self._ahead

    def deliver(self, event: Event) -> None:
        """Give an event to whoever reads them."""
        if self.listener is None:
            self.events.append(event)
        else:
            self.listener(event)

    def report(self) -> None:
        """Tell how far the prompt has been read."""
        if not self.reply.token_ids:
            done, total = len(self.sequence.ids) - self.cached, len(self.base) - self.cached
            left = self.seconds / done * (total - done) if done > 0 else None
            self.deliver(Prefill(self.cached, done, total, left))


class Part(NamedTuple):
    """The share of one run in a step.

    `draft` is the end of its ids that is only proposed; None while the run reads what stands before.
    """

    run: Run
    span: ScheduledChunk
    draft: list[int] | None
