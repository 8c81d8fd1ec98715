"""The compile queue: deferred functions, which several processes compile at once.

A deferred function returns nothing, so its caller is typed before it is compiled. A process that compiles the forward
pass thus first queues the functions and types that it needs; other processes can begin with some of them while it goes
on. A process locks a file while it compiles a function; the others get the result from the kernel cache. Numba has one
lock for all compilation in a process, so these are processes, not threads.
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from numba.core import sigutils, types, typing
from numba.core.dispatcher import _GeneratedFunctionCompiler

from tinychat.file_lock import is_locked, locked_within
from tinychat.kernels.jit import cached, device_function
from tinychat.kernels.numba_internals import CallOnlyDeviceCompiler, DeviceDispatcher, infer_types

# Time to compile a deferred function, without those that it calls, in seconds of one processor.
SECONDS = {
    "attend": 6.5,
    "multiply_rows": 3.0,
    "rope_append": 1.3,
    "short_convolution": 1.1,
    "quantize_normed": 0.7,
    "embed": 0.4,
    "quantize_activated": 0.4,
}
OTHER_SECONDS = 0.1
# Longest wait for another process, which may have been stopped. After it two compile the same function.
LOCK_TIMEOUT = 30
_PAUSE = 0.01


class CompileTask(NamedTuple):
    """A deferred function, by its name in `DEFERRED`, and the Numba types of its arguments."""

    name: str
    types: tuple[Any, ...]

    @property
    def seconds(self) -> float:
        """The expected time of the task."""
        return SECONDS.get(self.name.rpartition(".")[2], OTHER_SECONDS)


class CompileQueue:
    """The tasks of this process, `waiting` in the order in which they were queued.

    `listeners` are called with each new task. `pause` is called repeatedly during a wait for another process; an
    exception raised there reaches the caller of the compilation.
    """

    def __init__(self) -> None:
        self.waiting: list[CompileTask] = []
        self.listeners: list[Callable[[CompileTask], object]] = []
        self.pause: Callable[[], object] = lambda: None
        self._held = 0

    def add(self, task: CompileTask, queue_callees: Callable[[], object] = lambda: None) -> None:
        """Queue a task, once, behind those of the functions that it calls.

        A process that compiled the caller first would only wait for them.
        """
        if task not in self.waiting:
            self.waiting.append(task)
            queue_callees()
            for listener in self.listeners:
                listener(task)

    def remove(self, task: CompileTask) -> None:
        """Remove a task that is done."""
        with suppress(ValueError):
            self.waiting.remove(task)

    @contextmanager
    def claimed(self, function: Any, argument_types: tuple[Any, ...]) -> Iterator[None]:
        """Hold the lock of a function; while another process does, wait as in `waited_for`."""
        with self.waited_for(lock_path(function, argument_types)):
            self._held += 1
            try:
                yield
            finally:
                self._held -= 1

    @contextmanager
    def waited_for(self, path: Path | None) -> Iterator[None]:
        """Hold a lock file, if there is one; while another process does, compile other tasks."""
        with ExitStack() as lock:
            # OSError: nothing can be written there, so another process could not cache its result either.
            with suppress(OSError):
                if path is not None:
                    lock.enter_context(locked_within(path, LOCK_TIMEOUT, self._wait))
            yield

    def compile_before(self, own: CompileTask) -> None:
        """Compile the tasks that are better done before `own`, which is needed now."""
        while not self._held and self.compile_next(own):
            pass

    def compile_next(self, own: CompileTask | None = None) -> bool:
        """Compile the first task in order, if it comes before `own`; return whether there was one.

        What another process has locked stays in the queue: it is loaded once that process is done.
        """
        for task in self._in_order(own):
            if task == own:
                break
            function = DEFERRED.get(task.name)
            if function is None or task.types in function.overloads:
                self.remove(task)
            elif self._held and function.is_by_type:
                # It may need what is locked by a process that waits for a function locked here.
                continue
            elif not is_claimed(function, task.types):
                self.remove(task)
                function.compile(task.types)
                return True
        return False

    def _in_order(self, own: CompileTask | None) -> list[CompileTask]:
        """Return the tasks and `own`: the longest first, since a long one must not begin last.

        Those that only call others come last, the newest of them first: the oldest is that of the mixer, which would
        wait for attention, the longest of all.
        """
        tasks = [*self.waiting, own] if own is not None and own not in self.waiting else self.waiting
        callers = [task for task in tasks if task.name in DEFERRED and DEFERRED[task.name].is_by_type]
        others = [task for task in tasks if task not in callers]
        return [*sorted(others, key=lambda task: task.seconds, reverse=True), *reversed(callers)]

    def _wait(self) -> None:
        self.pause()
        # A second task during the wait of a first one could wait for that.
        if self._held > 1 or not self.compile_next():
            time.sleep(_PAUSE)


class DeferredDispatcher(DeviceDispatcher):
    """A deferred function, compiled when code that calls it is."""

    def get_call_template(self, args: Any, kws: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Return the call's type to Numba's type inference, and queue the compilation."""
        parameters, args = self._compiler.fold_argument_types(args, kws)
        args = tuple(args)
        if args not in self.overloads:
            COMPILE_QUEUE.add(CompileTask(self.full_name, args), lambda: self._queue_callees(args))
        name = self.py_func.__name__
        signature = typing.signature(types.none, *args)
        return typing.make_concrete_template(f"CallTemplate({name})", name, [signature]), parameters, args, {}

    def _queue_callees(self, argument_types: tuple[Any, ...]) -> None:
        """Queue the functions that one by type calls: it does nothing else, and the longest may be among them."""
        if self.is_by_type:
            infer_types(self._compiler, self._compiler._get_implementation(argument_types, {}), argument_types)

    def get_overload(self, sig: Any) -> Any:
        """Return the compiled function, of which Numba compiles a call."""
        return self.compile(sig)

    def compile(self, sig: Any) -> Any:
        """Compile for a signature, or load from the kernel cache; return the function."""
        arguments = tuple(sigutils.normalize_signature(sig)[0])
        task = CompileTask(self.full_name, arguments)
        if arguments not in self.overloads:
            COMPILE_QUEUE.compile_before(task)
        if arguments not in self.overloads:
            # Before it is compiled: what fails must not fail again for the next function.
            COMPILE_QUEUE.remove(task)
            with COMPILE_QUEUE.claimed(self, arguments):
                super().compile(arguments)
            if self.overloads[arguments].signature.return_type != types.none:
                raise TypeError(f"{self.full_name}: a deferred function returns nothing; use @noinline")
        return self.overloads[arguments].entry_point

    @property
    def is_by_type(self) -> bool:
        """Whether it is one of `deferred_by_type`."""
        return isinstance(self._compiler, _GeneratedFunctionCompiler)

    @property
    def full_name(self) -> str:
        """The function's name, with its module's."""
        return f"{self.py_func.__module__}.{self.py_func.__name__}"


