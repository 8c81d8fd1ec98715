"""Sharing work: every item to one thread, and no thread past a barrier before all have come."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from kernels.kernel_inputs import compiled, on_threads

from tinychat.kernels.ranges import end_ranges, take
from tinychat.kernels.team import YIELD_AFTER, barrier, check_clock, nanoseconds, share, stage
from tinychat.kernels.team_queue import Team, new_queue


@compiled
def shares(threads, items, owner, count):
    """Note for each item which thread has it, and how many do."""
    for thread in range(threads):
        first, last = share(thread, threads, items)
        for item in range(first, last):
            owner[item] = thread
            count[item] += 1


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("items", [0, 1, 2, 5, 63, 64, 1000])
def test_shares_are_contiguous_even_and_complete(threads, items):
    owner, count = np.zeros(items, np.int64), np.zeros(items, np.int64)
    shares(threads, items, owner, count)
    assert (count == 1).all()
    assert (np.diff(owner) >= 0).all()
    sizes = np.bincount(owner, minlength=threads)
    assert sizes.max() - sizes.min() <= 1


@compiled
def take_all(team, items, unit, late, counts, owner):
    """Take the items of some stages; one thread begins each when the others have found nothing left."""
    for i in range(counts.shape[0]):
        if team.thread == late:
            barrier(team.queue, team.thread)
        first, last = take(team.queue, team.thread, items, unit)
        while first < last:
            for item in range(first, last):
                counts[i, item] += 1
                owner[i, item] = team.thread
            first, last = take(team.queue, team.thread, items, unit)
        end_ranges(team)
        if team.thread != late:
            barrier(team.queue, team.thread)
        barrier(team.queue, team.thread)


@pytest.mark.parametrize("late", [-1, 0, 1])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("items", "unit"), [(0, 1), (1, 1), (2, 5), (64, 1), (1000, 7)])
def test_items_of_ranges_are_taken_once_whoever_is_late(threads, items, unit, late):
    stages = 50
    counts, owner = np.zeros((stages, items), np.int64), np.full((stages, items), -1)
    late = late if late < threads else -1
    queue = new_queue(threads, threads)
    with ThreadPoolExecutor(threads) as pool:
        teams = [Team(thread, queue, np.zeros(1, np.int64)) for thread in range(threads)]
        for call in [pool.submit(take_all, team, items, unit, late, counts, owner) for team in teams]:
            call.result()
    assert (counts == 1).all()
    if 0 <= late < threads > 1:
        assert (owner != late).all()


@compiled
def meet(thread, queue, written, seen):
    """In each round write one's own element, meet, read everyone's, and meet again before the next round writes."""
    for i in range(seen.shape[1]):
        written[thread] = i + 1
        barrier(queue, thread)
        seen[thread, i] = written.min() * 1000 + written.max()
        barrier(queue, thread)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_writes_before_a_barrier_are_visible_after(threads):
    rounds = 300
    queue = new_queue(threads, threads)
    written, seen = np.zeros(threads, np.int64), np.zeros((threads, rounds), np.int64)
    with ThreadPoolExecutor(threads) as pool:
        calls = [pool.submit(meet, thread, queue, written, seen) for thread in range(threads)]
        for call in calls:
            call.result()
    np.testing.assert_array_equal(seen, np.tile(np.arange(1, rounds + 1) * 1001, (threads, 1)))


@compiled
def look_after(waited):
    """Look at the clock after so many nanoseconds, 0 for the first time; return before, since when, now, since when."""
    before = nanoseconds()
    since = before - waited if waited else 0
    now, begun = check_clock(since)
    return before, since, now, begun


def test_a_long_spin_yields_and_restarts():
    before, _, now, begun = look_after(0)
    assert before <= now == begun
    before, since, now, begun = look_after(1)
    assert begun in (since, now)  # the other one if this thread was taken off its core just then
    assert before <= now
    before, since, now, begun = look_after(YIELD_AFTER + 1)
    assert since < before <= now == begun


@stage
@compiled
def write_own(team, i, written):
    """Write one's own element."""
    written[team.thread] = i + 1


@stage
@compiled
def read_all(team, i, written, seen):
    """Read everyone's."""
    seen[team.thread, i] = written.min() * 1000 + written.max()


@compiled
def run_stages(team, written, seen):
    """Run the two in turns."""
    for i in range(seen.shape[1]):
        write_own(team, i, written)
        read_all(team, i, written, seen)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_stage_ends_with_a_barrier(threads):
    rounds = 300
    written, seen = np.zeros(threads, np.int64), np.zeros((threads, rounds), np.int64)
    on_threads(run_stages, threads, written, seen)
    np.testing.assert_array_equal(seen, np.tile(np.arange(1, rounds + 1) * 1001, (threads, 1)))


@pytest.mark.parametrize(("first", "noted"), [(0, 0), (1, 6), (3, 4)])
def test_stages_record_times_while_profiling(first, noted):
    clocks = np.zeros(7, np.int64)
    clocks[0] = first
    run_stages(Team(0, new_queue(1), clocks), np.zeros(1, np.int64), np.zeros((1, 50), np.int64))
    times = clocks[first : first + noted]
    assert np.count_nonzero(clocks[1:]) == noted
    assert (np.diff(times[times > 6]) >= 0).all()
    assert clocks[0] == first + noted


def test_a_stage_preserves_name_and_docstring():
    assert (write_own.py_func.__name__, write_own.py_func.__doc__) == ("write_own", "Write one's own element.")
