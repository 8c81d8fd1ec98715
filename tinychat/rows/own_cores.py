"""Cores that a process has to itself beside other processes of tinychat on the same machine."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

from tinychat.engine.system_scheduler import bind_thread
from tinychat.file_lock import open_locked
from tinychat.machine import fast_cores
from tinychat.user_folders import state_folder, trusted_folder

_TASKS = Path("/proc/self/task")


@cache
def bind_to_own_cores(count: int) -> tuple[int, ...]:
    """Bind all threads of this process to so many cores that no other process has bound itself to; return them.

    A core is held by the lock of a file, which ends with the process. If too few are free, or the system does not bind
    threads, nothing changes and there are none.
    """
    held: dict[int, int] = {}
    with suppress(OSError):
        folder = trusted_folder(state_folder(os.environ) / "cores")
        for core in fast_cores():
            if len(held) < count and (file_number := open_locked(folder / f"{core}.lock")) is not None:
                held[core] = file_number
        if len(held) == count:
            for task in _TASKS.iterdir():
                bind_thread(int(task.name), held)
            return tuple(held)
    for file_number in held.values():
        os.close(file_number)
    return ()