def lock_path(function: Any, argument_types: tuple[Any, ...]) -> Path | None:
    """Return the file that is locked while a function is compiled; None without a cache folder."""
    folder, name = function._cache.cache_path, function.py_func.__name__
    digest = hashlib.sha256(repr((function.py_func.__module__, name, argument_types)).encode()).hexdigest()
    return None if folder is None else Path(folder) / f"{name}-{digest[:16]}.lock"


def is_claimed(function: Any, argument_types: tuple[Any, ...]) -> bool:
    """Return whether another process compiles a function, or loads it."""
    path = lock_path(function, argument_types)
    return path is not None and is_locked(path)


COMPILE_QUEUE = CompileQueue()
DEFERRED: dict[str, DeferredDispatcher] = {}


def deferred(function: Callable[..., Any]) -> DeferredDispatcher:
    """Compile a device function that returns nothing, through the compile queue."""
    dispatcher: DeferredDispatcher = cached(device_function(function, DeferredDispatcher))
    DEFERRED[dispatcher.full_name] = dispatcher
    return dispatcher


def deferred_by_type(choose: Callable[..., Any], like: Callable[..., Any] | None = None) -> DeferredDispatcher:
    """Compile a `deferred` function chosen by the types of its arguments; it only calls noinline and deferred ones.

    `like` has the name and the parameters, if `choose` has not.
    """
    dispatcher = deferred(like or choose)
    dispatcher._compiler = _GeneratedFunctionCompiler(
        choose, dispatcher.targetdescr, dispatcher.targetoptions, {}, CallOnlyDeviceCompiler
    )
    return dispatcher
