"""The machine: its processor, memory and cores, and how busy they are."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")


def processor_name() -> str:
    """Return the name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def memory_bytes() -> int | None:
    """Return the size of the main memory, None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def available_memory_bytes() -> int | None:
    """Return the memory that programs could still take, None where the system does not tell."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def core_wait(threads: Iterable[int], proc: Path = PROC) -> float | None:
    """Return the seconds that threads of this process, by native id, were ready to run while others had their cores.

    None where the system does not tell.
    """
    try:
        return sum(int((proc / f"self/task/{each}/schedstat").read_text().split()[1]) for each in threads) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def free_cores(proc: Path = PROC) -> int | None:
    """Return how many more threads the machine could run at this moment; None where the system does not tell."""
    try:
        running = (proc / "loadavg").read_text().split()[3].split("/")[0]
        return max(0, (os.cpu_count() or 1) - int(running))
    except (OSError, ValueError, IndexError):
        return None


def usable_cores() -> list[int]:
    """Return the cores that this thread may run on, ascending; none where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def available_cores() -> int:
    """Return the number of cores that this process may use: affinity, then the cgroup's quota."""
    cores = len(usable_cores()) or os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return cores if quota == "max" else max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return cores
