"""The log of one-shots: the last questions that were answered, each a conversation that can continue."""

from __future__ import annotations

from pathlib import Path

from tinychat.conversation.session_file import SavedSession
from tinychat.conversation.store import SessionStore
from tinychat.errors import SessionError

FOLDER = "log"
MOST, MOST_BYTES = 200, 32 << 20


class OneShots(SessionStore):
    """One-shots by name, in files that only their owner can read: the last `MOST`, in at most `MOST_BYTES`."""

    def __init__(self, state: Path) -> None:
        super().__init__(state / FOLDER)

    def keep(self, session: SavedSession, earlier: str | None = None, revision: int = 0) -> str:
        """Save a one-shot and return its name.

        It replaces the `earlier` one that it continues, unless that has changed since it was read at `revision`.
        """
        is_same = earlier is not None and self.revision(earlier) == revision
        name = earlier if earlier is not None and is_same else self.new_name()
        self.write(name, session)
        self._remove_oldest()
        return name

    def last(self) -> str:
        """Return the name of the one-shot that was answered last; `SessionError` if there is none."""
        names = self.names()
        if not names:
            raise SessionError('there is no one-shot to go on with: ask one first, as in tinychat "Why ...?"')
        return names[0]

    def _remove_oldest(self) -> None:
        size = 0
        for count, name in enumerate(self.names(), 1):
            size += self.size(name) + self._images.size(self.image_digests(name))
            if count > MOST or size > MOST_BYTES:
                self.remove(name)
