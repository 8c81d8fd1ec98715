"""The log of a server's complaints: a file of bounded size, and its last line."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import BinaryIO

from tinychat.user_folders import private_folder, trusted_state_folder

MAX_BYTES = 1 << 20
_LAST_BYTES = 4096


class LogFile:
    """A file that text is added to, and that begins again where it would have more than `MAX_BYTES`.

    Where it cannot be written, on a full disk too, only the last line is known. Threads may write at once.
    """

    def __init__(self, name: str) -> None:
        self.path: Path | None = None
        self._file: BinaryIO | None = None
        self._last = b""
        self._lock = threading.Lock()
        try:
            self.path = private_folder(trusted_state_folder(os.environ) / "mcp") / f"{name}.log"
            self._file = open(self.path, "ab", buffering=0, opener=lambda path, flags: os.open(path, flags, 0o600))
        except OSError:
            self.path = None

    def write(self, data: bytes) -> None:
        """Add bytes to the file."""
        with self._lock:
            self._last = (self._last + data)[-_LAST_BYTES:]
            if self._file is None:
                return
            try:
                if self._file.tell() + len(data) > MAX_BYTES:
                    self._file.truncate(0)
                    data = b"(what was here was too long)\n" + data[-MAX_BYTES // 2 :]
                self._file.write(data)
            except OSError:
                self._end()

    @property
    def last_line(self) -> str:
        """The last line that is not empty."""
        lines = self._last.decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
