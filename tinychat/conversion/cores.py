"""Work of a conversion on every core: NumPy uses them for matrix products only, and a kernel uses one."""

import functools
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tinychat.machine import available_cores

Part = TypeVar("Part")
Result = TypeVar("Result")

THREADS = available_cores()


@functools.lru_cache(maxsize=1)
def _pool_of(process: int) -> ThreadPoolExecutor:
    """Return the pool of a process: a fork copies no threads."""
    return ThreadPoolExecutor(THREADS)


def run_shares(kernel: Callable[..., Any], *arguments: Any) -> None:
    """Call ``kernel(thread, THREADS, *arguments)`` for each thread, all at once."""
    pool = _pool_of(os.getpid())
    shares = [pool.submit(kernel, thread, THREADS, *arguments) for thread in range(THREADS)]
    for share in shares:
        share.result()


def on_each(function: Callable[[Part], Result], parts: Iterable[Part]) -> list[Result]:
    """Return `function` of each part; it must let go of the interpreter's lock, as NumPy and kernels do."""
    return list(_pool_of(os.getpid()).map(function, parts))
