"""How much a server may send: the limits of a message and of a second."""

from __future__ import annotations

from time import monotonic

LONGEST_MESSAGE = 16 << 20
# What no server needs, and what a thread of ours reads in a second without harm.
MOST_MESSAGES, MOST_BYTES = 5000, 64 << 20
TOO_LONG = f"it sent a message of more than {LONGEST_MESSAGE >> 20} MB"
TOO_MUCH = f"it sent more than {MOST_MESSAGES} messages or {MOST_BYTES >> 20} MB in a second"


class Rate:
    """Counts the messages and bytes of the current second."""

    def __init__(self) -> None:
        self._begin, self._count, self._bytes = 0.0, 0, 0

    def admits(self, size: int) -> bool:
        """Count one more message; return whether it is within the limits."""
        if (now := monotonic()) - self._begin >= 1:
            self._begin, self._count, self._bytes = now, 0, 0
        self._count += 1
        self._bytes += size
        return self._count <= MOST_MESSAGES and self._bytes <= MOST_BYTES
