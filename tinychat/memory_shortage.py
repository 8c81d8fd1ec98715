"""Whether memory is short, so that a system may soon end a process: noticed before it does."""

from __future__ import annotations

import sys
from pathlib import Path

from tinychat import macos
from tinychat.control_group import group_memory
from tinychat.machine import available_memory_bytes, memory_bytes

PRESSURE = Path("/proc/pressure/memory")
# Memory is short if less than this share of all is left; of little and of much memory, less than so many bytes.
_SHARE, _FEWEST, _MOST = 0.05, 64 << 20, 512 << 20
# Percent of the last ten seconds in which all programs waited for memory; Linux's own daemon ends some from 60 on.
_WAITING = 10.0
_MACOS_WARNS = 2  # 1 is normal, 4 critical


def memory_shortage(pressure: Path = PRESSURE) -> str | None:
    """Return why memory is short, in words; None if it is not, or where the system does not tell."""
    if sys.platform == "darwin" and (macos.system_number("kern.memorystatus_vm_pressure_level") or 0) >= _MACOS_WARNS:
        return "macOS warns that memory is short"
    free = available_memory_bytes()
    if free is not None and free < _MOST and free < _fewest():
        return f"only {free >> 20} MiB of memory are free"
    if (waiting := _waiting(pressure)) >= _WAITING:
        return f"programs waited for memory in {waiting:.0f} % of the last ten seconds"
    return None


def _fewest() -> float:
    """Return the bytes that should be free."""
    group = group_memory()
    limits = [limit for limit in (memory_bytes(), group and group.limit) if limit]
    return max(_SHARE * min(limits, default=0), _FEWEST)


def _waiting(pressure: Path) -> float:
    """Return the percentage of the last ten seconds in which all programs waited for memory."""
    try:
        for line in pressure.read_text().splitlines():
            kind, _, figures = line.partition(" ")
            if kind == "full":
                return float(dict(each.split("=") for each in figures.split())["avg10"])
    except (OSError, ValueError, KeyError):
        pass
    return 0.0
