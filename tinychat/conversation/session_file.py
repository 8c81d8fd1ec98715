"""The file of a saved conversation, in JSON: how it is written, and the formats that are read.

What a list shows stands at the beginning, so that a list reads no more. Format 1 had texts of user and assistant only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from textwrap import shorten

from tinychat.conversation.attachments import without_attachments
from tinychat.conversation.history import Change, History
from tinychat.conversation.messages import Message, as_message, check_conversation
from tinychat.errors import FieldError, SessionError, SettingError
from tinychat.text.guard import well_formed

FORMAT = 2
TITLE_LENGTH = 50
# As `to_json` begins a file, and did before.
_BEGINNING = re.compile(r'\{\n "format": [12],\n "about": ')
_SETTING_TYPES = (int, float, str, list, type(None))

CheckSettings = Callable[[Mapping[str, object]], None]
"""Raises a SettingError if a saved setting is unknown or out of range."""


def accept_all(_settings: Mapping[str, object]) -> None:
    """Refuse nothing."""


@dataclass
class SavedSession:
    """A conversation as it is kept.

    Attributes
    ----------
    model : str or None
        The MODEL that it was begun with, None for the default model.
    system : str or None
        The system prompt.
    messages : list of Message
        The last may be a message without a reply.
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
    """The entry of a conversation in a list; it stands at the beginning of the file.

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


def title_of(messages: Sequence[Message], length: int) -> str:
    """Return the title of a conversation: its first message in one line, without attachments."""
    first = messages[0].content if messages else ""
    return shorten(without_attachments(first) or first, length, placeholder="...")


def to_json(session: SavedSession) -> str:
    """Return the text of the file."""
    history = session.history and {"past": _steps(session.history.past), "future": _steps(session.history.future)}
    value = {
        "format": FORMAT,
        "about": asdict(About.of(session.messages)),
        "model": session.model,
        "system": session.system,
        "messages": [_saved(message) for message in session.messages],
        "settings": session.settings,
        "stop": session.stop,
        # Only what changed: what conversations begin with in common stands there once.
        "history": history,
    }
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def _steps(changes: Sequence[Change]) -> list[dict[str, object]]:
    return [{"kept": change.kept, "tail": [_saved(message) for message in change.tail]} for change in changes]


def _saved(message: Message) -> dict[str, object]:
    return message.as_dict() | ({"partial": True} if message.partial else {})


def from_json(data: bytes, source: str, check_settings: CheckSettings = accept_all) -> SavedSession:
    """Read the bytes of a file; `source` names it in errors.

    Raises
    ------
    SessionError
        If they are not a conversation, or one of a newer format.
    """
    value = _object(data, source)
    messages = _messages_in(value, source)
    with _part(source, "settings"):
        settings = _settings(value.get("settings"))
    try:
        check_settings(settings)
    except SettingError as error:
        raise SessionError(f"{source} is damaged: {error}") from None
    with _part(source, "history"):
        history = _history(value.get("history"), messages)
    with _part(source, "model"):
        model = _text_or_none(value.get("model"))
    with _part(source, "system"):
        system = _text_or_none(value.get("system"))
    with _part(source, "stop"):
        stop = _texts(value.get("stop", []))
    return SavedSession(model, system, messages, settings, stop, history)


def messages_from_json(data: bytes, source: str) -> list[Message]:
    """Read the messages alone, as `from_json` does.

    Raises
    ------
    SessionError
        As there.
    """
    return _messages_in(_object(data, source), source)


def about_from_json(beginning: bytes) -> About | None:
    """Read the beginning of a file; return None if it is not as `to_json` writes it."""
    text = beginning.decode("utf-8", "ignore")
    begin = _BEGINNING.match(text)
    if begin is None:
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(text, begin.end())
    except (ValueError, RecursionError):
        return None
    match value:
        case {"messages": int(count), "title": str(title)}:
            return About(count, shorten(well_formed(title), TITLE_LENGTH, placeholder="..."))
    return None


@contextmanager
def _part(source: str, key: str) -> Iterator[None]:
    """Name the file, and the key in it that cannot be read."""
    try:
        yield
    except SettingError:
        raise SessionError(f"{source} is damaged: its {key} cannot be read") from None


def _object(data: bytes, source: str) -> dict[str, object]:
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise SessionError(f"{source} is damaged: it is not valid JSON") from None
    if not isinstance(value, dict):
        raise SessionError(f"{source} is damaged: it does not hold a conversation")
    written = value.get("format")
    if not isinstance(written, int) or written < 1:
        raise SessionError(f"{source} is damaged: its format cannot be read")
    if written > FORMAT:
        raise SessionError(
            f"{source} was saved by a newer version of tinychat, in format {str(written)[:20]}; "
            f"this version reads formats up to {FORMAT}: upgrade"
        )
    return value


def _messages_in(value: Mapping[str, object], source: str) -> list[Message]:
    with _part(source, "messages"):
        messages = _messages(value.get("messages"))
        check_conversation(messages)
    return messages


def _messages(value: object) -> list[Message]:
    if not isinstance(value, list):
        raise FieldError("messages", "must be a list")
    return [_message(item, f"messages[{index}]") for index, item in enumerate(value)]


def _message(value: object, field: str) -> Message:
    fields = dict(value) if isinstance(value, dict) else {}
    partial = fields.pop("partial", False)
    if not isinstance(partial, bool):
        raise FieldError(f"{field}.partial", "must be true or false")
    return replace(as_message(fields, field), partial=partial)


def _history(value: object, messages: list[Message]) -> History | None:
    match value:
        case None:
            return None
        case {"past": [*past], "future": [*future]}:
            history = History(tuple(map(_change, past)), tuple(map(_change, future)))
            history.check(messages)
            return history
    raise FieldError("history", "must have past and future")


def _change(value: object) -> Change:
    match value:
        case {"kept": int(kept), "tail": tail}:
            return Change(kept, tuple(_messages(tail)))
    raise FieldError("history", "must be of changes")


def _settings(value: object) -> dict[str, object]:
    if not isinstance(value, dict) or not all(isinstance(item, _SETTING_TYPES) for item in value.values()):
        raise FieldError("settings", "must be numbers and texts by name")
    return value


def _texts(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
        raise FieldError("stop", "must be a list of texts")
    return value


def _text_or_none(value: object) -> str | None:
    if not isinstance(value, str | None):
        raise SettingError("must be a text")
    return value
