"""The file of a saved conversation: JSON with a version, checked whole before anything of it is used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from tinychat.chat.history import Change, History
from tinychat.chat.message import Message
from tinychat.chat.settings import check_settings
from tinychat.errors import SessionError, SettingError
from tinychat.text.guard import well_formed

FORMAT = 1
_ROLES = ("user", "assistant")
_SETTING_TYPES = (int, float, str, type(None))


@dataclass
class SavedSession:
    """A conversation as it is kept.

    Attributes
    ----------
    model : str or None
        The MODEL that it was begun with, None for the demo model.
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


def to_json(session: SavedSession) -> str:
    """Return the text of the file."""
    return json.dumps({"format": FORMAT} | asdict(session), ensure_ascii=False, indent=1) + "\n"


def from_json(data: bytes, source: str) -> SavedSession:
    """Read the bytes of a file; `source` names it in errors.

    Raises
    ------
    SessionError
        If they are not a conversation, or one of a newer format.
    """
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise SessionError(f"{source} is damaged: it is not valid JSON") from None
    if not isinstance(value, dict):
        raise SessionError(f"{source} is damaged: it holds no conversation")
    if value.get("format") != FORMAT:
        raise SessionError(f"{source} has format {value.get('format')!r:.20}, but this version reads {FORMAT}: upgrade")
    messages = _messages(value.get("messages"), source)
    return SavedSession(
        model=_text_or_none(value, "model", source),
        system=_text_or_none(value, "system", source),
        messages=messages,
        settings=_settings(value.get("settings"), source),
        stop=_texts(value, "stop", source),
        history=_history(value.get("history"), messages, source),
    )


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


def _settings(value: object, source: str) -> dict[str, object]:
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
