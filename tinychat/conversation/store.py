"""Saved conversations: one JSON file each in the user's folder, replaced in one step."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from textwrap import shorten

from tinychat.conversation.attachments import without_attachments
from tinychat.conversation.history import Change, History
from tinychat.conversation.messages import Message
from tinychat.errors import SessionError, SettingError
from tinychat.files import open_regular, read_small, replacing
from tinychat.text.guard import well_formed
from tinychat.user_folders import make_folder

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TIME_OF_DAY = "%Y-%m-%d-%H%M%S"
_AUTOMATIC = re.compile(r"\d{4}-\d\d-\d\d-\d{6}(-\d+)?")
_ENDING = ".json"
_MAX_BYTES = 256 << 20
FORMAT = 1
TITLE_LENGTH = 50
# As `to_json` begins a file, what follows that, and how much is read of a file that begins otherwise.
_BEGINNING = f'{{\n "format": {FORMAT},\n "about": '
_BEGINNING_BYTES, _SMALL_BYTES = 4096, 1 << 20
_ROLES = ("user", "assistant")
_SETTING_TYPES = (int, float, str, type(None))


CheckSettings = Callable[[Mapping[str, object]], None]
"""Raises a SettingError if a saved setting is unknown or out of range."""


def _accept(_settings: Mapping[str, object]) -> None:
    pass


class SessionStore:
    """Saved conversations by name.

    Parameters
    ----------
    folder : Path
        Where the files are; made when the first is written.
    check_settings : callable, optional
        Refuses settings that no conversation can have; by default any are read.
    """

    def __init__(self, folder: Path, check_settings: CheckSettings = _accept) -> None:
        self.folder = folder
        self._check_settings = check_settings

    def names(self) -> list[str]:
        """Return all names, the last saved first."""
        try:
            files = [path for path in self.folder.iterdir() if path.suffix == _ENDING and _NAME.fullmatch(path.stem)]
        except OSError:
            return []
        return [path.stem for path in sorted(files, key=_modified, reverse=True)]

    def latest(self, on_damaged: Callable[[str], None]) -> str:
        """Return the name of the conversation that was saved last.

        Parameters
        ----------
        on_damaged : callable
            Called with a line for each later one that cannot be read and is passed over.

        Raises
        ------
        SessionError
            If there is none.
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
        """Return whether there is a conversation of this name.

        Raises
        ------
        SessionError
            If the name could not be that of a file.
        """
        return self._path(name).exists()

    def stamp(self, name: str) -> int:
        """Return what changes whenever the conversation is saved; 0 if there is none."""
        return _modified(self._path(name))

    def saved_at(self, name: str) -> float:
        """Return when a conversation was saved last, in seconds since the epoch."""
        return self.stamp(name) / 1e9

    def read(self, name: str) -> SavedSession:
        """Read a conversation.

        Raises
        ------
        SessionError
            If there is none of this name, or its file is damaged.
        """
        return from_json(self._data(name, _MAX_BYTES), str(self._path(name)), self._check_settings)

    def messages(self, name: str) -> list[Message]:
        """Read the messages of a conversation as `read` does, but not what they were before: that may be much more.

        Raises
        ------
        SessionError
            If there is none of this name, or its file is damaged.
        """
        source = str(self._path(name))
        return _messages(_object(self._data(name, _MAX_BYTES), source).get("messages"), source)

    def about(self, name: str) -> About | None:
        """Return what a list shows of a conversation, from the beginning of its file, however long that is.

        None for a long one that another version saved: all of it would have to be read.

        Raises
        ------
        SessionError
            If there is none of this name, or its file is seen to be damaged.
        """
        found = _about(self._data(name))
        if found is None and _size(self._path(name)) <= _SMALL_BYTES:
            return About.of(self.messages(name))
        return found

    def _data(self, name: str, limit: int | None = None) -> bytes:
        """Return a conversation's file, which may have `limit` bytes; how it begins if there is no limit."""
        path = self._path(name)
        try:
            if limit is not None:
                return read_small(path, limit)
            with open_regular(path) as file:
                return file.read(_BEGINNING_BYTES)
        except FileNotFoundError:
            raise SessionError(f"there is no conversation {name!r}: {self._advice(name)}") from None
        except OSError as error:
            raise SessionError(f"{path} cannot be read: {error.strerror or error}") from None

    def write(self, name: str, session: SavedSession) -> None:
        """Save a conversation; whoever reads the file sees the old one or the new one, whole.

        Raises
        ------
        SessionError
            If the name could not be that of a file, or the file cannot be written.
        """
        path = self._path(name)
        try:
            make_folder(self.folder)
            with replacing(path) as file:
                file.write(well_formed(to_json(session)).encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise SessionError(f"{path} cannot be written: {error.strerror or error}") from None

    def rename(self, name: str, new: str) -> None:
        """Give a conversation a new name.

        Raises
        ------
        SessionError
            If there is none of the first name, one of the second, or the file cannot be renamed.
        """
        if not self.exists(name):
            raise SessionError(f"there is no conversation {name!r}: {self._advice(name)}")
        if self.exists(new):
            raise SessionError(f"there is a conversation {new} already: choose another name")
        try:
            os.rename(self._path(name), self._path(new))
        except OSError as error:
            raise SessionError(f"{self._path(name)} cannot be renamed: {error.strerror or error}") from None

    def delete(self, name: str) -> None:
        """Delete a conversation.

        Raises
        ------
        SessionError
            If there is none of this name, or it cannot be deleted.
        """
        try:
            self._path(name).unlink()
        except FileNotFoundError:
            raise SessionError(f"there is no conversation {name!r}: {self._advice(name)}") from None
        except OSError as error:
            raise SessionError(f"{self._path(name)} cannot be deleted: {error.strerror or error}") from None

    def remove(self, name: str) -> None:
        """Remove a conversation, if it is there and may be removed."""
        with suppress(OSError):
            self._path(name).unlink()

    def new_name(self, wanted: str | None = None) -> str:
        """Return a name that is free: `wanted`, else the time of day, with a number behind it if need be."""
        base = wanted or datetime.now().strftime(_TIME_OF_DAY)
        candidates = (base if count == 1 else f"{base}-{count}" for count in range(1, 10_000))
        return next(name for name in candidates if not self.exists(name))

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


def title_of(messages: Sequence[Message], length: int) -> str:
    """Return what a conversation is about: its first message in one line, without what was attached to it."""
    first = messages[0].content if messages else ""
    return shorten(without_attachments(first) or first, length, placeholder="...")


def is_automatic(name: str) -> bool:
    """Return whether a conversation has the name that `SessionStore.new_name` gives where nobody wants another."""
    return _AUTOMATIC.fullmatch(name) is not None


def _modified(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


@dataclass
class SavedSession:
    """A conversation as it is kept.

    Attributes
    ----------
    model : str or None
        The MODEL that it was begun with, None for the usual model.
    system : str or None
        The system prompt.
    messages : list of Message
        User and assistant in turn; the last may be a message without a reply.
    settings : mapping
        Values by name, as `tinychat.chat.settings.settings_of` gives them.
    stop : list of str
        Texts that end a reply.
    history : History or None
        What /undo and /redo lead to; None in files of versions that did not keep it.
    """

    model: str | None = None
    system: str | None = None
    messages: list[Message] = field(default_factory=list)
    settings: Mapping[str, object] = field(default_factory=dict)
    stop: list[str] = field(default_factory=list)
    history: History | None = None


@dataclass(frozen=True)
class About:
    """What a list of conversations shows of one; it stands at the beginning of the file.

    Attributes
    ----------
    messages : int
        How many there are.
    title : str
        See `title_of`.
    """

    messages: int
    title: str

    @staticmethod
    def of(messages: Sequence[Message]) -> About:
        """Return it for a conversation of these messages."""
        return About(len(messages), title_of(messages, TITLE_LENGTH))


def to_json(session: SavedSession) -> str:
    """Return the text of the file."""
    begin = {"format": FORMAT, "about": asdict(About.of(session.messages))}
    return json.dumps(begin | asdict(session), ensure_ascii=False, indent=1) + "\n"


def from_json(data: bytes, source: str, check_settings: CheckSettings = _accept) -> SavedSession:
    """Read the bytes of a file; `source` names it in errors.

    Raises
    ------
    SessionError
        If they are not a conversation, or one of a newer format.
    """
    value = _object(data, source)
    messages = _messages(value.get("messages"), source)
    return SavedSession(
        model=_text_or_none(value, "model", source),
        system=_text_or_none(value, "system", source),
        messages=messages,
        settings=_settings(value.get("settings"), source, check_settings),
        stop=_texts(value, "stop", source),
        history=_history(value.get("history"), messages, source),
    )


def _about(beginning: bytes) -> About | None:
    """Read the beginning of a file; return None if it is not as `to_json` writes it."""
    text = beginning.decode("utf-8", "ignore")
    if not text.startswith(_BEGINNING):
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(text, len(_BEGINNING))
    except (ValueError, RecursionError):
        return None
    match value:
        case {"messages": int(count), "title": str(title)}:
            return About(count, shorten(well_formed(title), TITLE_LENGTH, placeholder="..."))
    return None


def _object(data: bytes, source: str) -> dict[str, object]:
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise SessionError(f"{source} is damaged: it is not valid JSON") from None
    if not isinstance(value, dict):
        raise SessionError(f"{source} is damaged: it does not hold a conversation")
    if value.get("format") != FORMAT:
        raise SessionError(f"{source} has format {value.get('format')!r:.20}, but this version reads {FORMAT}: upgrade")
    return value


def _messages(value: object, source: str, first: int = 0) -> list[Message]:
    """Read messages that stand behind `first` others."""
    if not isinstance(value, list):
        raise _damaged(source, "messages")
    return [_message(item, _ROLES[place % 2], source) for place, item in enumerate(value, first)]


def _message(value: object, role: str, source: str) -> Message:
    """Read a message that must be of `role`: user and assistant speak in turn."""
    if not isinstance(value, dict) or value.get("role") != role:
        raise _damaged(source, "messages")
    content, partial = value.get("content"), value.get("partial", False)
    if not isinstance(content, str) or not isinstance(partial, bool):
        raise _damaged(source, "messages")
    return Message(role, well_formed(content), partial)


def _history(value: object, messages: list[Message], source: str) -> History | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _damaged(source, "history")
    history = History(_changes(value.get("past"), source), _changes(value.get("future"), source))
    if not history.fits(messages):
        raise _damaged(source, "history")
    return history


def _changes(value: object, source: str) -> tuple[Change, ...]:
    if not isinstance(value, list):
        raise _damaged(source, "history")
    return tuple(_change(item, source) for item in value)


def _change(value: object, source: str) -> Change:
    kept = value.get("kept") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(kept, int):
        raise _damaged(source, "history")
    return Change(kept, tuple(_messages(value.get("tail"), source, kept)))


def _settings(value: object, source: str, check_settings: CheckSettings) -> dict[str, object]:
    if not isinstance(value, dict) or not all(isinstance(item, _SETTING_TYPES) for item in value.values()):
        raise _damaged(source, "settings")
    try:
        check_settings(value)
    except SettingError as error:
        raise SessionError(f"{source} is damaged: {error}") from None
    return value


def _texts(value: Mapping[str, object], key: str, source: str) -> list[str]:
    texts = value.get(key, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise _damaged(source, key)
    return texts


def _text_or_none(value: Mapping[str, object], key: str, source: str) -> str | None:
    text = value.get(key)
    if not isinstance(text, str | None):
        raise _damaged(source, key)
    return text


def _damaged(source: str, key: str) -> SessionError:
    return SessionError(f"{source} is damaged: its {key} cannot be read")
