"""Worker threads: every job is done by all, whoever sleeps is woken, and nobody is left behind."""

import gc
import os
import signal
import threading
import time
import weakref

import numpy as np
import pytest
from kernels.kernel_inputs import compiled

from tinychat.engine import workers as workers_module
from tinychat.engine.system_scheduler import SHORTEST_TURN, ask_for_turns
from tinychat.engine.thread_count import ThreadCount, ThreadTuner
from tinychat.engine.workers import Workers
from tinychat.kernels.team import PARK_AFTER, atomic_add, atomic_load, barrier, begin, relax, release
from tinychat.kernels.team_queue import CLAIMED, CLOSING, LINE, MAX_WAIT, PARKED, STATES, THREADS
from tinychat.machine import usable_cores


@compiled
def count_jobs(thread, threads, queue, counts):
    """Count one's own jobs, and meet: no job ends before all have done their part."""
    while begin(queue, thread, threads):
        counts[thread] += 1
        barrier(queue, thread)
        if thread == 0:
            release(queue)
            return True
    return False


def workers_of(threads):
    counts = np.zeros(threads, np.int64)
    return Workers(count_jobs, ThreadCount(threads, threads), (counts,)), counts


def worker_threads():
    return {thread for thread in threading.enumerate() if thread.name.startswith("tinychat-")}


