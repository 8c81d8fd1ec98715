"""The output of a command: bounded in time and length, without a terminal, ended as a whole."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

from tinychat.errors import SettingError

MAX_BYTES = 256 << 10
_POLL_SECONDS = 0.05
# Between SIGTERM and SIGKILL, and for the end after that.
_GRACE_SECONDS = 0.5


class CommandOutput(NamedTuple):
    """The stdout and stderr of a command, the limit that cut them in words, and the ending, empty for success."""

    data: bytes
    limit: str
    ending: str


class Stopped(Exception):
    """The user stopped the command."""


def run_bounded(
    command: Sequence[str],
    stopped: Callable[[], bool],
    max_seconds: float,
    *,
    max_bytes: int = MAX_BYTES,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    grace_seconds: float = _GRACE_SECONDS,
) -> CommandOutput:
    """Run a program and return its output.

    It has no stdin and no terminal, but its own session and process group, which is ended as a whole when `stopped`
    returns True (then `Stopped` is raised) or at a limit (then the output so far is returned). `OSError` or
    `ValueError` if it cannot be started.
    """
    if sys.platform == "win32":
        raise SettingError("commands cannot be run on Windows: attach the output as a file")
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        cwd=folder,
        env=environment,
    )
    try:
        data, limit = _read(process, stopped, max_seconds, max_bytes)
    finally:
        _end(process, grace_seconds)
    return CommandOutput(bytes(data), limit, limit or _ending_of(process.returncode))


def _read(
    process: subprocess.Popen[bytes], stopped: Callable[[], bool], max_seconds: float, max_bytes: int
) -> tuple[bytearray, str]:
    """Read to the end of the command or to a limit; return the output and the limit in words."""
    assert process.stdout is not None
    until, data, is_open = monotonic() + max_seconds, bytearray(), True
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while is_open or process.poll() is None:
            if stopped():
                raise Stopped
            if monotonic() >= until:
                return data, f"ended after {max_seconds:g} s"
            if not is_open:
                sleep(_POLL_SECONDS)
            elif selector.select(_POLL_SECONDS):
                part = os.read(process.stdout.fileno(), 1 << 16)
                data += part
                is_open = bool(part)
                if len(data) > max_bytes:
                    return data[:max_bytes], f"cut at {max_bytes >> 10} KiB"
    return data, ""


def _end(process: subprocess.Popen[bytes], grace_seconds: float) -> None:
    """End the command with all processes of its group, if it still runs."""
    if sys.platform == "win32":
        return
    assert process.stdout is not None
    # Until the process is waited for, no other can get its number, which is the group's.
    if process.returncode is None:
        _send(process, signal.SIGTERM)
        _wait_for_end(process.stdout.fileno(), grace_seconds)
        _send(process, signal.SIGKILL)
    process.stdout.close()
    # A process of another user may continue; nobody waits for it.
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_SECONDS)


def _send(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if sys.platform == "win32":
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _wait_for_end(output: int, seconds: float) -> None:
    """Wait a moment for the end of the output: then all processes have ended."""
    until = monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while (left := until - monotonic()) > 0:
            if selector.select(left) and not os.read(output, 1 << 16):
                return


def _ending_of(code: int) -> str:
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return f"exit code {code}" if code else ""
