"""Files of KV caches, of saved conversations or of a server: what is continued needs no new prefill.

Their total size is limited, and the least recently used is evicted first.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tinychat.errors import SessionError
from tinychat.files import replace, unfinished_bytes

if TYPE_CHECKING:
    from tinychat.engine.sequence import Sequence

DEFAULT_BYTES = 1 << 30
"""Default limit of all files together."""
_SHARE_OF_FREE = 0.1
# The prefill of a shorter conversation is about as fast as reading a file.
_MIN_TOKENS = 128
_ENDING = ".cache"


class SavedCaches:
    """The files of a folder that only this user can write to.

    They take `max_bytes` at most, and never more than a tenth of the free disk space; 0 saves and loads none.
    """

    def __init__(self, folder: Path, max_bytes: int = DEFAULT_BYTES) -> None:
        self.folder = folder
        self.max_bytes = max_bytes

    def save(self, name: str, sequence: Sequence) -> None:
        """Save the cache of a sequence under a name, if it is long enough and fits."""
        if len(sequence.ids) < _MIN_TOKENS or not self.max_bytes:
            return
        # A full disk, for example: the conversation itself is safe.
        with suppress(OSError, SessionError):
            size = sequence.saved_bytes
            if size <= _SHARE_OF_FREE * shutil.disk_usage(self.folder).free and self._evict_for(size, name):
                sequence.save(self._path(name))

    def load(self, name: str, sequence: Sequence) -> int:
        """Load what was saved under a name into the cache of a sequence's engine; return its number of tokens."""
        if not self.max_bytes:
            return 0
        with suppress(OSError):
            self._unfinished_bytes()
            found = sequence.load(self._path(name))
            if found:
                # Now the most recently used.
                os.utime(self._path(name))
            return found
        return 0

    def names(self) -> list[str]:
        """Return the names of all caches, the most recently used first."""
        with suppress(OSError):
            files = sorted(self.folder.glob(f"*{_ENDING}"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
            return [path.name.removesuffix(_ENDING) for path in files]
        return []

    def rename(self, name: str, new: str) -> None:
        """Rename a cache."""
        with suppress(OSError):
            replace(self._path(name), self._path(new))

    def remove(self, name: str) -> None:
        """Remove a cache."""
        with suppress(OSError):
            self._path(name).unlink()

    def _evict_for(self, size: int, name: str) -> bool:
        """Evict the least recently used caches of others until `size` bytes fit; return whether they can."""
        limit = self.max_bytes - self._unfinished_bytes()
        if size > limit:
            return False
        files = [path for path in self.folder.glob(f"*{_ENDING}") if path != self._path(name)]
        oldest_first = sorted((path.stat().st_mtime_ns, path.stat().st_size, path) for path in files)
        total = size + sum(length for _, length, _ in oldest_first)
        for _, length, path in oldest_first:
            if total <= limit:
                break
            path.unlink()
            total -= length
        return True

    def _unfinished_bytes(self) -> int:
        """Return the bytes of files that other processes are writing; remove those of killed processes."""
        return unfinished_bytes(self.folder, f"*{_ENDING}")

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{_ENDING}"
