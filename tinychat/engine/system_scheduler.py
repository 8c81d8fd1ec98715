"""System calls about a thread's scheduling: the cores that it may run on, and the length of its turns."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache

# Linux's numbers of the system calls sched_setattr and sched_getattr, by machine; where a `struct sched_attr` has the
# policy and, since Linux 6.12, the length of turns in nanoseconds; and the shortest that is granted.
SYSTEM_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}
SIZE, POLICY, RUNTIME = 48, 4, 24
SHORTEST_TURN = 100_000


def bind_thread(native_id: int, cores: Collection[int]) -> None:
    """Let a thread run on these cores only, if the system allows that; native_id 0 is the caller's."""
    if sys.platform != "linux":
        return
    with suppress(OSError):
        os.sched_setaffinity(native_id, cores)


def ask_for_turns(nanoseconds: int) -> int:
    """Ask the scheduler for turns of a length for the calling thread; return their length before, 0 without such turns.

    A thread with shorter turns gets no less of a core, but comes back sooner after it has let another program go first:
    one that yields is taken to have had a whole turn (manual page sched_setattr(2), `sched_runtime`).
    """
    calls = _system_calls()
    if calls is None or sys.platform == "win32":
        return 0
    call, (setattr_, getattr_) = calls
    attributes = ctypes.create_string_buffer(SIZE)
    if call(getattr_, 0, attributes, SIZE, 0) != 0 or struct.unpack_from("=I", attributes, POLICY)[0] != os.SCHED_OTHER:
        return 0
    turn: int = struct.unpack_from("=Q", attributes, RUNTIME)[0]
    if turn:
        struct.pack_into("=Q", attributes, RUNTIME, nanoseconds)
        call(setattr_, 0, attributes, 0)
    return turn


@contextmanager
def short_turns() -> Iterator[None]:
    """Give the calling thread the shortest turns within the block; see `ask_for_turns`."""
    turn = ask_for_turns(SHORTEST_TURN)
    try:
        yield
    finally:
        if turn:
            ask_for_turns(turn)


@cache
def _system_calls() -> tuple[ctypes._NamedFuncPointer, tuple[int, int]] | None:
    """Return libc's `syscall` and the two numbers; None where they are not known."""
    if platform.system() != "Linux" or platform.machine() not in SYSTEM_CALLS:
        return None
    return ctypes.CDLL(None).syscall, SYSTEM_CALLS[platform.machine()]
