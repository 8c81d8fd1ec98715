"""Facts about the machine on macOS, and requests to the system, through its C library."""

from __future__ import annotations

import ctypes
import subprocess

_USER_INITIATED = 0x19
_SECONDS = 2.0


def system_text(name: str) -> str:
    """Return a text of sysctl, such as machdep.cpu.brand_string; empty where there is none of that name."""
    return _value(name, 256).rstrip(b"\0").decode("utf-8", "replace")


def system_number(name: str) -> int | None:
    """Return a number of sysctl, such as hw.memsize; None where there is none of that name."""
    value = _value(name, 8)
    return int.from_bytes(value, "little") if len(value) in (4, 8) else None


def prefer_fast_cores() -> bool:
    """Ask for performance cores for the calling thread; return whether the system agreed.

    Cores cannot be named there: the scheduler chooses by a thread's class of service.
    """
    try:
        ask = ctypes.CDLL(None).pthread_set_qos_class_self_np
        return bool(ask(ctypes.c_uint(_USER_INITIATED), ctypes.c_int(0)) == 0)
    except (AttributeError, OSError):
        return False


def is_on_battery() -> bool:
    """Return whether the machine runs on its battery, as pmset says; an unknown source counts as mains."""
    try:
        done = subprocess.run(["pmset", "-g", "batt"], capture_output=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return b"'Battery Power'" in done.stdout


def _value(name: str, longest: int) -> bytes:
    value, size = ctypes.create_string_buffer(longest), ctypes.c_size_t(longest)
    try:
        failed = ctypes.CDLL(None).sysctlbyname(name.encode(), value, ctypes.byref(size), None, ctypes.c_size_t(0))
    except (AttributeError, OSError):
        return b""
    return b"" if failed else value.raw[: size.value]
