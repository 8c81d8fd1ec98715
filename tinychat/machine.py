"""The machine: its processor, memory and cores, and how busy they are."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from tinychat import macos, windows
from tinychat.control_group import group_memory

PROC = Path("/proc")
CPU_INFO = PROC / "cpuinfo"
DEVICES = Path("/sys/devices")
POWER_SUPPLIES = Path("/sys/class/power_supply")
# Of the fastest core's speed: cores of one kind differ by less, those that save energy by more.
_FAST = 0.75
_NICENESS = 10
# Advice on memory: Linux takes the pages at once, macOS when it needs them.
_MAY_TAKE = 4 if sys.platform == "linux" else 5


def processor_name() -> str:
    """Return the name of the processor."""
    try:
        for line in CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    told = macos.system_text("machdep.cpu.brand_string") if sys.platform == "darwin" else ""
    return told or platform.processor() or platform.machine()


def memory_bytes() -> int | None:
    """Return the size of the main memory, None where the system does not tell."""
    if sys.platform == "win32":
        return found.total if (found := windows.memory()) else None
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def available_memory_bytes() -> int | None:
    """Return the memory that this process could still take, None where the system does not tell."""
    if sys.platform == "win32":
        return found.available if (found := windows.memory()) else None
    if sys.platform == "darwin":
        percent, total = macos.system_number("kern.memorystatus_level"), memory_bytes()
        return None if percent is None or total is None else total * percent // 100
    group = group_memory()
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
                return min(free, group.available) if group else free
    except (OSError, ValueError):
        pass
    return group.available if group else None


def discard_pages(address: int, length: int) -> None:
    """Let the system take pages of this process, whose contents are lost."""
    if sys.platform == "win32":
        windows.discard(address, length)
    else:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), _MAY_TAKE)


def proportional_bytes(process: int, proc: Path = PROC) -> int | None:
    """Return the memory of a process, in which a page that n processes map counts 1/n (PSS); None if nobody tells."""
    try:
        lines = (proc / f"{process}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except (OSError, ValueError, StopIteration):
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


def fast_cores(devices: Path = DEVICES) -> list[int]:
    """Return those of `usable_cores` that are faster than others; all of them where they are alike, or nobody tells."""
    usable, known = usable_cores(), _known_fast_cores(devices)
    return [core for core in usable if core in known] or usable


@cache
def _known_fast_cores(devices: Path) -> set[int]:
    """Return the faster cores of the machine by what Linux tells of Intel's hybrids, of ARM's, and of frequencies."""
    with suppress(OSError, ValueError):
        return _core_numbers((devices / "cpu_core/cpus").read_text())
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        with suppress(OSError, ValueError):
            files = devices.glob(f"system/cpu/cpu[0-9]*/{name}")
            speeds = {int(file.relative_to(devices).parts[2][3:]): int(file.read_text()) for file in files}
            if speeds:
                return {core for core, speed in speeds.items() if speed >= _FAST * max(speeds.values())}
    return set()


def cores_for(threads: int) -> list[int]:
    """Return the cores for so many threads: the fast ones if these are enough, else all of `usable_cores`."""
    fast = fast_cores()
    return fast if threads <= len(fast) else usable_cores()


def default_threads() -> int:
    """Return the number of threads that compute fastest: one for each core, those that save energy left out."""
    fast = macos.system_number("hw.perflevel0.physicalcpu") if sys.platform == "darwin" else len(fast_cores())
    return min(available_cores(), fast or available_cores())


def is_on_battery(supplies: Path = POWER_SUPPLIES) -> bool:
    """Return whether this machine runs on its battery; an unknown source counts as mains."""
    if sys.platform == "win32":
        return windows.is_on_battery()
    if sys.platform == "darwin":
        return macos.is_on_battery()
    kinds = [(_word(each / "type"), each) for each in sorted(supplies.glob("*"))]
    mains = [each for kind, each in kinds if kind in ("Mains", "USB")]
    # That of a mouse has the scope "Device".
    own = [each for kind, each in kinds if kind == "Battery" and _word(each / "scope") != "Device"]
    is_drained = any(_word(each / "status") == "Discharging" for each in own)
    return is_drained and not any(_word(each / "online") == "1" for each in mains)


def lower_priority() -> bool:
    """Let other programs go before this process, from now on; return whether the system agreed."""
    if sys.platform == "win32":
        return windows.lower_priority()
    try:
        os.nice(max(0, _NICENESS - os.nice(0)))
    except OSError:
        return False
    return True


def _word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""


def _core_numbers(text: str) -> set[int]:
    """Return the numbers of a list as Linux writes it, such as 0-3,8."""
    bounds = [part.partition("-") for part in text.strip().split(",")]
    return {core for first, _, last in bounds for core in range(int(first), int(last or first) + 1)}


def available_cores() -> int:
    """Return the number of cores that this process may use: affinity, then the cgroup's quota."""
    cores = len(usable_cores()) or os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return cores if quota == "max" else max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return cores
