"""What threads ask of the scheduler: granted where the system can, and nothing elsewhere."""

import ctypes
import os
import platform
import struct
from concurrent.futures import ThreadPoolExecutor

import pytest

from tinychat.engine.system_scheduler import SHORTEST_TURN, ask_for_short_turns, bind_thread
from tinychat.machine import usable_cores

SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}


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


def turn_of_this_thread():
    """Return how long the scheduler's turns of this thread are, in nanoseconds: 0 before Linux 6.12."""
    attributes = ctypes.create_string_buffer(48)
    assert ctypes.CDLL(None).syscall(SCHED_GETATTR[platform.machine()], 0, attributes, 48, 0) == 0
    return struct.unpack("=IIQiIQQQ", attributes.raw)[5]


@pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() not in SCHED_GETATTR, reason="needs a system call of Linux"
)
def test_short_turns_are_this_threads_alone_and_its_priority_stays():
    def nicely():
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + 1)
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        ask_for_short_turns()
        assert os.getpriority(os.PRIO_PROCESS, 0) == nice
        return turn_of_this_thread()

    before = turn_of_this_thread()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(nicely).result() == (SHORTEST_TURN if before else 0)
    assert turn_of_this_thread() == before


def test_a_system_without_turns_is_left_alone(monkeypatch):
    opened = []
    monkeypatch.setattr(platform, "machine", lambda: "abacus")
    monkeypatch.setattr(ctypes, "CDLL", opened.append)
    ask_for_short_turns()
    assert opened == []
