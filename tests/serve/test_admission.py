"""The queue of requests."""

import asyncio

import pytest

from tinychat.serve.admission import Admission
from tinychat.serve.api_error import ApiError


class Crowd:
    """Requests of clients, each a task that holds its turn until it is told to leave."""

    def __init__(self, parallel, most_waiting):
        self.admission, self.inside, self._leave, self.tasks = Admission(parallel, most_waiting), [], {}, {}

    async def come(self, name):
        """Let a request of the client of its first letter come."""
        self._leave[name] = asyncio.Event()

        async def stay():
            async with self.admission.turn(name[0]):
                self.inside.append(name)
                await self._leave[name].wait()
            self.inside.remove(name)

        self.tasks[name] = asyncio.create_task(stay())
        await self.settle()

    async def leave(self, name):
        self._leave[name].set()
        await self.settle()

    async def settle(self):
        for _ in range(10):
            await asyncio.sleep(0)

    @property
    def counts(self):
        return self.admission.running, self.admission.waiting


def in_loop(test):
    """Run a test that is a coroutine."""

    def run():
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


@in_loop
async def test_clients_take_turns_and_each_has_its_own_order():
    crowd = Crowd(1, 10)
    for name in ("a1", "a2", "a3", "a4", "b1", "c1", "b2"):
        await crowd.come(name)
    assert crowd.counts == (1, 6)
    order = []
    while crowd.inside:
        order += crowd.inside
        await crowd.leave(crowd.inside[0])
    assert order == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]
    assert crowd.counts == (0, 0)


@in_loop
async def test_one_more_than_may_wait_is_refused():
    crowd = Crowd(2, 1)
    for name in ("a1", "a2", "a3", "b1"):
        await crowd.come(name)
    assert crowd.counts == (2, 1)
    with pytest.raises(ApiError) as error:
        await crowd.tasks["b1"]
    assert (error.value.status, error.value.retry_after) == (503, 5)
    assert error.value.body["error"]["code"] == "queue_full"
    await crowd.leave("a1")
    assert sorted(crowd.inside) == ["a2", "a3"]


@in_loop
async def test_who_leaves_the_queue_costs_nobody_a_turn():
    crowd = Crowd(1, 10)
    for name in ("a1", "b1", "c1"):
        await crowd.come(name)
    crowd.tasks["b1"].cancel()
    await crowd.settle()
    assert crowd.counts == (1, 1)
    await crowd.leave("a1")
    assert crowd.inside == ["c1"]


@in_loop
async def test_who_leaves_when_it_is_let_in_passes_its_turn_on():
    crowd = Crowd(1, 10)
    for name in ("a1", "b1", "c1"):
        await crowd.come(name)
    crowd._leave["a1"].set()
    # One round of the loop: the turn is b1's, which has not run since.
    while crowd.admission.waiting == 2:
        await asyncio.sleep(0)
    crowd.tasks["b1"].cancel()
    await crowd.settle()
    assert crowd.inside == ["c1"]
    assert crowd.counts == (1, 0)


@in_loop
async def test_a_request_that_fails_or_is_cancelled_gives_its_turn_back():
    crowd = Crowd(1, 10)
    for name in ("a1", "b1"):
        await crowd.come(name)
    crowd.tasks["a1"].cancel()
    await crowd.settle()
    assert crowd.admission.running == 1
    assert "b1" in crowd.inside


@in_loop
async def test_one_that_leaves_as_its_turn_comes_passes_it_on():
    crowd = Crowd(1, 10)
    for name in ("a1", "b1", "c1"):
        await crowd.come(name)
    # Both before the loop runs any of them: b1's turn is cancelled, then a1 lets the next one in.
    crowd.tasks["b1"].cancel()
    await asyncio.sleep(0)
    crowd._leave["a1"].set()
    await crowd.settle()
    crowd.tasks["c1"].cancel()
    await crowd.settle()
    for name in ("d1", "e1"):
        await crowd.come(name)
    crowd._leave["d1"].set()
    crowd.tasks["e1"].cancel()
    await crowd.settle()
    assert crowd.counts == (0, 0)
    assert [task.done() for task in crowd.tasks.values()] == [True] * 5
    assert all(task.cancelled() or task.exception() is None for task in crowd.tasks.values())
