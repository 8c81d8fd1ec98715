"""Signals held while foreign code runs that would lose them, and while the cache or the driver is changed.

Python runs a signal's handler between any two of its own instructions, also in a function that C code has called: LLVM
calls Python while it links a kernel. An exception of the handler is printed and dropped there, or comes out as the
error of an import, and the program goes on as if Ctrl-C had not been pressed. In the middle of a step, it would leave
blocks of the cache to two sequences, or to none.
"""

from __future__ import annotations

# The functions of `signal` make enumerations of what they return, which takes ten times as long.
import _signal  # type: ignore[import-not-found]
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# Those whose handlers end programs or time limits, and so may raise. Windows has the first two only.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM")
NUMBERS = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))
# A user who presses this often wants to leave, at any price.
_PATIENCE = 3
_MOMENT = 0.02


class held_signals:
    """Note the signals that come inside the block, and run their handlers at its end.

    Yields a function for long blocks that runs the handlers of those so far. The third signal is not held, except
    `always`, for a block that soon ends. Only handlers written in Python are put off: by default SIGTERM ends the
    process, which loses nothing. Outside of the main thread, which alone gets signals, nothing happens.
    """

    def __init__(self, always: bool = False) -> None:
        self._always = always
        self._handlers: dict[int, Any] = {}
        self._noted: list[int] = []
        self._presses, self._is_over = 0, False

    def __enter__(self) -> Callable[[], None]:
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: each for number in NUMBERS if callable(each := _signal.getsignal(number))}
        try:
            for number in self._handlers:
                _signal.signal(number, self._note)
        except BaseException:
            self.__exit__()
            raise
        return self._act

    def __exit__(self, *_error: object) -> None:
        try:
            for number, handler in self._handlers.items():
                _signal.signal(number, handler)
        finally:
            self._is_over = True
        self._act()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._presses += 1
        # A handler that raises while the others are put back leaves this function as theirs.
        if self._is_over or (self._presses >= _PATIENCE and not self._always):
            self._handlers[number](number, frame)
        else:
            self._noted.append(number)

    def _act(self) -> None:
        while self._noted:
            number = self._noted.pop(0)
            self._handlers[number](number, sys._getframe())


@contextmanager
def lost_signals_sent_again(on_loss: Callable[[], int]) -> Iterator[None]:
    """Send a signal again whose exception was dropped in a function that C code has called.

    `on_loss` is called first, and returns the number of the signal whose handler raised last.
    """
    previous = sys.unraisablehook

    def send_again(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, (KeyboardInterrupt, SystemExit)):
            previous(unraisable)
            return
        number = signal.SIGINT if issubclass(unraisable.exc_type, KeyboardInterrupt) else on_loss()
        # By a thread, later: an exception of a handler that ran now would be lost in the same way.
        timer = threading.Timer(_MOMENT, os.kill, (os.getpid(), number))
        timer.daemon = True
        timer.start()

    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = previous
