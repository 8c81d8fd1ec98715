"""The thread that makes steps for replies whose events go to listeners."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tinychat.generate.run import Run

Advance = Callable[[Run], None]
Fail = Callable[[Sequence[Run], Exception], None]
# How long the thread waits for another run before it ends.
_LISTENING_SECONDS = 2.0


class ListenerThread:
    """Makes the steps that runs with a listener wait for, as long as there are any."""

    def __init__(self) -> None:
        self._changed, self._runs = threading.Condition(), list[Run]()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def add(self, run: Run, advance: Advance, fail: Fail) -> None:
        """Make steps until a run is over.

        advance : makes a step for a run. fail : ends runs by an error that a step raised; the thread ends by it, too,
        and the next run begins another one. Both are kept by the thread alone: a driver that is dropped goes at once.
        """
        with self._changed:
            self._runs.append(run)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, args=(advance, fail), daemon=True)
                self._thread.start()

    def remove(self, run: Run) -> None:
        """Make no more steps for a run."""
        with self._changed:
            if run in self._runs:
                self._runs.remove(run)

    def close(self) -> None:
        """Let the thread end as soon as it has no runs."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _work(self, advance: Advance, fail: Fail) -> None:
        try:
            while (run := self._next()) is not None:
                advance(run)
        except Exception as error:
            with self._changed:
                self._thread, runs = None, [*self._runs]
            fail(runs, error)
            raise  # `threading.excepthook` shows where it came from.

    def _next(self) -> Run | None:
        with self._changed:
            self._changed.wait_for(lambda: self._runs or self._is_closed, _LISTENING_SECONDS)
            if self._runs:
                return self._runs[0]
            self._thread = None
            return None
