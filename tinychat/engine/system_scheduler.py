"""What a thread asks of the system's scheduler: which cores it may run on, and how long its turns are."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Collection
from contextlib import suppress

# Linux's number of the system call sched_setattr, by machine; and the shortest turn that it grants, in nanoseconds.
SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
SHORTEST_TURN = 100_000


def bind_thread(native_id: int, cores: Collection[int]) -> None:
    """Let a thread run on these cores only, if the system allows that; native_id : 0 for the one that calls."""
    with suppress(OSError):
        os.sched_setaffinity(native_id, cores)


def ask_for_short_turns() -> None:
    """Ask the scheduler for turns of 0.1 ms for this thread: Linux 6.12 and later; elsewhere nothing happens.

    It gets no less of a core, but comes back sooner after it has let another program go first: a thread that yields is
    taken to have had a whole turn (`struct sched_attr` in the manual page sched_setattr(2), `sched_runtime`).
    """
    number = SCHED_SETATTR.get(platform.machine())
    if platform.system() != "Linux" or number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    size, nice = 48, os.getpriority(os.PRIO_PROCESS, 0)
    attributes = struct.pack("=IIQiIQQQ", size, os.SCHED_OTHER, 0, nice, 0, SHORTEST_TURN, 0, 0)
    ctypes.CDLL(None).syscall(number, 0, attributes, 0)
