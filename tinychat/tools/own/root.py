"""A folder that tools may not leave."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from tinychat.errors import ToolError
from tinychat.files import open_regular, read_up_to
from tinychat.json_file import one_line
from tinychat.user_folders import cache_folder, config_folder, data_folder, state_folder

MAX_FILE_BYTES = 4 << 20
_MOST_ENTRIES = 50_000
_MOST_SECONDS = 10.0
_FOLDERS_OF_USER = (cache_folder, config_folder, data_folder, state_folder)
_FOLDERS_OF_SYSTEM = ("/proc", "/sys")
# Beside folders whose name begins with a dot.
_PASSED_OVER = ("__pycache__", "node_modules")


class Root:
    """A folder, and all that is reachable in it without leaving it.

    Never reachable are tinychat's own folders, where who writes could allow calls or change the code of kernels, and
    those in which Linux shows processes with their environment.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(os.path.realpath(folder))
        self._closed = [*map(Path, _FOLDERS_OF_SYSTEM)]
        for find in _FOLDERS_OF_USER:
            with suppress(OSError):
                self._closed.append(Path(os.path.realpath(find(os.environ))))

    def resolve(self, path: str) -> Path:
        """Return the real path of a file or folder that is in this one, or may be made in it; else `ToolError`."""
        if "\0" in path:
            raise ToolError("a path has no NUL character")
        real = Path(os.path.realpath(self.folder / path))
        if not real.is_relative_to(self.folder):
            raise ToolError(
                f"{one_line(path)} is outside of {one_line(str(self.folder))}, and nothing outside is shown"
            )
        if self._is_closed(real):
            raise ToolError(f"{one_line(path)} is of tinychat itself, or of the system: no tool reaches it")
        return real

    def _is_closed(self, real: Path) -> bool:
        """Return whether a path is in a closed folder, which need not be there yet, in whatever case it is written."""
        folded = Path(str(real).casefold())
        if any(folded.is_relative_to(str(closed).casefold()) for closed in self._closed):
            return True
        # Another name of the same folder, as bind mounts and some file systems have it.
        closed_now, parts = (_identities(paths) for paths in (self._closed, (real, *real.parents)))
        return not closed_now.isdisjoint(parts)

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
                if is_folder and self._is_closed(path):
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


def _identities(paths: Iterable[Path]) -> set[tuple[int, int]]:
    """Return device and number of those that are there."""
    found = set()
    for path in paths:
        with suppress(OSError):
            status = os.stat(path)
            found.add((status.st_dev, status.st_ino))
    return found
