"""Ctrl-C as a flag, for work that is done in steps."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# The press that raises KeyboardInterrupt after all.
_LAST_PRESS = 3


@contextmanager
def plain_interrupts() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt within a block, for a question to a person; in the main thread."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


class InterruptFlag:
    """While entered, Ctrl-C sets a flag instead of raising KeyboardInterrupt in the middle of a step.

    The third press raises after all. Enter it in the main thread, the only one that handles signals.
    """

    def __init__(self) -> None:
        self._presses = 0
        self._previous: signal._HANDLER = signal.SIG_DFL

    def __call__(self) -> bool:
        """Return whether Ctrl-C was pressed since entering."""
        return self._presses > 0

    def __enter__(self) -> InterruptFlag:
        self._previous = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *_error: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def _press(self, _signal_number: int, _frame: FrameType | None) -> None:
        self._presses += 1
        if self._presses >= _LAST_PRESS:
            raise KeyboardInterrupt
