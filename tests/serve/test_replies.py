"""The replies of a request as events on the server's loop."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from tinychat.generate.reply import Delta
from tinychat.serve.replies import Replies

EVENTS = 50


class WrittenAtOnce:
    """A reply of which another thread posts all events before the loop may run."""

    reply = SimpleNamespace(finish_reason="stop")
    dropped = False

    def listen(self, post):
        """Post all events."""
        texts = [*(Delta(str(number), ()) for number in range(EVENTS)), None]
        thread = threading.Thread(target=lambda: [post(text) for text in texts])
        thread.start()
        thread.join()

    def drop(self):
        """End it."""
        self.dropped = True


async def collected(wakes, turns):
    """Read two replies; note each wake of the loop in `wakes`, and how many events were read at each of its turns."""
    loop = asyncio.get_running_loop()
    call = loop.call_soon_threadsafe
    loop.call_soon_threadsafe = lambda *arguments: wakes.append(1) or call(*arguments)
    events, written = [], []

    def turn():
        turns.append(len(events))
        loop.call_soon(turn)

    loop.call_soon(turn)
    streams = [WrittenAtOnce(), WrittenAtOnce()]
    with Replies(streams, lambda: written.append(len(events))) as replies:
        async for event in replies.events():
            events.append(event)
    assert written == [0]
    assert all(stream.dropped for stream in streams)
    return events


@pytest.fixture
def read():
    """Return the events, the wakes of the loop, and its turns meanwhile."""
    wakes, turns = [], []
    return asyncio.run(collected(wakes, turns)), wakes, turns


def test_all_events_come_in_order(read):
    for choice in range(2):
        texts = [event.event and event.event.text for event in read[0] if event.choice == choice]
        assert texts == [*map(str, range(EVENTS)), None]


def test_events_that_wait_wake_the_loop_once(read):
    assert len(read[1]) == 1


def test_the_loop_turns_between_two_events(read):
    assert set(read[2]) >= set(range(2 * (EVENTS + 1)))
