"""The worker threads: they run one compiled function together, job after job.

The caller's thread is number 0 and takes part itself. It cannot be interrupted between posting a job and working on
it: both happen inside the compiled function, and Ctrl-C reaches Python only after that has returned.

Each job takes as many threads as `engine.thread_count` chooses. If that is one for each core although other programs
hold cores, each thread is bound to one: left to the scheduler, two of them now and then share a core, and one waits
for the other's turn at every barrier.
"""

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from tinychat import macos
from tinychat.engine.system_scheduler import SHORTEST_TURN, ask_for_turns, bind_thread, short_turns
from tinychat.engine.thread_count import Cores, ThreadCount
from tinychat.held_signals import held_signals
from tinychat.kernels.team_queue import CLAIMED, CLOSING, LINE, MAX_WAIT, STATES, WAITED, new_queue
from tinychat.machine import core_wait, cores_for, free_cores, usable_cores

WorkerLoop = Callable[..., bool]
"""``worker_loop(thread, threads, queue, *arguments)``: thread 0 posts a job for `threads` threads and does its share;
it returns False without having begun if one of them sleeps. Any other thread does its share of jobs until it idles."""

# Seconds that a job waits for workers to wake before it makes do with the fewest threads allowed.
WAKING = 0.05
# Seconds after which the caller is bound to its core again, for one job: it stays there by itself for a while, and to
# be bound and freed for each token of a small model costs a tenth of its time.
BIND_AGAIN = 0.05


class WorkerThreads:
    """The state of the worker threads; it has no reference to `Workers`, so that they end when that is collected."""

    def __init__(self, worker_loop: WorkerLoop, count: ThreadCount, arguments: tuple[Any, ...]) -> None:
        self.worker_loop = worker_loop
        self.count = count
        self.arguments = arguments
        self.queue = new_queue(count.most, count.fewest)
        self.native_ids: list[int] = []
        self.bound = False  # the workers, each to a core
        self.closed = False
        self.memory: list[tuple[Any, ...]] = []  # of the last job, and of earlier ones that a thread may still be in
        self.wake = [threading.Event() for _ in range(count.most)]

    def start(self) -> None:
        """Start the workers as daemons, which do not keep the process alive."""
        for thread in range(1, self.count.most):
            name = f"tinychat-{thread}"
            threading.Thread(target=self.serve, args=(thread,), name=name, daemon=True).start()

    def serve(self, thread: int) -> None:
        """Work on jobs while there are any; sleep in between."""
        ask_for_turns(SHORTEST_TURN)
        self.native_ids.append(threading.get_native_id())
        if sys.platform == "darwin":
            macos.prefer_fast_cores()
        elif len(cores := cores_for(self.count.most)) < len(usable_cores()):
            bind_thread(0, cores)
        while True:
            self.wake[thread].wait()
            self.wake[thread].clear()
            if self.closed:
                return
            self.worker_loop(thread, self.count.most, self.queue, *self.arguments)

    def keep(self, *memory: Any) -> None:
        """Hold references to a job's memory as long as a thread may read it.

        A thread that a job has let go ends after the others, perhaps when the caller has dropped the job.
        """
        if len(self.memory) == 1 and all(a is b for a, b in zip(self.memory[0], memory, strict=True)):
            return
        if not (self.queue[STATES + LINE :: LINE] == CLAIMED).any():
            self.memory.clear()
        self.memory.append(memory)

    def bind(self, cores: list[int], bound: bool) -> None:
        """Bind each worker to one of `cores`, the first of which is the caller's; or let them run on all of these."""
        if bound != self.bound and len(self.native_ids) == self.count.most - 1:  # all have said who they are
            self.bound = bound
            for i, native_id in enumerate(self.native_ids, 1):
                bind_thread(native_id, cores[i : i + 1] if bound else cores)

    def wake_first(self, threads: int) -> None:
        """Wake those of the first `threads` threads that sleep."""
        for event in self.wake[:threads]:
            event.set()

    def close(self) -> None:
        """End the threads."""
        self.closed = True
        self.queue[CLOSING] = 1
        self.wake_first(self.count.most)


