"""A server as a process: lines in, lines out, and an end for all that it has started."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep

from tinychat.errors import McpError
from tinychat.held_signals import held_signals
from tinychat.json_file import one_line
from tinychat.mcp.log_file import LogFile
from tinychat.mcp.rate import LONGEST_MESSAGE, TOO_LONG, TOO_MUCH, Rate
from tinychat.mcp.server_settings import ServerSettings

# After its stdin is closed, and after SIGTERM.
_STDIN_SECONDS, _GRACE_SECONDS = 1.0, 2.0
_POLL_SECONDS = 0.01
_MOST_WAITING = 256
_CHUNK = 64 << 10
_LOG_SECONDS = 0.02
# The rest of the user's environment may hold keys, which are no server's business.
_INHERITED = (
    *("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"),
    *("APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATHEXT", "PROCESSOR_ARCHITECTURE"),
    *("PROGRAMDATA", "PROGRAMFILES", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "TMP", "USERNAME", "USERPROFILE"),
)


class ServerProcess:
    """A server in a process group of its own, without a terminal: Ctrl-C is not for it.

    What it writes to stderr goes to a file. `McpError` if the program cannot be started.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._name = settings.name
        self._threads: list[threading.Thread] = []
        self._lines: queue.Queue[bytes | None] = queue.Queue(_MOST_WAITING)
        self.log = LogFile(settings.name)
        with held_signals():
            try:
                self._process = _started(settings)
            except McpError:
                self.log.close()
                raise
            self._end = weakref.finalize(self, _end_group, self._process, os.getpid())

    def listen(self, on_line: Callable[[bytes], None], on_end: Callable[[str], None]) -> None:
        """Have threads carry its lines; the one that reads calls `on_line` with each.

        When the server ends, or breaks a limit and is ended, the same thread calls `on_end` once with the reason in a
        few words.
        """
        logger = self._start(self._write_log)
        self._start(self._write)
        # The last one: it may find the server's end at once, and waits for the log then.
        self._start(self._read, on_line, on_end, logger)

    def send(self, line: bytes) -> bool:
        """Queue a line for the server; return False if it has not read many earlier ones."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            return False
        return True

    def close(self) -> None:
        """End the server: close its stdin, and if it stays, SIGTERM and SIGKILL for its whole group."""
        self._close_stdin()
        try:
            self._end()
        finally:
            # A process that left the group may hold the pipes: nobody waits for it.
            for thread in self._threads:
                thread.join(3 * _GRACE_SECONDS)
            self.log.close()

    def _close_stdin(self) -> None:
        """Have stdin closed behind the lines that are queued."""
        with suppress(queue.Full):
            self._lines.put_nowait(None)

    def _start(self, run: Callable[..., None], *args: object) -> threading.Thread:
        thread = threading.Thread(target=run, args=args, name=f"mcp-{self._name}", daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    def _read(self, on_line: Callable[[bytes], None], on_end: Callable[[str], None], logger: threading.Thread) -> None:
        fault = "the client failed"
        try:
            fault = self._read_lines(on_line)
        finally:
            self._close_stdin()
            if fault:
                _signal_group(self._process, signal.SIGTERM)
            self._end()
            # Somebody else may be ending it. Its last words are the reason.
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(2 * _GRACE_SECONDS)
            logger.join(_GRACE_SECONDS)
            on_end(fault or _ending(self._process.returncode, self.log.last_line))

    def _read_lines(self, on_line: Callable[[bytes], None]) -> str:
        """Read to the end of stdout, or to a fault, which is returned."""
        assert self._process.stdout is not None
        rate = Rate()
        with self._process.stdout as stream:
            while line := stream.readline(LONGEST_MESSAGE + 1):
                if len(line) > LONGEST_MESSAGE:
                    return TOO_LONG
                if not rate.admits(len(line)):
                    return TOO_MUCH
                on_line(line)
        return ""

    def _write(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError), self._process.stdin as stream:
            while (line := self._lines.get()) is not None:
                stream.write(line)
                if self._lines.empty():
                    stream.flush()

    def _write_log(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            while data := os.read(stream.fileno(), _CHUNK):
                self.log.write(data)
                # One that writes without end waits, rather than keep this thread busy.
                sleep(_LOG_SECONDS)


def _started(settings: ServerSettings) -> subprocess.Popen[bytes]:
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ} | dict(settings.env)
    # By the path that the server will have; on Windows a script such as npx.cmd is found so, too.
    program = shutil.which(settings.command, path=environment.get("PATH")) or settings.command
    try:
        return subprocess.Popen(
            [program, *settings.args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=settings.cwd or None,
            env=environment,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        culprit = settings.cwd if settings.cwd and not os.path.isdir(settings.cwd) else settings.command
        raise McpError(
            f"the MCP server {settings.name} cannot be started: {one_line(culprit)}: {reason}; check its command"
        ) from None


def _end_group(process: subprocess.Popen[bytes], owner: int) -> None:
    """Wait a moment for a process and all of its group to end; what stays gets SIGTERM, then SIGKILL."""
    if os.getpid() != owner:
        return
    ends_itself = False
    try:
        ends_itself = _is_over(process, _STDIN_SECONDS)
        if not ends_itself:
            _signal_group(process, signal.SIGTERM)
            ends_itself = _is_over(process, _GRACE_SECONDS)
    finally:
        # Who presses Ctrl-C does not want to wait, and leaves nothing behind either.
        if not ends_itself:
            _signal_group(process, getattr(signal, "SIGKILL", signal.SIGTERM))
            _is_over(process, _GRACE_SECONDS)


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    if sys.platform == "win32":
        command = ["taskkill", "/F", "/T", "/PID", str(process.pid)]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _is_over(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait until a process and all of its group have ended; return False if they have not by then.

    The number of the group belongs to nobody else as long as one of them is there.
    """
    until = monotonic() + seconds
    while process.poll() is None or not _is_empty(process.pid):
        if monotonic() >= until:
            return False
        sleep(_POLL_SECONDS)
    return True


def _is_empty(group: int) -> bool:
    if sys.platform == "win32":
        return True
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return True
    return False


def _ending(code: int | None, last_line: str) -> str:
    how = f"exit code {code}"
    if code is None:
        how = "it does not answer"
    elif code < 0:
        how = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"it has ended ({how})" + (f": {one_line(last_line)}" if last_line else "")
