"""Compiles the forward pass for the types of one decoder, or loads it from the kernel cache."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from numba.core import config as numba_config
from numba.core.event import Event, Listener, install_listener

if TYPE_CHECKING:
    from tinychat.model.decoder import Decoder

# Functions that one decoder compiles; only the progress bar's length hangs on it.
COMPILED_FUNCTIONS = 45


class CompilationCounter(Listener):  # type: ignore[misc]
    """Reports each function that Numba compiles; silent when all come from the cache."""

    def __init__(self, progress: Callable[[int, int], None]) -> None:
        self._progress = progress
        self._done = 0

    def on_start(self, event: Event) -> None:
        """Report a compilation that begins."""
        self._progress(min(self._done, COMPILED_FUNCTIONS - 1), COMPILED_FUNCTIONS)

    def on_end(self, event: Event) -> None:
        """Count a compilation that is done."""
        self._done += 1
        self._progress(min(self._done, COMPILED_FUNCTIONS - 1), COMPILED_FUNCTIONS)


@contextmanager
def reported(progress: Callable[[int, int], None] | None) -> Iterator[None]:
    """Report compilations inside the block; finish the bar at its end."""
    if progress is None:
        yield
        return
    counter = CompilationCounter(progress)
    with install_listener("numba:compile", counter):
        yield
    if counter._done:
        progress(COMPILED_FUNCTIONS, COMPILED_FUNCTIONS)


def compile_kernels(decoder: "Decoder", progress: Callable[[int, int], None] | None) -> None:
    """Make the decoder's compiled function ready without running it.

    A damaged entry in the kernel cache, which Numba reports as whatever unpickling or loading it raised, is met by
    emptying the cache and compiling once more.
    """
    with reported(progress):
        try:
            decoder.compile()
        except Exception:
            purge(Path(numba_config.CACHE_DIR))
            decoder.compile()


def purge(folder: Path) -> None:
    """Remove all compiled kernels."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
