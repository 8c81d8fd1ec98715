"""The `print` of files of functions: their lines are told with the name of the tool, and never mixed with a reply."""

from __future__ import annotations

import builtins
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

Tell = Callable[[str, str], None]
"""Called with the name of a tool, or of its file, and a line that it prints."""


@dataclass
class _Printing:
    """A call that prints; `rest` is the beginning of its next line."""

    name: str
    stop: threading.Event = field(default_factory=threading.Event)
    rest: str = ""


class FunctionPrint:
    """Replaces `print` in one file; what is printed to a `file` of its own goes there.

    A call that was stopped is told of no more. Lines of threads that a function starts have the name of the file.
    """

    def __init__(self, name: str, tell: Tell) -> None:
        self._tell = tell
        self._of_file = _Printing(name)
        self._running: ContextVar[_Printing] = ContextVar("running", default=self._of_file)

    def __call__(self, *values: object, file: Any = None, **options: Any) -> None:
        """Print values, as the function of Python does."""
        if file is not None:
            builtins.print(*values, file=file, **options)
            return
        written = io.StringIO()
        builtins.print(*values, file=written, **options)
        printing = self._running.get()
        *lines, printing.rest = (printing.rest + written.getvalue()).split("\n")
        for line in lines:
            self._tell_line(printing, line)

    @contextmanager
    def of_call(self, name: str, stop: threading.Event) -> Iterator[None]:
        """Tell what is printed within the block as that of a tool, a line without its end last."""
        printing = _Printing(name, stop)
        token = self._running.set(printing)
        try:
            yield
        finally:
            self._running.reset(token)
            if printing.rest:
                self._tell_line(printing, printing.rest)

    def _tell_line(self, printing: _Printing, line: str) -> None:
        if not printing.stop.is_set():
            self._tell(printing.name, line)