class Workers:
    """Threads for `worker_loop`, whose arguments are the same for every job.

    worker_loop : see `WorkerLoop`; count : the number of threads of a job, the caller's included; arguments : arrays
    and namedtuples, into which a job is written before `run`.
    """

    def __init__(self, worker_loop: WorkerLoop, count: ThreadCount, arguments: tuple[Any, ...]) -> None:
        self._threads = WorkerThreads(worker_loop, count, arguments)
        self._lock = threading.Lock()
        self._worked = 0.0  # seconds
        self._bound_at = -BIND_AGAIN  # when a job last began with the caller bound to a core
        self._process: int | None = None

    def run(self, tokens: int = 1, *memory: Any) -> None:
        """Run one job of `tokens` tokens on as many threads as are fastest now.

        memory : of the job, whose arguments are only pointers, in the same order each time; it lives until no thread
        reads it.
        """
        with self._lock:
            if self._process != os.getpid():
                self._start()
            self._threads.keep(*memory)
            self._threads.queue[CLOSING] = 0
            tuner, queue = self._threads.count.tuner(tokens), self._threads.queue
            tuner.begin(self._ask_cores)
            queue[MAX_WAIT] = int(1e9 * tuner.patience(tokens))
            started = time.perf_counter()
            if tuner.contended or self._threads.bound:
                awake = self._begin_bound(tuner.wanted, tuner.contended)
            else:
                awake = self._begin(tuner.wanted)
            ended = time.perf_counter()
            waited = queue[WAITED] / 1e9 if awake else ended - started
            self._worked += ended - started
            tuner.note(tokens, ended - started, waited, self._ask_cores)

    def limit(self, threads: int) -> None:
        """Let jobs take at most so many threads from now on; the others sleep."""
        with self._lock:
            self._threads.count.limit(threads)
            self._threads.queue[CLOSING] = 1

    def rest(self) -> None:
        """Let the workers sleep until the next job; without this they look out for it for a while."""
        with self._lock:
            self._threads.queue[CLOSING] = 1

    def _ask_cores(self) -> Cores:
        return Cores(self._worked, core_wait([threading.get_native_id(), *self._threads.native_ids]), free_cores())

    def _begin(self, wanted: int) -> bool:
        """Run a job on `wanted` threads, or on the fewest if some take long to wake; return whether all did."""
        workers, threads, deadline = self._threads, wanted, time.monotonic() + WAKING
        while not workers.worker_loop(0, threads, workers.queue, *workers.arguments):
            if time.monotonic() > deadline:
                threads = min(threads, workers.count.fewest)
            workers.wake_first(threads)
            time.sleep(0)  # releases the interpreter's lock, which a worker needs to begin
        return threads == wanted

    def _begin_bound(self, wanted: int, contended: bool) -> bool:
        """Begin as `_begin` does; with a thread for each core, bind each to one: the caller's for some jobs only."""
        cores, now = cores_for(self._threads.count.most), time.monotonic()
        bound = contended and 1 < wanted == len(cores)
        self._threads.bind(cores, bound)
        if not bound or now - self._bound_at < BIND_AGAIN:
            return self._begin(wanted)
        self._bound_at, usable = now, usable_cores()
        try:
            bind_thread(0, cores[:1])
            with short_turns():
                return self._begin(wanted)
        finally:
            bind_thread(0, usable)

    def _start(self) -> None:
        """Start new workers: a fork copies no threads, and a start that failed has started only some."""
        old = self._threads
        workers = WorkerThreads(old.worker_loop, old.count, old.arguments)
        weakref.finalize(self, workers.close)
        try:
            # Ctrl-C inside of `Thread.start` could come out as a RuntimeError about its locks.
            with held_signals():
                workers.start()
        except BaseException:
            workers.close()
            raise
        self._threads, self._process = workers, os.getpid()
