"""Makes the cache of earlier texts smaller while memory is short."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from tinychat.generate.idle_sequences import IdleSequences
from tinychat.memory_shortage import memory_shortage

if TYPE_CHECKING:
    from tinychat.engine.engine import Engine

# A look reads some small files, in a millisecond at most; a small model may fill ten megabytes meanwhile.
SECONDS_BETWEEN = 0.25
# The cache may grow again when so many looks, one after another, found enough memory.
LOOKS_UNTIL_GROWTH = 240


def write_notice(line: str) -> None:
    """Write a line for the user to stderr."""
    sys.stderr.write(f"tinychat: {line}\n")


class MemoryWatch:
    """Looks for a shortage of memory now and then, and tells of the first one that made the cache smaller.

    Notices are lines of stderr, unless `on_notice` is set to another function.
    """

    def __init__(self) -> None:
        self.on_notice: Callable[[str], None] = write_notice
        self._next_look = 0.0
        self._enough = 0  # looks since the last shortage
        self._is_small = self._has_told = False

    def look(self, now: float, engine: Engine, idle: IdleSequences) -> None:
        """Halve what an engine caches for later texts, if memory is short; now : seconds of a clock that only rises."""
        if now < self._next_look:
            return
        self._next_look = now + SECONDS_BETWEEN
        if (why := memory_shortage()) is None:
            self._enough += 1
            if self._is_small and self._enough >= LOOKS_UNTIL_GROWTH:
                engine.pool.grow_again()
                self._is_small = False
            return
        self._enough, self._is_small = 0, True
        idle.release_all_but(1)
        pool, before = engine.pool, engine.pool.used_bytes
        pool.shrink()
        if pool.used_bytes < before and not self._has_told:
            self._has_told = True
            has = f"{pool.used_bytes >> 20} MiB instead of {before >> 20}"
            self.on_notice(f"{why}: the cache of earlier texts is now {has}, and more of a prompt may be read again")
