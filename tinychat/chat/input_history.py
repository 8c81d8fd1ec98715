"""What the person typed, kept from run to run."""

from __future__ import annotations

import contextlib
from pathlib import Path

from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from tinychat.user_folders import make_folder


class _DiskHistory(FileHistory):
    def store_string(self, string: str) -> None:
        """Append to the file; a disk that fills up costs the history, never the message."""
        with contextlib.suppress(OSError):
            super().store_string(string)


def open_history(file: Path) -> History:
    """Return the history kept in `file`, made for this user alone; in memory where that cannot be."""
    try:
        make_folder(file.parent)
        file.touch(mode=0o600)
        file.read_bytes()
    except OSError:
        return InMemoryHistory()
    return _DiskHistory(str(file))
