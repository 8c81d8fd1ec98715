"""Linux's grant of the tile registers of AMX, which a process must ask for before its first tile instruction."""

import ctypes
import os
import platform
import sys
from functools import cache

SYS_ARCH_PRCTL = 158
ARCH_REQ_XCOMP_PERM = 0x1023
XFEATURE_XTILEDATA = 18


@cache
def refusal() -> str | None:
    """Ask for the tile registers, for all threads of this process; return why they are refused, None if granted.

    Linux before 5.16 does not know the question. Later ones refuse where a thread has an alternative signal stack that
    is too small for these registers.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "only Linux on x86-64 grants tile registers"
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.argtypes, call.restype = [ctypes.c_long] * 3, ctypes.c_long
    if call(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0:
        return None
    return f"Linux refuses the tile registers: {os.strerror(ctypes.get_errno())}"
