"""A team of threads that run one compiled function together, again and again.

The caller's thread is number 0 and takes part itself. It is never interrupted between telling the others to begin and
beginning: both happen inside the compiled function, and Ctrl-C reaches Python only after that has returned.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from tinychat.kernels.threads import RECALL, new_mailbox

TakePart = Callable[..., bool]
"""``take_part(thread, threads, mailbox, *arguments)``: thread 0 posts a job and does its share, and returns False
without having begun if a worker sleeps; any other thread does its share of jobs until it is idle."""


class Workers:
    """What the worker threads know; holds no reference to the team, so that a forgotten team ends them."""

    def __init__(self, take_part: TakePart, threads: int, arguments: tuple[Any, ...]) -> None:
        self.take_part = take_part
        self.threads = threads
        self.arguments = arguments
        self.mailbox = new_mailbox(threads)
        self.closed = False
        self.wake = [threading.Event() for _ in range(threads)]

    def start(self) -> None:
        """Start the workers; daemons, so that they never keep the process."""
        for thread in range(1, self.threads):
            name = f"tinychat-{thread}"
            threading.Thread(target=self.serve, args=(thread,), name=name, daemon=True).start()

    def serve(self, thread: int) -> None:
        """Take part in jobs while there are any; sleep in between."""
        while True:
            self.wake[thread].wait()
            self.wake[thread].clear()
            if self.closed:
                return
            self.take_part(thread, self.threads, self.mailbox, *self.arguments)

    def wake_all(self) -> None:
        """Wake whoever sleeps."""
        for event in self.wake:
            event.set()

    def close(self) -> None:
        """End the threads."""
        self.closed = True
        self.mailbox[RECALL] = 1
        self.wake_all()


class Team:
    """`threads` threads for `take_part`, whose arguments are the same for every job.

    Parameters
    ----------
    take_part : compiled function
        See `TakePart`.
    threads : int
        The caller's included.
    arguments : tuple
        Arrays and namedtuples; a job's particulars are written into them before `run`.
    """

    def __init__(self, take_part: TakePart, threads: int, arguments: tuple[Any, ...]) -> None:
        self._workers = Workers(take_part, threads, arguments)
        self._lock = threading.Lock()
        self._process: int | None = None

    def run(self) -> None:
        """Run one job on all threads; return when all is done."""
        with self._lock:
            if self._process != os.getpid():
                self._start()
            workers = self._workers
            while not workers.take_part(*self.call_arguments()):
                workers.wake_all()
                time.sleep(0)  # lets go of the interpreter, which a worker needs to get going

    def _start(self) -> None:
        """Start workers, new ones: a fork copies no threads, and a start that Ctrl-C broke off leaves some of them."""
        workers = Workers(self._workers.take_part, self._workers.threads, self._workers.arguments)
        weakref.finalize(self, workers.close)
        try:
            workers.start()
        except BaseException:
            workers.close()
            raise
        self._workers, self._process = workers, os.getpid()

    def compile(self) -> None:
        """Compile the function, or load it from the kernel cache: thread -1 does nothing."""
        self._workers.take_part(*self.call_arguments(-1))

    def call_arguments(self, thread: int = 0) -> tuple[Any, ...]:
        """Return what `take_part` is called with."""
        workers = self._workers
        return (thread, workers.threads, workers.mailbox, *workers.arguments)
