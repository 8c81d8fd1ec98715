"""The compiled forward pass of an engine: loaded from the kernel cache without Numba, or compiled."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tinychat.engine.arguments import Arguments
from tinychat.held_signals import held_signals
from tinychat.kernels.machine_code import EntryPoint, code_name, find_entry_point
from tinychat.kernels.pointers import sample_of, type_name


class ForwardPass:
    """`engine.compiled.worker_loop` for the types of some arguments.

    `sample` : arguments of the same types, without elements; `code_name` : file of the machine code in the kernel
    cache.
    """

    def __init__(self, arguments: Arguments) -> None:
        self.sample: Arguments = sample_of(arguments)
        self.code_name: str = code_name("worker_loop", type_name(arguments))
        self._entry_point: EntryPoint | None = None

    def __call__(self, thread: int, threads: int, queue: NDArray[np.int64], pointers: NDArray[np.int64]) -> bool:
        """Do a share of a job: see `engine.compiled.worker_loop`. Compiles if nobody has called `prepare`."""
        if self._entry_point is None:
            self.prepare()
        assert self._entry_point is not None
        return self._entry_point(thread, threads, queue, pointers)

    def prepare(self, threads: int = 1, progress: Callable[[int, int], None] | None = None) -> None:
        """Load the function, or compile it, in up to `threads` processes.

        progress : called with (steps done, steps in all) if there is anything to compile.
        """
        with held_signals():
            self._entry_point = find_entry_point(self.code_name)
            if self._entry_point is None:
                # Imported here: only who compiles needs Numba.
                from tinychat.engine.compiling import compile_kernels
        if self._entry_point is None:
            self._entry_point = compile_kernels(self.sample, self.code_name, threads, progress)
