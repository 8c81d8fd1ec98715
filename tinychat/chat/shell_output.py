"""The output of a command that a person typed: bounded in time and length, without a terminal."""

from __future__ import annotations

import codecs
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep
from typing import NamedTuple

from tinychat.errors import SettingError

MOST_SECONDS, MOST_BYTES = 30.0, 256 << 10
_LOOK_SECONDS = 0.05
# What a command has after SIGTERM to end by itself.
_GRACE_SECONDS = 0.5


class Output(NamedTuple):
    """The output of a command, and in a few words how it ended; these are empty where it ended well."""

    text: str
    ending: str


class Stopped(Exception):
    """The command was stopped by the person who started it."""


def output_of(
    command: str,
    stopped: Callable[[], bool],
    most_seconds: float = MOST_SECONDS,
    most_bytes: int = MOST_BYTES,
) -> Output:
    """Run a line in the user's shell, and return what it writes to stdout and stderr.

    It reads nothing, and has neither a terminal nor a part in ours: a session and process group of its own, which ends
    as a whole where the command is stopped, takes too long or writes too much.

    Parameters
    ----------
    command : str
        As for ``sh -c``: pipes, patterns and redirections work.
    stopped : callable
        Asked many times a second; True ends the command.
    most_seconds, most_bytes : float, int
        After which it is ended; what it wrote by then is returned.

    Raises
    ------
    Stopped
        If `stopped` said so.
    SettingError
        If there is no shell, or the output is no text in UTF-8.
    """
    if sys.platform == "win32":
        raise SettingError("commands cannot be run on Windows: attach their output as a file")
    process = _start(command)
    try:
        data, ending = _read(process, stopped, most_seconds, most_bytes)
    finally:
        _end(process)
    try:
        # A limit may have cut the last character in two.
        text = codecs.getincrementaldecoder("utf-8")().decode(data, final=not ending)
    except UnicodeDecodeError:
        text = None
    if text is None or "\0" in text:
        raise SettingError("the output is not UTF-8 text: nothing is attached")
    return Output(text.replace("\r\n", "\n"), ending or _how_it_ended(process.returncode))


def _start(command: str) -> subprocess.Popen[bytes]:
    shell = os.environ.get("SHELL") or "/bin/sh"
    try:
        return subprocess.Popen(
            [shell, "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingError(f"{shell} cannot run the command: {reason}; $SHELL names another shell") from None


def _read(
    process: subprocess.Popen[bytes], stopped: Callable[[], bool], most_seconds: float, most_bytes: int
) -> tuple[bytearray, str]:
    """Read to the end of the output and of the command, or to a limit; say which."""
    assert process.stdout is not None
    until, data, is_open = monotonic() + most_seconds, bytearray(), True
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while is_open or process.poll() is None:
            if stopped():
                raise Stopped
            if monotonic() >= until:
                return data, f"ended after {most_seconds:g} s"
            if not is_open:
                sleep(_LOOK_SECONDS)
            elif selector.select(_LOOK_SECONDS):
                part = os.read(process.stdout.fileno(), 1 << 16)
                data += part
                is_open = bool(part)
                if len(data) > most_bytes:
                    return data[:most_bytes], f"cut at {most_bytes >> 10} KiB"
    return data, ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command with all that it has started, unless it has ended by itself."""
    assert process.stdout is not None
    # Until the first process is waited for, no other can have its number, which is the group's.
    if process.returncode is None:
        _send(process, signal.SIGTERM)
        _wait_for_end(process.stdout.fileno())
        _send(process, signal.SIGKILL)
    process.stdout.close()
    # What runs as another user may go on; nobody waits for it.
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_SECONDS)


def _send(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _wait_for_end(output: int) -> None:
    """Give those who can still write some time to end; they have ended when the output has."""
    until = monotonic() + _GRACE_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while (left := until - monotonic()) > 0:
            if selector.select(left) and not os.read(output, 1 << 16):
                return


def _how_it_ended(code: int) -> str:
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return f"exit code {code}" if code else ""
