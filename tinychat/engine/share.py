"""The share of the cores that a process takes: fewer threads, and pauses between steps for the rest.

The processor time of all threads together is measured, whatever they do: a pause makes up for a step, and for what came
since the one before. What is computed does not depend on it.
"""

import math
import time
from collections.abc import Callable

from tinychat.machine import available_cores

ALL = 100
# The seconds of the whole share that may be taken at once after a rest.
SAVED = 0.1
# The longest part of a pause: signals act between two.
LONGEST_SLEEP = 0.05
# Processor time between two steps that counts: a tool that computes for a minute costs no minutes of pause.
BETWEEN = 0.2
# No clock tells so few seconds apart.
NOTHING = 1e-6


class ProcessorShare:
    """A percentage of the cores' time for this process; `clock` and `used` tell seconds, `sleep` waits for some."""

    def __init__(
        self,
        percent: int = ALL,
        cores: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.process_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.percent = percent
        self.rate: float = (available_cores() if cores is None else cores) * percent / ALL  # seconds in a second
        self._clock, self._used, self._sleep = clock, used, sleep
        self._debt = 0.0  # seconds of processor time that are to be made up for
        self._at, self._counted = clock(), used()

    @property
    def threads(self) -> int:
        """The most threads that are of use: each has a core to itself."""
        return max(1, math.ceil(self.rate))

    def wait(self, between: Callable[[], object] = lambda: None) -> None:
        """Wait until a step may begin; call `between` from time to time."""
        if self.percent >= ALL:
            return
        self._count(BETWEEN)
        while self._debt > NOTHING:
            self._sleep(min(self._debt / self.rate, LONGEST_SLEEP))
            between()
            self._count(BETWEEN)

    def note(self) -> None:
        """Count the step that has ended."""
        if self.percent < ALL:
            self._count(math.inf)

    def _count(self, most: float) -> None:
        now, used = self._clock(), self._used()
        taken, granted = min(used - self._counted, most), self.rate * (now - self._at)
        self._debt = max(self._debt + taken - granted, -SAVED * self.rate)
        self._at, self._counted = now, used
