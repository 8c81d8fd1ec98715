"""A process that compiles beside this one.

Numba compiles one function at a time in a process, so a second core needs a second process. It gets the tasks of the
first one's compile queue (`kernels.compile_queue`), begins with the longest, and stores its results in the kernel
cache. It is silent and may fail: then the first process compiles everything.

The compiler's imports stand in functions: a process that has just been started reads its tasks at once.
"""

import gc
import os
import pickle
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

# More have nothing to do: half of the work is three functions, and the last, which puts all together, is one's alone.
MOST = 2
# Thresholds of Python's garbage collector: a compilation makes millions of objects, nearly all of which stay until it
# ends. With the usual ones it takes 15 % longer; without any collection 460 MB instead of 300.
RARELY = (50_000, 20, 100)
_LENGTH = struct.Struct("<q")
_PAUSE = 0.01
_SECONDS_TO_END = 0.5


def start_compiler(module: str, *arguments: str) -> "subprocess.Popen[bytes]":
    """Start a process that calls `serve` of a module; it reads stdin, and is silent."""
    start = f"import sys; sys.path.insert(0, sys.argv[1]); from {module} import serve; serve(*sys.argv[2:])"
    # -P: what stands in the working folder is not imported. A session of its own: Ctrl-C is not for it.
    return subprocess.Popen(
        [sys.executable, "-P", "-c", start, str(Path(__file__).parents[2]), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


class SecondCompiler:
    """A process that compiles the tasks that it gets."""

    def __init__(self) -> None:
        self._process = start_compiler(__name__, os.environ["NUMBA_CACHE_DIR"])

    def tell(self, task: Any) -> None:
        """Send a compile task; if the process has ended, nothing happens."""
        told = pickle.dumps(tuple(task))
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.write(_LENGTH.pack(len(told)) + told)
            self._process.stdin.flush()

    def close(self) -> None:
        """End it; it ends by itself, too, when this process does."""
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def second_compilers(count: int) -> Iterator[None]:
    """Let up to `count` more processes compile inside the block."""
    from tinychat.kernels.compile_queue import COMPILE_QUEUE

    with ExitStack() as stack:
        # Nothing comes back where nothing is kept; and an interpreter inside another program may have no file.
        can_start = os.environ.get("NUMBA_CACHE_DIR") and sys.executable
        started: list[SecondCompiler] = []
        with suppress(OSError):
            for _ in range(min(count, MOST) if can_start else 0):
                started.append(SecondCompiler())
                stack.callback(started[-1].close)

        for compiler in started:
            COMPILE_QUEUE.listeners.append(compiler.tell)
            stack.callback(COMPILE_QUEUE.listeners.remove, compiler.tell)
        yield


def serve(cache: str) -> None:
    """Compile what stdin tells of, until it ends; `cache` is the folder that the other process keeps kernels in."""
    told: list[bytes] = []
    threading.Thread(target=_read, args=(told,), daemon=True).start()
    # Imported here: the other process must not wait until this one has done so.
    from tinychat.kernels.compile_queue import COMPILE_QUEUE, CompileTask

    import_module("tinychat.engine.compiled")
    if os.environ["NUMBA_CACHE_DIR"] != cache:
        return
    gc.set_threshold(*RARELY)
    while True:
        while told:
            COMPILE_QUEUE.add(CompileTask(*pickle.loads(told.pop(0))))
        if not COMPILE_QUEUE.compile_next():
            time.sleep(_PAUSE)


def _read(told: list[bytes]) -> None:
    """Read what the other process tells; end this one with it."""
    stream = sys.stdin.buffer
    while head := stream.read(_LENGTH.size):
        told.append(stream.read(*_LENGTH.unpack(head)))
    os._exit(0)
