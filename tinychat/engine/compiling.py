"""The compilation of the forward pass for the types of one engine."""

import gc
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numba
from numba.core.event import Event, Listener, install_listener

from tinychat.engine.arguments import Arguments
from tinychat.engine.compiled import worker_loop
from tinychat.engine.second_compiler import RARELY, second_compilers
from tinychat.held_signals import held_signals
from tinychat.kernels.compile_queue import COMPILE_QUEUE, DEFERRED, CompileTask, is_claimed
from tinychat.kernels.jit import object_code
from tinychat.kernels.machine_code import EntryPoint, code_path, find_entry_point, load_entry_point, write_code
from tinychat.kernels.memory import KindType

# Time of the entry point after all deferred functions, as `CompileTask.seconds`.
REST_SECONDS = 4.0
# How long it all takes, before anything is known of the machine; and how far time alone moves the bar.
EXPECTED_SECONDS = 15.0
MOST_BY_TIME = 0.3
STEPS = 1000
SECONDS_BETWEEN_REPORTS = 0.2


class CompilationProgress:
    """The progress of a compilation, reported from `begin` on.

    A function that this process or another one has compiled counts by its expected time. In between, and during the
    last function, which is one step for Numba, time counts, at the pace so far.
    """

    def __init__(self, progress: Callable[[int, int], None]) -> None:
        self._progress = progress
        self._began = self._counted_at = time.monotonic()
        self._tasks: list[CompileTask] = []
        self._claimed: set[CompileTask] = set()
        self._counted = self._shown = 0.0
        self._has_begun, self._ended = False, threading.Event()
        self._thread = threading.Thread(target=self._report_often, daemon=True)

    def __enter__(self) -> "CompilationProgress":
        """Collect the tasks."""
        COMPILE_QUEUE.listeners.append(self._tasks.append)
        return self

    def __exit__(self, *error: object) -> None:
        """Report the end, if it was reached, and there was anything to do."""
        COMPILE_QUEUE.listeners.remove(self._tasks.append)
        self._ended.set()
        if self._has_begun:
            self._thread.join()
            if error[0] is None:
                self._progress(STEPS, STEPS)

    def begin(self) -> None:
        """Report from now on; a second call does nothing."""
        if not self._has_begun:
            self._has_begun = True
            self._progress(0, STEPS)
            self._thread.start()

    def share(self, now: float) -> float:
        """Return the share that is done, from 0 to 1; never less than before."""
        tasks = list(self._tasks)
        done = sum(task.seconds for task in tasks if self._is_done(task))
        counted = done / (sum(task.seconds for task in tasks) + REST_SECONDS)
        if counted > self._counted:
            self._counted, self._counted_at = counted, now
        spent = self._counted_at - self._began
        expected = max(spent / self._counted, 1.0) if self._counted > MOST_BY_TIME else EXPECTED_SECONDS
        # Another process may do everything, which shows only at the end.
        most = MOST_BY_TIME if self._counted else 0.9
        by_time = min(most, (now - self._counted_at) / expected)
        self._shown = max(self._shown, min(0.99, self._counted + by_time))
        return self._shown

    def _is_done(self, task: CompileTask) -> bool:
        function = DEFERRED[task.name]
        if task.types in function.overloads:
            return True
        if is_claimed(function, task.types):
            self._claimed.add(task)
            return False
        return task in self._claimed

    def _report_often(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_REPORTS):
            self._progress(int(STEPS * self.share(time.monotonic())), STEPS)


class BetweenFunctions(Listener):  # type: ignore[misc]
    """Calls a function before and after each that Numba compiles: an exception raised there reaches the caller."""

    def __init__(self, between: Callable[[], None]) -> None:
        self._between = between

    def on_start(self, event: Event) -> None:
        """Call the function."""
        self._between()

    on_end = on_start


def compile_kernels(
    sample: Arguments, name: str, threads: int, progress: Callable[[int, int], None] | None
) -> EntryPoint:
    """Compile a forward pass for arguments of `sample`'s types, and store and load its machine code under `name`.

    Ctrl-C acts between two functions.
    """
    kind: Any = KindType  # a class without types
    types = (*[numba.int64] * 4, kind(numba.typeof(sample)))
    path = code_path(name)
    with held_signals() as let_signals_act, ExitStack() as stack:
        bar = stack.enter_context(CompilationProgress(progress or (lambda _done, _total: None)))

        def between() -> None:
            let_signals_act()
            bar.begin()

        stack.enter_context(install_listener("numba:compile", BetweenFunctions(between)))
        COMPILE_QUEUE.pause = between
        stack.callback(gc.set_threshold, *gc.get_threshold())
        gc.set_threshold(*RARELY)
        # Another process that compiles the same does so on as many cores.
        stack.enter_context(COMPILE_QUEUE.waited_for(path and path.with_suffix(".lock")))
        found = find_entry_point(name)
        if found is None:
            stack.enter_context(second_compilers(threads - 1))
            symbol, code = object_code(worker_loop, types)
            if path is not None:
                write_code(path, symbol, code)
            found = load_entry_point(name, symbol, code)
    return found
