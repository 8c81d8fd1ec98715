"""Keys and values of saved conversations: one that is continued need not be read again.

Each is a file beside its conversation's. They are made as large as keys and values are, so together they have a limit,
and the one used longest ago goes first. None is needed: what a file does not give is computed.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from tinychat.errors import SessionError
from tinychat.files import unfinished_bytes
from tinychat.generate.model import Model

DEFAULT_BYTES = 1 << 30
"""Most disk space of all files together where nobody says otherwise."""
_SHARE_OF_FREE = 0.1
# A shorter conversation is read about as fast as a file.
_FEWEST_TOKENS = 128
_ENDING = ".cache"


class SavedCaches:
    """The files of a folder.

    Parameters
    ----------
    folder : Path
        That of the conversations; nobody else may write to it.
    most_bytes : int
        Most disk space of all files together, and no more than a tenth of what is free; with 0, nothing is written or
        read.
    """

    def __init__(self, folder: Path, most_bytes: int = DEFAULT_BYTES) -> None:
        self.folder = folder
        self.most_bytes = most_bytes

    def keep(self, name: str, model: Model) -> None:
        """Write what the model has read and written, as part of the conversation of this name."""
        if len(model.sequence.ids) < _FEWEST_TOKENS or not self.most_bytes:
            return
        # Full disks and the like: the conversation itself is safe.
        with suppress(OSError, SessionError):
            size = model.sequence.saved_bytes
            if size <= _SHARE_OF_FREE * shutil.disk_usage(self.folder).free and self._make_room(size, but=name):
                model.sequence.save(self._path(name))

    def recall(self, name: str, model: Model) -> int:
        """Let the model use what was kept for this conversation; return how many tokens that are."""
        if not self.most_bytes:
            return 0
        with suppress(OSError):
            self._unfinished_bytes()
            found = model.sequence.recall(self._path(name))
            if found:
                # Its turn to go comes later now.
                os.utime(self._path(name))
            return found
        return 0

    def rename(self, name: str, new: str) -> None:
        """Let what was kept for a conversation follow its new name."""
        with suppress(OSError):
            os.replace(self._path(name), self._path(new))

    def remove(self, name: str) -> None:
        """Remove what was kept for a conversation."""
        with suppress(OSError):
            self._path(name).unlink()

    def _make_room(self, size: int, but: str) -> bool:
        """Remove what was used longest ago until so many bytes more fit; return whether they do."""
        most = self.most_bytes - self._unfinished_bytes()
        if size > most:
            return False
        files = [path for path in self.folder.glob(f"*{_ENDING}") if path != self._path(but)]
        oldest_first = sorted((path.stat().st_mtime_ns, path.stat().st_size, path) for path in files)
        taken = size + sum(length for _, length, _ in oldest_first)
        for _, length, path in oldest_first:
            if taken <= most:
                break
            path.unlink()
            taken -= length
        return True

    def _unfinished_bytes(self) -> int:
        """Return the bytes of files that other processes write now; remove what killed ones have left."""
        return unfinished_bytes(self.folder, f"*{_ENDING}")

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{_ENDING}"
