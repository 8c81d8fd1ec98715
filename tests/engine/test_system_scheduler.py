"""What threads ask of the scheduler: granted where the system can, and nothing elsewhere."""

import ctypes
import os
import platform
import struct
from concurrent.futures import ThreadPoolExecutor

import pytest

from tinychat.engine.system_scheduler import (
    SHORTEST_TURN,
    SYSTEM_CALLS,
    _system_calls,
    ask_for_turns,
    bind_thread,
    short_turns,
)
from tinychat.machine import usable_cores


@pytest.mark.skipif(not usable_cores(), reason="this system binds no threads")
def test_a_thread_runs_where_it_is_bound_and_elsewhere_is_ignored():
    usable = usable_cores()
    try:
        bind_thread(0, usable[-1:])
        assert usable_cores() == usable[-1:]
        bind_thread(0, [10**6])  # no such core
        assert usable_cores() == usable[-1:]
    finally:
        bind_thread(0, usable)
    assert usable_cores() == usable


needs_linux = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() not in SYSTEM_CALLS, reason="needs a system call of Linux"
)


def turn_of_this_thread():
    """Return how long the scheduler's turns of this thread are, in nanoseconds: 0 before Linux 6.12."""
    attributes = ctypes.create_string_buffer(48)
    assert ctypes.CDLL(None).syscall(SYSTEM_CALLS[platform.machine()][1], 0, attributes, 48, 0) == 0
    return struct.unpack("=IIQiIQQQ", attributes.raw)[5]


@needs_linux
def test_short_turns_are_this_threads_alone_and_its_priority_stays():
    def nicely():
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + 1)
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        assert ask_for_turns(SHORTEST_TURN) == before
        assert os.getpriority(os.PRIO_PROCESS, 0) == nice
        return turn_of_this_thread()

    before = turn_of_this_thread()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(nicely).result() == (SHORTEST_TURN if before else 0)
    assert turn_of_this_thread() == before


@needs_linux
def test_short_turns_end_with_their_block_whatever_happens():
    before = turn_of_this_thread()
    with pytest.raises(KeyboardInterrupt), short_turns():
        assert turn_of_this_thread() == (SHORTEST_TURN if before else 0)
        raise KeyboardInterrupt
    assert turn_of_this_thread() == before


@needs_linux
def test_a_thread_with_another_policy_is_left_alone():
    def in_batches():
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        before = turn_of_this_thread()
        return ask_for_turns(SHORTEST_TURN), turn_of_this_thread() == before

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(in_batches).result() == (0, True)


@pytest.mark.parametrize("system", ["system", "machine"])
def test_a_system_without_turns_is_left_alone(monkeypatch, system):
    opened = []
    _system_calls.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(platform, system, lambda: "abacus")
        patch.setattr(ctypes, "CDLL", opened.append)
        with short_turns():
            assert ask_for_turns(SHORTEST_TURN) == 0
    _system_calls.cache_clear()
    assert opened == []
