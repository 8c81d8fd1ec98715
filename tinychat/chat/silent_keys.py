"""Keys that are typed while a reply is drawn: kept for the next prompt, not echoed into the reply."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def silent_keys() -> Iterator[None]:
    """Switch the terminal's echo off for a while; Enter stays Enter, so that it sends at the next prompt."""
    if sys.platform == "win32":
        yield
        return
    import termios

    before = termios.tcgetattr(sys.stdin)
    silent = list(before)
    silent[0] &= ~termios.ICRNL
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSANOW, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)
