"""Helper processes with limits, for work on untrusted files: rendering templates, compiling grammars.

A helper answers requests with the function ``answer`` of one module, JSON in and JSON out. The system ends it when a
request takes more processor time than it may, its memory is bounded, and it can open no file, socket or pipe once its
module is imported. Its answer is data that is parsed, never a pickle. Where the system lacks one of these limits
(Windows has none but the clock's), the others hold.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from tinychat.worker_threads import TookTooLongError, run_within

SECONDS = 1.0
"""Processor time of a request; real templates and grammars take milliseconds."""
MEMORY = 512 << 20
"""Bytes of address space of a helper."""

# For a process that waits instead of computing; a busy machine may need some of it.
_WALL_SECONDS = 20.0
_LONGEST_ANSWER = 64 << 20
_LONGEST_REASON = 200
_START = """
import sys
sys.path.insert(0, sys.argv[1])
from tinychat.limited_process import serve
serve(sys.argv[2])
"""


class LimitError(Exception):
    """A request failed, or took more time or memory than it may; the message is the reason, in a few words."""


class LimitExceeded(LimitError):
    """A request took more time than it may, or ended the process."""


class LimitedProcess:
    """A helper process that runs ``answer(request)`` of a module, which imports nothing that is slow to load.

    It starts with its first request, or with `start`, and again after it has ended. Any number of threads may use it,
    one request at a time. It ends with this object or this process.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._end: Callable[[], object] = lambda: None

    def start(self) -> None:
        """Begin to start the process, and do not wait until it can answer."""
        with self._lock, contextlib.suppress(OSError):
            self._running()

    def call(self, request: object) -> Any:
        """Return the answer to a request, both plain data as JSON has it; a failure or a limit is a LimitError."""
        line = json.dumps(request).encode() + b"\n"
        with self._lock:
            try:
                reply = self._exchange(self._running(), line)
            except OSError as error:
                raise LimitError(f"no helper process can be started ({error.strerror or error})") from None
        try:
            answer = json.loads(reply)
            if "value" in answer:
                return answer["value"]
            reason = str(answer["error"])
        except (ValueError, TypeError, LookupError, RecursionError):
            self.close()
            reason = "the helper process gives no answer that can be read"
        raise LimitError(reason)

    def close(self) -> None:
        """End the process; the next request starts another."""
        with self._lock:
            self._end()
            self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        """Return the process, started if need be: after a fork the parent's is not this process's."""
        if self._process is None or self._owner != os.getpid():
            root = str(Path(__file__).parents[1])
            # -P: nothing in the working folder is imported. A session of its own: Ctrl-C is not for it.
            self._process = subprocess.Popen(
                [sys.executable or "", "-P", "-c", _START, root, self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._owner = os.getpid()
            self._end = weakref.finalize(self, _end, self._process, self._owner)
        return self._process

    def _exchange(self, process: subprocess.Popen[bytes], line: bytes) -> bytes:
        assert process.stdin is not None and process.stdout is not None
        requests, answers = process.stdin, process.stdout

        def exchange() -> bytes:
            with contextlib.suppress(BrokenPipeError):
                requests.write(line)
                requests.flush()
            return answers.readline(_LONGEST_ANSWER)

        reply, is_late = b"", False
        try:
            # A thread's clock works for pipes of every system, and also ends a process that does not read.
            reply = run_within(_WALL_SECONDS, exchange)
        except TookTooLongError:
            is_late = True
        finally:
            # Without a whole answer, whatever comes next belongs to this request: Ctrl-C included.
            if not reply.endswith(b"\n"):
                self._end()
                self._process = None
        if not reply.endswith(b"\n"):
            raise LimitExceeded(_reason(process.returncode, is_late))
        return reply


def _reason(code: int, is_late: bool) -> str:
    if is_late or code == -getattr(signal, "SIGPROF", 0):
        return f"it runs longer than {SECONDS:g} s"
    return "it nests too deep or needs too much memory"


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:
        return
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            if stream is not None:
                stream.close()


def serve(module: str) -> None:
    """Answer the requests on stdin until it ends: the helper's side."""
    answer: Callable[[Any], object] = import_module(module).answer
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    _limit_files_and_memory()
    if sys.platform != "win32":
        # Ignored signals are inherited.
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for line in requests:
        _limit_time(SECONDS)
        try:
            reply = json.dumps({"value": answer(json.loads(line))})
        except MemoryError:
            reply = json.dumps({"error": f"it needs more than {MEMORY >> 20} MB of memory"})
        except RecursionError:
            reply = json.dumps({"error": "it nests too deep"})
        except Exception as error:
            reason = " ".join(str(error)[: 10 * _LONGEST_REASON].split())
            reply = json.dumps({"error": reason[:_LONGEST_REASON] or type(error).__name__})
        _limit_time(0)
        answers.write(reply.encode() + b"\n")
        answers.flush()


def _limit_files_and_memory() -> None:
    if sys.platform == "win32":
        return
    import resource

    limits = {
        resource.RLIMIT_AS: MEMORY,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        # Only stdin, stdout and stderr: nothing can be opened, and no program loaded.
        resource.RLIMIT_NOFILE: 3,
    }
    for limit, most in limits.items():
        # macOS refuses some of them.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(limit, (most, most))


def _limit_time(seconds: float) -> None:
    """Limit the processor time of this process; 0 for no limit."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, seconds)
