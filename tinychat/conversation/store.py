"""Saved conversations: one JSON file each in the user's folder, replaced in one step."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from tinychat.conversation.messages import Message
from tinychat.conversation.saved_images import FOLDER, SavedImages
from tinychat.conversation.session_file import (
    About,
    SavedSession,
    about_from_json,
    from_json,
    messages_from_json,
    to_json,
)
from tinychat.errors import SessionError
from tinychat.files import open_regular, read_small, replacing
from tinychat.text.guard import well_formed
from tinychat.user_folders import make_folder

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TIME_OF_DAY = "%Y-%m-%d-%H%M%S"
_AUTOMATIC = re.compile(r"\d{4}-\d\d-\d\d-\d{6}(-\d+)?")
_ENDING = ".json"
# As `to_json` writes them; a text cannot have quotation marks without a backslash.
_DIGESTS = re.compile(rb'"digest": "([0-9a-f]{64})"')
_MAX_BYTES = 256 << 20
# Read of a file for a list, and of one that does not begin as we write it.
_BEGINNING_BYTES, _SMALL_BYTES = 4096, 1 << 20


class SessionStore:
    """Saved conversations by name, in a folder that is made when the first is written.

    One that is only in the store `beside` is read there; saved, it is here too. Methods raise `SessionError` if there
    is no conversation of a name, a name could not be that of a file, or the file is damaged or cannot be changed.
    """

    def __init__(self, folder: Path, beside: SessionStore | None = None) -> None:
        self.folder = folder
        self._beside = beside
        self._images = SavedImages(folder / FOLDER)

    def names(self) -> list[str]:
        """Return all names, the last saved first."""
        try:
            files = [path for path in self.folder.iterdir() if path.suffix == _ENDING and _NAME.fullmatch(path.stem)]
        except OSError:
            return []
        return [path.stem for path in sorted(files, key=_modified_and_size, reverse=True)]

    def latest(self, on_damaged: Callable[[str], None]) -> str:
        """Return the name of the conversation that was saved last.

        `on_damaged` is called with a line for each later one that cannot be read and is skipped.
        """
        names = self.names()
        for name in names:
            try:
                self.read(name)
            except SessionError as error:
                on_damaged(f"passed over: {error}")
            else:
                return name
        state = "can be read" if names else "is saved"
        raise SessionError(f"no conversation {state} in {self.folder}: start one with `tinychat chat`")

    def exists(self, name: str) -> bool:
        """Return whether there is a conversation of this name."""
        return self._path(name).exists()

    def revision(self, name: str) -> int:
        """Return a number that changes whenever the conversation is saved; 0 if there is none."""
        return _modified_and_size(self._path(name))[0]

    def saved_at(self, name: str) -> float:
        """Return when a conversation was saved last, in seconds since the epoch."""
        return self.revision(name) / 1e9

    def size(self, name: str) -> int:
        """Return the bytes of a conversation's file; 0 if there is none."""
        return _modified_and_size(self._path(name))[1]

    def read(self, name: str) -> SavedSession:
        """Read a conversation; images that are gone are a `SavedImage` with a problem."""
        store = self if self._beside is None or not self._is_beside(name) else self._beside
        # One that several states share is read once.
        return from_json(self._data(name), str(self._path(name)), lru_cache(None)(store._images.read))

    def messages(self, name: str) -> list[Message]:
        """Read the messages of a conversation without its history, which may be much more."""
        return messages_from_json(self._data(name), str(self._path(name)))

    def about(self, name: str) -> About | None:
        """Return the entry of a conversation for a list, from the beginning of its file, however long that is.

        None for a long one that another version saved: all of it would have to be read.
        """
        found = about_from_json(self._data(name, only_beginning=True))
        if found is None and self.size(name) <= _SMALL_BYTES:
            return About.of(self.messages(name))
        return found

    def _data(self, name: str, only_beginning: bool = False) -> bytes:
        """Return the bytes of a conversation's file, or of its beginning."""
        if self._beside is not None and self._is_beside(name):
            return self._beside._data(name, only_beginning)
        with self._file(name, "read") as path:
            if not only_beginning:
                return read_small(path, _MAX_BYTES)
            with open_regular(path) as file:
                return file.read(_BEGINNING_BYTES)

    def _is_beside(self, name: str) -> bool:
        """Return whether a conversation is only in the store beside."""
        return self._beside is not None and not self._path(name).exists() and self._beside.exists(name)

    def write(self, name: str, session: SavedSession) -> None:
        """Save a conversation; readers of the file see the old one or the new one, whole."""
        path = self._path(name)
        try:
            make_folder(self.folder)
            self._images.write(placed.image for placed in session.images)
            with replacing(path) as file:
                file.write(well_formed(to_json(session)).encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise SessionError(f"{path} cannot be written: {error.strerror or error}") from None

    def rename(self, name: str, new: str) -> None:
        """Rename a conversation; refused if the new name is taken."""
        with self._file(name, "renamed") as path:
            path.stat()
            if self.exists(new):
                raise SessionError(f"there is a conversation {new} already: choose another name")
            os.rename(path, self._path(new))

    def delete(self, name: str) -> None:
        """Delete a conversation, and the images that no other one has."""
        digests = self.image_digests(name)
        with self._file(name, "deleted") as path:
            path.unlink()
        self._remove_images(digests)

    def remove(self, name: str) -> None:
        """Delete a conversation, and the images that no other one has, if it is there and may be deleted."""
        digests = self.image_digests(name)
        with suppress(OSError):
            self._path(name).unlink()
            self._remove_images(digests)

    def image_digests(self, name: str) -> set[str]:
        """Return the digests of a conversation's images, those of its history included; none of a damaged file."""
        if self._images.is_empty:
            return set()
        with suppress(OSError):
            return {found.decode() for found in _DIGESTS.findall(read_small(self._path(name), _MAX_BYTES))}
        return set()

    def _remove_images(self, digests: set[str]) -> None:
        if not self._images.is_empty:
            self._images.remove(digests, {digest for name in self.names() for digest in self.image_digests(name)})

    def new_name(self, wanted: str | None = None) -> str:
        """Return a free name: `wanted`, else the time of day, with a number behind it if need be."""
        base = wanted or datetime.now().strftime(_TIME_OF_DAY)
        candidates = (base if count == 1 else f"{base}-{count}" for count in range(1, 10_000))
        return next(name for name in candidates if not self.exists(name))

    @contextmanager
    def _file(self, name: str, done: str) -> Iterator[Path]:
        """Give the path of a conversation's file to a block, whose `OSError` becomes "cannot be `done`"."""
        path = self._path(name)
        try:
            yield path
        except FileNotFoundError:
            raise SessionError(f"there is no conversation {name!r}: {self._advice(name)}") from None
        except OSError as error:
            raise SessionError(f"{path} cannot be {done}: {error.strerror or error}") from None

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise SessionError(f"{name[:60]!r} cannot name a conversation: use letters, digits, '.', '_' and '-' only")
        return self.folder / f"{name}{_ENDING}"

    def _advice(self, name: str) -> str:
        names = self.names()
        nearest = get_close_matches(name, names, n=1)
        if nearest:
            return f"did you mean {nearest[0]}?"
        return f"saved are {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}" if names else "none is saved yet"


def is_automatic(name: str) -> bool:
    """Return whether a conversation has a name that `SessionStore.new_name` gives by default."""
    return _AUTOMATIC.fullmatch(name) is not None


def _modified_and_size(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size
