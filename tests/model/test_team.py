"""A team of threads: every job is done by all, whoever sleeps is woken, and nobody is left behind."""

import gc
import threading
import time

import numpy as np
import pytest
from kernels.kernel_inputs import compiled

from tinychat.kernels.threads import barrier, begin, release
from tinychat.model.team import Team


@compiled
def count_jobs(thread, threads, mailbox, counts):
    """Count one's own jobs, and meet: no job ends before all have done their part."""
    while begin(mailbox, thread, threads):
        counts[thread] += 1
        barrier(mailbox, threads)
        if thread == 0:
            release(mailbox, threads)
            return True
    return False


def team_of(threads):
    counts = np.zeros(threads, np.int64)
    return Team(count_jobs, threads, (counts,)), counts


def workers():
    return {thread for thread in threading.enumerate() if thread.name.startswith("tinychat-")}


def wait_until(condition):
    """Wait for another thread's doing, for ten seconds at most."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "nothing happened for ten seconds"
        time.sleep(0)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_every_thread_does_its_part_of_every_job(threads):
    team, counts = team_of(threads)
    for jobs in range(1, 301):
        team.run()
        assert (counts == jobs).all()


def test_compiling_runs_nothing_and_starts_no_thread():
    gc.collect()
    before = workers()
    team, counts = team_of(3)
    team.compile()
    assert not counts.any()
    assert workers() == before


@pytest.mark.parametrize("threads", [2, 4])
def test_sleeping_workers_are_woken(threads):
    team, counts = team_of(threads)
    team.run()
    for jobs in range(2, 6):
        # Recalled workers park at once: the same as after some milliseconds of nothing to do.
        team.replace_arguments((counts,))
        team.run()
        assert (counts == jobs).all()


def test_new_arguments_hold_for_everyone():
    team, old = team_of(3)
    team.run()
    new = np.zeros(3, np.int64)
    team.replace_arguments((new,))
    team.run()
    team.run()
    assert old.tolist() == [1, 1, 1]
    assert new.tolist() == [2, 2, 2]


def test_new_arguments_before_the_first_job():
    team, old = team_of(2)
    new = np.zeros(2, np.int64)
    team.replace_arguments((new,))
    team.run()
    assert (old.tolist(), new.tolist()) == ([0, 0], [1, 1])


def test_a_forgotten_team_ends_its_threads():
    gc.collect()
    before = workers()
    team, _ = team_of(4)
    team.run()
    assert len(workers() - before) == 3
    del team
    gc.collect()
    wait_until(lambda: not workers() - before)


def test_callers_take_turns():
    team, counts = team_of(2)
    callers = [threading.Thread(target=lambda: [team.run() for _ in range(50)]) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert counts.tolist() == [150, 150]
