"""Procedures: subroutines that return nothing, which several processes compile at once.

A caller's types are known before its procedures are compiled: nothing comes back from them. So a process that compiles
the forward pass first finds out which procedures it needs, with which types, and others can begin with some of them
while it goes on. Whoever begins with one holds its lock; what is done comes to the others by the kernel cache. Only
one process of Numba's compiles at a time (it has one lock for all), so these are processes, not threads.
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from numba.core import sigutils, types, typing
from numba.core.dispatcher import _GeneratedFunctionCompiler

from tinychat.file_lock import locked_within
from tinychat.kernels.jit import InnerDispatcher, inner, keep
from tinychat.kernels.numba_internals import LinkedAssemblyCompiler

# What a function takes to compile, with those that only it calls, in seconds of some processor.
SECONDS = {
    "attend": 6.5,
    "multiply_parts": 5.0,
    "multiply_rows": 4.5,
    "run_mlp": 3.0,
    "rope_append": 1.3,
    "quantize_normed": 0.9,
    "embed": 0.8,
}
OTHER_SECONDS = 0.4
# Nobody waits longer for what another process compiles: it may have been stopped. Then two compile the same.
MOST_SECONDS = 30
_PAUSE = 0.01


class CompileTask(NamedTuple):
    """A function that is to be compiled, by the name in `DEFERRED`, for arguments of these Numba types."""

    name: str
    types: tuple[Any, ...]

    @property
    def seconds(self) -> float:
        """About what it takes."""
        return SECONDS.get(self.name.rpartition(".")[2], OTHER_SECONDS)


class CompileQueue:
    """What this process still has to compile, and whom it tells of it.

    Attributes
    ----------
    waiting : list of CompileTask
        Procedures that were found to be needed, in this order.
    listeners : list of callable
        Each is called with each of them.
    pause : callable
        Called again and again while another process compiles what this one needs; an exception raised there reaches
        whoever called for the compilation.
    """

    def __init__(self) -> None:
        self.waiting: list[CompileTask] = []
        self.listeners: list[Callable[[CompileTask], object]] = []
        self.pause: Callable[[], object] = lambda: None
        self._held = 0

    def add(self, job: CompileTask) -> None:
        """Note a function."""
        if job not in self.waiting:
            self.waiting.append(job)
            for listener in self.listeners:
                listener(job)

    def remove(self, job: CompileTask) -> None:
        """Strike out a function that is compiled."""
        with suppress(ValueError):
            self.waiting.remove(job)

    @contextmanager
    def claimed(self, function: Any, argument_types: tuple[Any, ...]) -> Iterator[None]:
        """Keep other processes from compiling the same function; if one does so already, wait as in `waited_for`."""
        with self.waited_for(lock_path(function, argument_types)):
            self._held += 1
            try:
                yield
            finally:
                self._held -= 1

    @contextmanager
    def waited_for(self, path: Path | None) -> Iterator[None]:
        """Hold the lock of a file, if there is one; while another process does, wait, and compile procedures."""
        with ExitStack() as lock:
            # OSError: nothing can be written there, so nothing would come back from another process either.
            with suppress(OSError):
                if path is not None:
                    lock.enter_context(locked_within(path, MOST_SECONDS, self._wait))
            yield

    def compile_before(self, own: CompileTask) -> None:
        """Compile what takes longer than a function that is needed now: what is long must not be begun last."""
        while not self._held and any(job.seconds > own.seconds for job in self.waiting):
            self.compile_next()

    def compile_next(self) -> bool:
        """Compile the longest of those that no other process compiles now; return whether there was one."""
        while self.waiting:
            job = max(self.waiting, key=lambda job: job.seconds)
            self.waiting.remove(job)
            function = DEFERRED.get(job.name)
            if function is None or job.types in function.overloads or is_claimed(function, job.types):
                continue
            function.compile(job.types)
            return True
        return False

    def _wait(self) -> None:
        self.pause()
        # Who waits for a function that this process holds may hold what such a job needs: so not while it holds any.
        if self._held or not self.compile_next():
            time.sleep(_PAUSE)


class DeferredDispatcher(InnerDispatcher):
    """A compiled function that returns nothing, compiled when code that calls it is."""

    def get_call_template(self, args: Any, kws: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Return what Numba's type inference asks for, without compiling anything yet."""
        parameters, args = self._compiler.fold_argument_types(args, kws)
        args = tuple(args)
        if args not in self.overloads:
            COMPILE_QUEUE.add(CompileTask(self.full_name, args))
        name = self.py_func.__name__
        signature = typing.signature(types.none, *args)
        return typing.make_concrete_template(f"CallTemplate({name})", name, [signature]), parameters, args, {}

    def get_overload(self, sig: Any) -> Any:
        """Return the compiled function for a signature, which Numba asks for when it compiles a call."""
        return self.compile(sig)

    def compile(self, sig: Any) -> Any:
        """Compile for a signature, or load what this or another process has compiled; return the function."""
        arguments = tuple(sigutils.normalize_signature(sig)[0])
        job = CompileTask(self.full_name, arguments)
        if arguments not in self.overloads:
            COMPILE_QUEUE.compile_before(job)
        if arguments not in self.overloads:
            with COMPILE_QUEUE.claimed(self, arguments):
                super().compile(arguments)
            COMPILE_QUEUE.remove(job)
            if self.overloads[arguments].signature.return_type != types.none:
                raise TypeError(f"{self.full_name}: a deferred function returns nothing; use @noinline")
        return self.overloads[arguments].entry_point

    @property
    def full_name(self) -> str:
        """The function's name, with its module's."""
        return f"{self.py_func.__module__}.{self.py_func.__name__}"


def lock_path(function: Any, argument_types: tuple[Any, ...]) -> Path | None:
    """Return the file that is locked while a function is compiled for these types; None where nothing is kept."""
    folder, name = function._cache.cache_path, function.py_func.__name__
    digest = hashlib.sha256(repr((function.py_func.__module__, name, argument_types)).encode()).hexdigest()
    return None if folder is None else Path(folder) / f"{name}-{digest[:16]}.lock"


def is_claimed(function: Any, argument_types: tuple[Any, ...]) -> bool:
    """Return whether another process compiles a function for these types, or was killed when it did."""
    path = lock_path(function, argument_types)
    return path is not None and path.exists()


COMPILE_QUEUE = CompileQueue()
DEFERRED: dict[str, DeferredDispatcher] = {}


def deferred(function: Callable[..., Any]) -> DeferredDispatcher:
    """Compile a function of its own for compiled code, which returns nothing, and keep it on disk."""
    dispatcher: DeferredDispatcher = keep(inner(dispatcher=DeferredDispatcher)(function))
    DEFERRED[dispatcher.full_name] = dispatcher
    return dispatcher


def deferred_by_type(choose: Callable[..., Any], like: Callable[..., Any] | None = None) -> DeferredDispatcher:
    """Make a function of a function that returns what is compiled for arguments of some types: see `jit.by_type`.

    What it returns may only put procedures and subroutines together: they are not optimized once more with it.
    `like` has the name and the parameters, if it is not `choose`.
    """
    dispatcher = deferred(like or choose)
    dispatcher._compiler = _GeneratedFunctionCompiler(
        choose, dispatcher.targetdescr, dispatcher.targetoptions, {}, LinkedAssemblyCompiler
    )
    return dispatcher