def wait_until(condition):
    """Wait for another thread's doing, for ten seconds at most."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "nothing happened for ten seconds"
        time.sleep(0)


def park(queue):
    """Send the workers to sleep, as some milliseconds of nothing to do would."""
    queue[CLOSING] = 1
    wait_until(lambda: (queue[STATES + LINE :: LINE] == PARKED).all())
    queue[CLOSING] = 0


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_every_thread_does_its_part_of_every_job(threads):
    workers, counts = workers_of(threads)
    for jobs in range(1, 301):
        workers.run()
        assert (counts == jobs).all()


@compiled
def meet_often(thread, threads, queue, rounds, counts):
    """Meet again and again; count whoever is still there after each barrier."""
    while begin(queue, thread, threads):
        for i in range(rounds.shape[0]):
            if thread < barrier(queue, thread):
                atomic_add(counts, i, 1)
        barrier(queue, thread)
        if thread == 0:
            release(queue)
            return True
    return False


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_a_job_goes_on_without_threads_that_keep_it_waiting(threads):
    counts = np.zeros(200, np.int64)
    count = ThreadCount(1, threads)
    workers = Workers(meet_often, count, (np.zeros(200), counts))
    queue = workers._threads.queue
    workers.run()
    for _ in range(20):
        counts[:] = 0
        queue = workers._threads.queue
        queue[MAX_WAIT] = -1  # every wait is too long
        workers_awake = workers._begin(threads)
        # One thread fewer from each barrier on, down to one; each that is left does its part.
        began = threads if workers_awake else 1
        np.testing.assert_array_equal(counts, np.maximum(began - 1 - np.arange(200), 1))
        assert queue[THREADS] == 1


def test_threads_that_were_let_go_come_back():
    counts = np.zeros(4, np.int64)
    workers = Workers(meet_often, ThreadCount(1, 3), (np.zeros(4), counts))
    workers.run()
    queue = workers._threads.queue
    queue[MAX_WAIT] = -1
    workers._begin(3)
    wait_until(lambda: (queue[STATES + LINE :: LINE] == PARKED).all())
    queue[MAX_WAIT] = 10**12
    counts[:] = 0
    wait_until(lambda: workers._begin(3))
    np.testing.assert_array_equal(counts[-4:] >= 3, True)


@compiled
def lag(thread, threads, queue, may_end):
    """Meet once; whoever is let go stays until it may end."""
    while begin(queue, thread, threads):
        if thread >= barrier(queue, thread):
            while atomic_load(may_end, 0) == 0:
                relax()
        if thread == 0:
            release(queue)
            return True
    return False


def test_memory_of_a_job_lives_until_threads_that_were_let_go_have_left_it(monkeypatch):
    monkeypatch.setattr(ThreadTuner, "patience", lambda pace, tokens: -1e-9)
    may_end = np.zeros(1, np.int64)
    workers = Workers(lag, ThreadCount(1, 2), (may_end,))
    memory = [np.zeros(8) for _ in range(3)]
    lives = [weakref.ref(array) for array in memory]
    lag(-1, 1, workers._threads.queue, may_end)
    workers.run(1, memory.pop(0))
    assert workers._threads.queue[STATES + LINE] == CLAIMED
    workers.run(1, memory.pop(0))
    assert lives[0]() is not None
    may_end[0] = 1
    wait_until(lambda: workers._threads.queue[STATES + LINE] != CLAIMED)
    workers.run(1, memory.pop(0))
    assert [live() is not None for live in lives] == [False, False, True]


def allowed_cores(workers):
    """Return the cores that each worker may run on."""
    return [os.sched_getaffinity(native_id) for native_id in workers._threads.native_ids]


@pytest.fixture
def contended(monkeypatch):
    """Cores that other programs hold, or not; by default they do."""
    said = {"contended": True}
    monkeypatch.setattr(ThreadTuner, "contended", property(lambda pace: said["contended"]))
    return said


several_cores = pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores, and a system that binds threads")


@several_cores
def test_a_thread_for_each_contended_core_is_bound_to_it(contended, monkeypatch):
    monkeypatch.setattr(workers_module, "BIND_AGAIN", 0.0)
    usable = set(usable_cores())
    workers, counts = workers_of(len(usable))
    workers.run()
    callers, turns = [], []
    begin_job = workers._begin

    def begin_and_look(threads):
        callers.append(os.sched_getaffinity(0))
        turns.append(ask_for_turns(SHORTEST_TURN))
        return begin_job(threads)

    monkeypatch.setattr(workers, "_begin", begin_and_look)
    for _ in range(2):
        workers.run()
        cores = [callers[-1], *allowed_cores(workers)]
        assert all(len(each) == 1 for each in cores)
        assert set.union(*cores) == usable
        assert os.sched_getaffinity(0) == usable
    assert set(turns) <= {SHORTEST_TURN, 0}
    contended["contended"] = False
    workers.run()
    assert all(each == usable for each in [callers[-1], *allowed_cores(workers)])
    assert (counts == 4).all()


@several_cores
def test_a_caller_is_not_bound_for_every_short_job(contended, monkeypatch):
    monkeypatch.setattr(workers_module, "BIND_AGAIN", 1e9)
    workers, counts = workers_of(len(usable_cores()))
    workers._bound_at = -1e9
    bound = []
    monkeypatch.setattr(workers_module, "bind_thread", lambda native_id, cores: bound.append(native_id))
    for _ in range(3):
        workers.run()
    assert bound.count(0) == 2  # bound for one job, and freed
    assert (counts == 3).all()


@several_cores
def test_threads_are_bound_only_if_there_is_one_for_each_core(contended):
    usable = set(usable_cores())
    workers, counts = workers_of(len(usable) + 1)
    for _ in range(2):
        workers.run()
        assert all(each == usable for each in allowed_cores(workers))
    assert (counts == 2).all()


@several_cores
def test_a_caller_who_is_interrupted_is_not_left_bound(contended, monkeypatch):
    usable = set(usable_cores())
    workers, _ = workers_of(len(usable))

    def interrupted(threads):
        assert len(os.sched_getaffinity(0)) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "_begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        workers.run()
    assert os.sched_getaffinity(0) == usable


def test_a_worker_that_jobs_go_on_without_parks_at_once(monkeypatch):
    counts = np.zeros(2, np.int64)
    workers = Workers(count_jobs, ThreadCount(1, 2), (counts,))
    wanted = {"threads": 2}
    monkeypatch.setattr(ThreadTuner, "wanted", property(lambda pace: wanted["threads"]))
    workers.run()
    queue, took = workers._threads.queue, []
    for _ in range(50):
        for wanted["threads"] in (2, 1):
            workers.run()
        began = time.monotonic_ns()
        wait_until(lambda: queue[STATES + LINE] == PARKED)
        took.append(time.monotonic_ns() - began)
    assert counts.tolist() == [101, 51]
    # Whatever else this machine is doing, now and then it is at once.
    assert min(took) < PARK_AFTER / 2


@pytest.mark.parametrize("threads", [2, 4])
def test_sleeping_workers_are_woken(threads):
    workers, counts = workers_of(threads)
    workers.run()
    for jobs in range(2, 6):
        park(workers._threads.queue)
        workers.run()
        assert (counts == jobs).all()


def test_a_start_that_is_interrupted_leaves_no_half_started_workers(monkeypatch):
    gc.collect()
    before = worker_threads()
    workers, counts = workers_of(3)
    start = threading.Thread.start

    def interrupted(thread):
        if thread.name == "tinychat-2":
            raise KeyboardInterrupt
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            workers.run()
    wait_until(lambda: not worker_threads() - before)
    workers.run()
    assert counts.tolist() == [1, 1, 1]
    assert len(worker_threads() - before) == 2


def test_ctrl_c_waits_until_all_workers_have_started(monkeypatch):
    gc.collect()
    before = worker_threads()
    workers, counts = workers_of(3)
    start, started = threading.Thread.start, []

    def press_ctrl_c(thread):
        signal.raise_signal(signal.SIGINT)
        start(thread)
        started.append(thread.name)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", press_ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            workers.run()
    assert started == ["tinychat-1", "tinychat-2"]
    wait_until(lambda: not worker_threads() - before)
    workers.run()
    assert counts.tolist() == [1, 1, 1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_workers_of_its_own():
    workers, counts = workers_of(2)
    workers.run()
    child = os.fork()
    if child == 0:
        workers.run()
        os._exit(0 if counts.tolist() == [2, 2] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    workers.run()
    assert counts.tolist() == [2, 2]


def test_forgotten_workers_end():
    gc.collect()
    before = worker_threads()
    workers, _ = workers_of(4)
    workers.run()
    assert len(worker_threads() - before) == 3
    del workers
    gc.collect()
    wait_until(lambda: not worker_threads() - before)


def test_callers_take_turns():
    workers, counts = workers_of(2)
    callers = [threading.Thread(target=lambda: [workers.run() for _ in range(50)]) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert counts.tolist() == [150, 150]
