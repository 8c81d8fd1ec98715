"""Compiles the forward pass for the types of one engine, or loads it from the kernel cache."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numba
from numba.core.caching import FunctionCache
from numba.core.event import Event, Listener, install_listener
from numba.core.runtime import rtsys

from tinychat.engine.forward import take_part
from tinychat.engine.second_compiler import second_compilers
from tinychat.held_signals import held_signals
from tinychat.kernels.procedures import AGENDA

if TYPE_CHECKING:
    from tinychat.engine.engine import Engine

TRIED_NUMBA = ["0", "68"]
# How many functions one engine compiles; only the progress bar needs it.
COMPILED_FUNCTIONS = 100


class CompilationCounter(Listener):  # type: ignore[misc]
    """Reports each function that Numba compiles; silent when all come from the cache.

    `between` is called before and after each of them: an exception raised there reaches the caller.
    """

    def __init__(self, progress: Callable[[int, int], None] | None, between: Callable[[], None]) -> None:
        self._progress = progress
        self._between = between
        self._done = 0

    def on_start(self, event: Event) -> None:
        """Report a compilation that begins."""
        self._report(min(self._done, COMPILED_FUNCTIONS - 1))

    def on_end(self, event: Event) -> None:
        """Count a finished compilation."""
        self._done += 1
        self._report(min(self._done, COMPILED_FUNCTIONS - 1))

    def finish(self) -> None:
        """Report the end, if there was anything to do."""
        if self._done:
            self._report(COMPILED_FUNCTIONS)

    def _report(self, done: int) -> None:
        self._between()
        if self._progress is not None:
            self._progress(done, COMPILED_FUNCTIONS)


def compile_kernels(engine: "Engine", progress: Callable[[int, int], None] | None) -> None:
    """Make the engine's compiled function ready without running it; Ctrl-C acts between two functions."""
    with held_signals() as let_signals_act:
        counter = CompilationCounter(progress, let_signals_act)
        with install_listener("numba:compile", counter):
            if load_without_refresh(take_part, engine.call_arguments()):
                engine.compile()
            else:
                AGENDA.pause = let_signals_act
                with second_compilers(engine.threads - 1):
                    engine.compile()
        counter.finish()


def load_without_refresh(function: Any, arguments: tuple[Any, ...]) -> bool:
    """Load a compiled function from the kernel cache in a third of the time that Numba takes, if it is there.

    Before Numba looks into its cache, it registers the types of all that it can compile. That takes about 0.1 s, and
    compiled functions do not need it. This function leaves that step out; it calls Numba's own parts in Numba's own
    order, and only in the releases that it was tried with. It returns whether there is nothing to compile.
    """
    is_kept = isinstance(function._cache, FunctionCache)
    if not is_kept or numba.__version__.split(".")[:2] != TRIED_NUMBA:
        return False
    context = function.targetctx
    rtsys.initialize(context)
    signature = tuple(function.typeof_pyval(argument) for argument in arguments)
    if signature in function.overloads:
        return True  # a second entry for the same types would make every call choose between them
    compiled = function._cache._load_overload(signature, context)
    if compiled is not None:
        function.add_overload(compiled)
    return compiled is not None
