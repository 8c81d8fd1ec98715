"""Prefixes on disk: what the server has read of system prompts and tools need not be read again after a restart."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tinychat.engine.saved_caches import SavedCaches
from tinychat.errors import SessionError
from tinychat.user_folders import make_folder, state_folder

if TYPE_CHECKING:
    from tinychat.generate.model import Model

# Conversations that begin with the same ids have one file, that of the last one.
_NAMED_BY = 128
# Files that are read when a model is loaded.
_MOST_FILES = 8


class PrefixFiles:
    """Saves the caches of a model when it is unloaded, and loads them with it.

    All files of a model have `max_bytes` at most; 0 saves and loads none.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes

    def load(self, model: Model) -> None:
        """Let prompts reuse what was saved for a model."""
        caches = self._caches(model)
        if caches is None:
            return
        with model.driver.exclusive():
            for name in caches.names()[:_MOST_FILES]:
                caches.load(name, model.sequence)

    def save(self, model: Model) -> None:
        """Save what prompts may reuse."""
        caches = self._caches(model)
        if caches is None:
            return
        with model.driver.exclusive():
            for sequence in model.driver.idle:
                beginning = ",".join(map(str, sequence.ids[:_NAMED_BY]))
                caches.save(hashlib.sha256(beginning.encode()).hexdigest()[:16], sequence)

    def _caches(self, model: Model) -> SavedCaches | None:
        """Return the files of a model; None where they are not wanted, or the folder cannot be used."""
        if not self._max_bytes or not model.driver.shares_prefixes:
            return None
        name = hashlib.sha256(str(Path(model.path).resolve()).encode()).hexdigest()[:16]
        with suppress(OSError, SessionError):
            return SavedCaches(make_folder(state_folder(os.environ) / "prefixes" / name), self._max_bytes)
        return None
