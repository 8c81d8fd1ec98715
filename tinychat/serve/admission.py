"""Admission: so many requests run at once, others wait in a bounded queue, and clients take turns."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tinychat.serve.api_error import ApiError
from tinychat.serve.slots import Slot


class Turn:
    """The right to run, in a slot of its own."""

    def __init__(self, slot: Slot, leave: Callable[[Slot], None]) -> None:
        self.slot = slot
        self._leave: Callable[[Slot], None] | None = leave

    def release(self) -> None:
        """Let the next one in; nothing happens the second time."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave(self.slot)


class Admission:
    """Lets requests in: `parallel` run at once, `most_waiting` wait beside them; one more is refused.

    All methods belong to one event loop.
    """

    def __init__(self, parallel: int, most_waiting: int) -> None:
        self.parallel = parallel
        self.running = self.waiting = 0
        self.slots = [Slot(number) for number in range(parallel)]
        # The least recently used first.
        self._free = [*self.slots]
        self._most_waiting = most_waiting
        # By client, the one whose turn is next first.
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, client: str, number: int | None = None) -> AsyncIterator[Turn]:
        """Wait for a turn of a client, and hold it; it has the slot of this number if that is free.

        `ApiError` if the queue is full.
        """
        await self._enter(client)
        slot = next((slot for slot in self._free if slot.number == number), self._free[0])
        self._free.remove(slot)
        turn = Turn(slot, self._leave)
        try:
            yield turn
        finally:
            turn.release()

    def _leave(self, slot: Slot) -> None:
        slot.end()
        self._free.append(slot)
        self.running -= 1
        self._let_in()

    def check_room(self) -> None:
        """Refuse, by an `ApiError`, a request that could neither run nor wait."""
        if self.running >= self.parallel and self.waiting >= self._most_waiting:
            message = f"{self.waiting} requests wait already: try again later"
            raise ApiError(503, message, "server_error", code="queue_full", retry_after=5)

    async def _enter(self, client: str) -> None:
        self.check_room()
        if self.running < self.parallel:
            self.running += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._queues.setdefault(client, deque()).append(turn)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                # It was let in at this very moment.
                self.running -= 1
                self._let_in()
            elif turn in self._queues.get(client, ()):
                self._forget(client, turn)
            raise

    def _forget(self, client: str, turn: asyncio.Future[None]) -> None:
        queue = self._queues[client]
        queue.remove(turn)
        self.waiting -= 1
        if not queue:
            del self._queues[client]

    def _let_in(self) -> None:
        """Give free turns to those who wait: one of each client in its turn, the oldest first."""
        while self.running < self.parallel and self._queues:
            client, queue = self._queues.popitem(last=False)
            turn = queue.popleft()
            self.waiting -= 1
            # Who waited may have gone away at this very moment.
            if not turn.cancelled():
                turn.set_result(None)
                self.running += 1
            if queue:
                self._queues[client] = queue
