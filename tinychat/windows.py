"""Facts about the machine and this process on Windows, and requests to the system, through kernel32.

Nothing here is called on other systems. 64-bit Windows has one calling convention, so `ctypes.CDLL` serves.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

_BELOW_NORMAL = 0x4000
_STANDARD_HANDLES = {1: -11, 2: -12}
_DRAWS_ESCAPE_CODES = 0x0004
_THIS_PROCESS = ctypes.c_void_p(-1)  # the handle that stands for it


class _MemoryStatus(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("total", "available", "pages", "free_pages", "space", "free", "rest")),
    ]


class _PowerStatus(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint8) for name in ("on_mains", "flags", "percent", "saves")),
        ("seconds", ctypes.c_uint32),
        ("full_seconds", ctypes.c_uint32),
    ]


class _ProcessMemory(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32),
        ("page_faults", ctypes.c_uint32),
        *((name, ctypes.c_size_t) for name in ("peak", "working_set", "a", "b", "c", "d", "pages", "peak_pages")),
    ]


class Memory(NamedTuple):
    """Bytes of the main memory, and those that programs could still take."""

    total: int
    available: int


def memory() -> Memory | None:
    """Return the main memory, None if the system does not tell."""
    status = _MemoryStatus(size=ctypes.sizeof(_MemoryStatus))
    found = _kernel32().GlobalMemoryStatusEx(ctypes.byref(status))
    return Memory(status.total, status.available) if found else None


def discard(address: int, length: int) -> None:
    """Let the system take whole pages, whose contents are lost."""
    _kernel32().DiscardVirtualMemory(ctypes.c_void_p(address), ctypes.c_size_t(length))


def peak_bytes() -> int:
    """Return the largest working set of this process so far."""
    counters = _ProcessMemory(size=ctypes.sizeof(_ProcessMemory))
    _kernel32().K32GetProcessMemoryInfo(_THIS_PROCESS, ctypes.byref(counters), ctypes.c_uint32(counters.size))
    return int(counters.peak)


def is_on_battery() -> bool:
    """Return whether the machine runs on its battery; an unknown source counts as mains."""
    status = _PowerStatus(on_mains=255)
    return bool(_kernel32().GetSystemPowerStatus(ctypes.byref(status))) and status.on_mains == 0


def lower_priority() -> bool:
    """Let other programs go before this process; return whether the system agreed."""
    return bool(_kernel32().SetPriorityClass(_THIS_PROCESS, ctypes.c_uint32(_BELOW_NORMAL)))


def draw_escape_codes(file_number: int) -> bool:
    """Let the console behind stdout (1) or stderr (2) draw escape codes; return whether there is one that does."""
    kernel32 = _kernel32()
    kernel32.GetStdHandle.restype = ctypes.c_void_p
    handle = ctypes.c_void_p(kernel32.GetStdHandle(ctypes.c_int32(_STANDARD_HANDLES[file_number])))
    mode = ctypes.c_uint32()
    if not kernel32.GetConsoleMode(handle, ctypes.byref(mode)):
        return False
    return bool(kernel32.SetConsoleMode(handle, ctypes.c_uint32(mode.value | _DRAWS_ESCAPE_CODES)))


def _kernel32() -> Any:
    return ctypes.CDLL("kernel32.dll")
