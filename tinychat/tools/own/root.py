"""A folder that tools may not leave."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tinychat.errors import ToolError
from tinychat.files import open_regular, read_up_to
from tinychat.json_file import one_line
from tinychat.user_folders import cache_folder, config_folder, data_folder, state_folder

MAX_FILE_BYTES = 4 << 20
_MOST_ENTRIES = 50_000
_MOST_SECONDS = 10.0
# Beside folders whose name begins with a dot.
_PASSED_OVER = ("__pycache__", "node_modules")


class Root:
    """A folder, and all that is reachable in it without leaving it; tinychat's own folders never count as such.

    Who could write to those could allow calls, or change the code of kernels.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(os.path.realpath(folder))
        self._own = set()
        for own in (cache_folder, config_folder, data_folder, state_folder):
            with suppress(OSError):
                self._own.add(_identity(os.stat(own(os.environ))))

    def resolve(self, path: str) -> Path:
        """Return the real path of a file or folder that is in this one, or may be made in it; else `ToolError`."""
        if "\0" in path:
            raise ToolError("a path has no NUL character")
        real = Path(os.path.realpath(self.folder / path))
        if not real.is_relative_to(self.folder):
            raise ToolError(
                f"{one_line(path)} is outside of {one_line(str(self.folder))}, and nothing outside is shown"
            )
        for part in (real, *real.parents):
            with suppress(OSError):
                if self.is_own(os.stat(part)):
                    raise ToolError(f"{one_line(path)} belongs to tinychat itself: tools do not reach it")
        return real

    def is_own(self, status: os.stat_result) -> bool:
        """Return whether a folder is one of tinychat's own."""
        return _identity(status) in self._own

    def shown(self, path: Path) -> str:
        """Return a path relative to this folder, as one line."""
        return one_line(path.relative_to(self.folder).as_posix(), 300)

    def read(self, path: Path) -> str:
        """Return the text of a resolved path; `ToolError` for no regular file, no text, or more than 4 MiB."""
        name = self.shown(path)
        try:
            with open_regular(path, beneath=self.folder) as file:
                data = read_up_to(file, path, MAX_FILE_BYTES)
                size = os.fstat(file.fileno()).st_size
        except IsADirectoryError:
            raise ToolError(f"{name} is a folder: list_files lists it") from None
        except FileNotFoundError:
            raise ToolError(f"there is no file {name}") from None
        except OSError as error:
            raise ToolError(f"{name} cannot be read: {error.strerror or error}") from None
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise ToolError(f"{name} is not text: it has {size:,} bytes of other data")
        return text

    def walk(self, start: Path, stop: threading.Event, recursive: bool = True) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield the entries of a folder, and of those in it, by name; links are entries and are not followed.

        Left out below it are folders whose name begins with a dot, ``__pycache__`` and ``node_modules``. `TimeoutError`
        at 50,000 entries or after 10 seconds; it ends once `stop` is set.
        """
        until, seen, folders = time.monotonic() + _MOST_SECONDS, 0, [start]
        while folders:
            inner = []
            for path, status in _entries(folders.pop()):
                seen += 1
                if stop.is_set():
                    return
                if seen > _MOST_ENTRIES or time.monotonic() > until:
                    raise TimeoutError
                is_folder = stat.S_ISDIR(status.st_mode)
                if is_folder and self.is_own(status):
                    continue
                yield path, status
                if is_folder and not path.name.startswith(".") and path.name not in _PASSED_OVER:
                    inner.append(path)
            folders += reversed(inner) if recursive else []


def _entries(folder: Path) -> list[tuple[Path, os.stat_result]]:
    """Return the entries of a folder by name; none of one that has gone or cannot be read."""
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                found.append((folder / entry.name, entry.stat(follow_symlinks=False)))
    return sorted(found)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
