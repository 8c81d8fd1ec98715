"""The file of a saved conversation, in JSON: how it is written, and the formats that are read.

What a list shows stands at the beginning, so that a list reads no more. Format 1 had texts of user and assistant only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from textwrap import shorten
from typing import TypeVar

from tinychat.conversation.attachments import without_attachments
from tinychat.conversation.history import Change, History
from tinychat.conversation.messages import SUMMARY_REQUEST, Message, as_message, check_conversation
from tinychat.errors import FieldError, SessionError, SettingError
from tinychat.settings import SET, SETTINGS, names
from tinychat.text.guard import well_formed

FORMAT = 2
TITLE_LENGTH = 50
_PASSAGE_LENGTH = 60
# As `to_json` begins a file, and did before.
_BEGINNING = re.compile(r'\{\n "format": [12],\n "about": ')
# What the screen shows is not the conversation's.
_SETTINGS = [name for name in names(entry=SET) if SETTINGS[name].scope != "screen"]
_Part = TypeVar("_Part")


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
    """Return the title of a conversation: its first message in one line, without attachments; or its summary."""
    first = next((message.content for message in messages if message.content != SUMMARY_REQUEST), "")
    return shorten(without_attachments(first) or first, length, placeholder="...")


def passage_with(messages: Sequence[Message], word: str) -> str | None:
    """Return the words around the first occurrence of `word` in a conversation; empty if its title shows it."""
    sought = word.casefold()
    if sought in About.of(messages).title.casefold():
        return ""
    for message in messages:
        text = " ".join(message.text.split())
        index = text.casefold().find(sought)
        if index >= 0:
            # From the beginning of a word.
            begin = text.rfind(" ", 0, max(0, index - _PASSAGE_LENGTH // 3)) + 1
            return ("..." if begin else "") + shorten(text[begin:], _PASSAGE_LENGTH, placeholder="...")
    return None


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


def from_json(data: bytes, source: str) -> SavedSession:
    """Read the bytes of a file; `source` names it in errors.

    Raises
    ------
    SessionError
        If they are not a conversation, or one of a newer format.
    """
    value = _object(data, source)
    messages = _part(value, "messages", source, _conversation)
    settings = _part(value, "settings", source, _mapping)
    try:
        for name, setting in settings.items():
            if name not in _SETTINGS:
                raise SettingError(f"there is no setting {name}")
            SETTINGS[name].read(setting)
    except SettingError as error:
        raise SessionError(f"{source} is damaged: {error}") from None
    return SavedSession(
        model=_part(value, "model", source, _text_or_none),
        system=_part(value, "system", source, _text_or_none),
        messages=messages,
        settings=settings,
        stop=_part(value, "stop", source, _texts),
        history=_part(value, "history", source, partial(_history, messages)),
    )


def messages_from_json(data: bytes, source: str) -> list[Message]:
    """Read the messages alone; errors are those of `from_json`."""
    return _part(_object(data, source), "messages", source, _conversation)


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


def _part(value: Mapping[str, object], key: str, source: str, read: Callable[[object], _Part]) -> _Part:
    """Return what `read` makes of the value of a key, which an error names."""
    try:
        return read(value.get(key))
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


def _conversation(value: object) -> list[Message]:
    messages = _messages(value)
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


def _history(messages: list[Message], value: object) -> History | None:
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


def _mapping(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise SettingError("must be values by name")
    return value


def _texts(value: object) -> list[str]:
    texts = [] if value is None else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise SettingError("must be a list of texts")
    return texts


def _text_or_none(value: object) -> str | None:
    if not isinstance(value, str | None):
        raise SettingError("must be a text")
    return value
