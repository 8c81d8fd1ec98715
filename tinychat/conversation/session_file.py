"""The JSON file of a saved conversation: format 2, and format 1, which had texts of user and assistant only.

Format 3 has images, too: their digests and names, while their own files are beside it.

It begins with the entry that a list shows, so that a list reads only the beginning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from textwrap import shorten
from typing import Any, TypeVar

from tinychat.conversation.attachments import without_attachments
from tinychat.conversation.contents import ContentReader, PlacedImage, SavedImage
from tinychat.conversation.history import Change, History
from tinychat.conversation.messages import SUMMARY_REQUEST, Message, as_message, check_conversation
from tinychat.conversation.saved_images import DIGEST
from tinychat.errors import SessionError, SettingError
from tinychat.images.detail import HIGH, LOW
from tinychat.settings import SET, SETTINGS, names
from tinychat.text.guard import well_formed

FORMAT, _WITHOUT_IMAGES = 3, 2
TITLE_LENGTH = 50
_PASSAGE_LENGTH = 60
# As `to_json` begins a file, and did before.
_BEGINNING = re.compile(r'\{\n "format": [123],\n "about": ')
# What the screen shows is not the conversation's.
_SETTINGS = [name for name in names(entry=SET) if SETTINGS[name].scope != "screen"]
_Part = TypeVar("_Part")
ReadImage = Callable[[str, str], Any]
"""Returns the image of a digest and a name, as an `Image` or a `SavedImage`."""


@dataclass
class SavedSession:
    """A conversation as it is saved.

    `model` is the MODEL that it was begun with, None for the default one; `settings` are values by name; `history` is
    None in files of versions that did not save it. The last message may have no reply.
    """

    model: str | None = None
    system: str | None = None
    messages: list[Message] = field(default_factory=list)
    settings: Mapping[str, object] = field(default_factory=dict)
    stop: list[str] = field(default_factory=list)
    history: History | None = None

    @property
    def images(self) -> list[PlacedImage]:
        """The images of all messages, those of its history included."""
        changes = () if self.history is None else (*self.history.past, *self.history.future)
        states = (self.messages, *(change.tail for change in changes))
        return [placed for messages in states for message in messages for placed in message.images]

    @property
    def image_problems(self) -> list[str]:
        """A line for each image that could not be read."""
        unread = dict.fromkeys(placed.image for placed in self.images if isinstance(placed.image, SavedImage))
        return [f"the image {image.name} {image.problem}; the model reads its name alone" for image in unread]


@dataclass(frozen=True)
class About:
    """The entry of a conversation in a list: how many messages, and its title."""

    messages: int
    title: str

    @staticmethod
    def of(messages: Sequence[Message]) -> About:
        """Return the entry of a conversation."""
        return About(len(messages), title_of(messages, TITLE_LENGTH))


def title_of(messages: Sequence[Message], length: int) -> str:
    """Return the title of a conversation: its first message in one line, without attachments; or its summary.

    The names of its images come first.
    """
    first = next((message for message in messages if message.content != SUMMARY_REQUEST), Message("user", ""))
    text = without_attachments(first.content) or first.content
    return shorten(" ".join([*(placed.label for placed in first.images), text]), length, placeholder="...")


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
        # Earlier versions read what they can.
        "format": FORMAT if session.images else _WITHOUT_IMAGES,
        "about": asdict(About.of(session.messages)),
        "model": session.model,
        "system": session.system,
        "messages": [_saved(message) for message in session.messages],
        "settings": session.settings,
        "stop": session.stop,
        # Only the differences: messages that states share are written once.
        "history": history,
    }
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def _steps(changes: Sequence[Change]) -> list[dict[str, object]]:
    return [{"kept": change.shared, "tail": [_saved(message) for message in change.tail]} for change in changes]


def _saved(message: Message) -> dict[str, object]:
    images = [_saved_image(placed) for placed in message.images]
    fields = replace(message, images=()).as_dict() | ({"partial": True} if message.partial else {})
    return fields | ({"images": images} if images else {})


def from_json(data: bytes, source: str, read_image: ReadImage = SavedImage) -> SavedSession:
    """Read the bytes of a file; `SessionError` names `source` if they are no conversation, or one of a newer format.

    By default images are not read.
    """
    value = _object(data, source)
    messages = _part(value, "messages", source, partial(_conversation, read_image))
    settings = _part(value, "settings", source, partial(_of_type, dict))
    try:
        for name, setting in settings.items():
            if name not in _SETTINGS:
                raise SettingError(f"there is no setting {name}")
            SETTINGS[name].read(setting)
    except SettingError as error:
        raise SessionError(f"{source} is damaged: {error}") from None
    return SavedSession(
        model=_part(value, "model", source, partial(_of_type, str | None)),
        system=_part(value, "system", source, partial(_of_type, str | None)),
        messages=messages,
        settings=settings,
        stop=_part(value, "stop", source, _texts),
        history=_part(value, "history", source, partial(_history, messages, read_image)),
    )


def messages_from_json(data: bytes, source: str) -> list[Message]:
    """Read the messages alone, as `from_json` does."""
    return _part(_object(data, source), "messages", source, partial(_conversation, SavedImage))


def about_from_json(beginning: bytes) -> About | None:
    """Read the beginning of a file; None if it is not as `to_json` writes it."""
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
    """Return the value of a key as `read` converts it; an error names the key."""
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


def _conversation(read_image: ReadImage, value: object) -> list[Message]:
    messages = _messages(read_image, value)
    check_conversation(messages)
    return messages


def _messages(read_image: ReadImage, value: object) -> list[Message]:
    return [_message(read_image, item, f"messages[{index}]") for index, item in enumerate(_of_type(list, value))]


def _saved_image(placed: PlacedImage) -> dict[str, object]:
    image = placed.image
    fields: dict[str, object] = {"offset": placed.offset, "digest": image.digest, "name": image.name}
    return fields if image.detail == HIGH else fields | {"detail": image.detail}


def _message(read_image: ReadImage, value: object, field: str) -> Message:
    fields = dict(value) if isinstance(value, dict) else {}
    is_partial = _of_type(bool, fields.pop("partial", False))
    images = tuple(_image(read_image, one) for one in _of_type(list, fields.pop("images", [])))
    return replace(as_message(fields, field, ContentReader()), partial=is_partial, images=images)


def _image(read_image: ReadImage, value: object) -> PlacedImage:
    match value:
        case {"offset": int(offset), "digest": str(digest), "name": str(name), **others} if DIGEST.fullmatch(digest):
            image = read_image(digest, well_formed(name))
            return PlacedImage(offset, replace(image, detail=LOW) if others.get("detail") == LOW else image)
    raise SettingError("must be an image with offset, digest and name")


def _history(messages: list[Message], read_image: ReadImage, value: object) -> History | None:
    match value:
        case None:
            return None
        case {"past": [*past], "future": [*future]}:
            changes = [tuple(_change(read_image, one) for one in side) for side in (past, future)]
            history = History(*changes)
            history.check(messages)
            return history
    raise SettingError("history must have past and future")


def _change(read_image: ReadImage, value: object) -> Change:
    match value:
        case {"kept": int(shared), "tail": tail}:
            return Change(shared, tuple(_messages(read_image, tail)))
    raise SettingError("history must be of changes")


def _of_type(kind: Any, value: object) -> Any:
    if not isinstance(value, kind):
        raise SettingError("is of another type")
    return value


def _texts(value: object) -> list[str]:
    texts: list[str] = _of_type(list, [] if value is None else value)
    if not all(isinstance(text, str) and text for text in texts):
        raise SettingError("must be a list of texts")
    return texts
