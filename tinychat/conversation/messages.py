"""Messages of a conversation: plain dicts of OpenAI's form in and out; exchanges; tool calls and results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinychat.conversation.contents import ContentReader, PlacedImage, SavedImage, as_parts, with_labels
from tinychat.errors import FieldError
from tinychat.text.guard import well_formed
from tinychat.tools.definitions import ToolCall as ToolCall

ROLES = ("system", "developer", "user", "assistant", "tool")
SUMMARY_REQUEST = (
    "Please summarise everything we have said so far in a few sentences, with all names, numbers and decisions."
)
"""The message whose reply replaces the turns before it: see `tinychat.conversation.compaction`."""
_KEYS = {
    "assistant": ("role", "content", "tool_calls", "reasoning", "reasoning_content"),
    "tool": ("role", "content", "tool_call_id", "name"),
}
_MOST_MESSAGES = 100_000
MOST_CALLS = 128
_LONGEST_NAME = 256


@dataclass
class Message:
    """One message of a conversation.

    Attributes
    ----------
    role : str
        One of `ROLES`.
    content : str
        The text.
    partial : bool
        True while a reply is being written, and for good when it was stopped or cut.
    tool_calls : tuple of ToolCall
        Calls of an assistant message; their results follow in messages of role "tool".
    tool_call_id : str, optional
        The call whose result a tool message has.
    name : str, optional
        The tool of a tool message.
    reasoning : str, optional
        Thoughts before the content, where they are known apart from it.
    shortened : str, optional
        The content that the model sees while the context is too small for the whole one.
    images : tuple of PlacedImage
        Images of a user's message, in the order in which they stand.
    """

    role: str
    content: str
    partial: bool = False
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None
    shortened: str | None = None
    images: tuple[PlacedImage, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """Return the message in OpenAI's form, without fields that have no value.

        With images the content is a list of parts: texts, and ``{"type": "image", "image": Image}``.
        """
        fields: dict[str, object] = {"role": self.role, "content": as_parts(self.content, self.images)}
        if self.tool_calls:
            fields["tool_calls"] = [call.as_dict() for call in self.tool_calls]
        others = {"tool_call_id": self.tool_call_id, "name": self.name, "reasoning": self.reasoning}
        return fields | {key: value for key, value in others.items() if value is not None}

    def as_seen(self, sees_images: bool) -> dict[str, object]:
        """Return the message as the model sees it, or reads of it where it sees no images."""
        seen = self.shown if self.images and not sees_images else self.shortened
        return self.as_dict() | ({} if seen is None else {"content": seen})

    @property
    def has_images(self) -> bool:
        """Whether there are images that a model can see."""
        return any(not isinstance(placed.image, SavedImage) for placed in self.images)

    @property
    def shown(self) -> str:
        """The content with the names of its images, for a person to read."""
        return with_labels(self.content, self.images)

    @property
    def text(self) -> str:
        """Thoughts, content and calls, for a person to read."""
        calls = (f"{call.name}({call.arguments})" for call in self.tool_calls)
        return "\n\n".join(part for part in (self.reasoning, self.shown, *calls) if part)

    @property
    def is_unwritten(self) -> bool:
        """Whether this is a reply without any text yet."""
        return self.role == "assistant" and self.partial and not self.text


def as_messages(value: object, sees_images: bool = True) -> list[Message]:
    """Return the messages of plain dicts; `FieldError` if they are none, or calls and results do not match.

    Of a model that sees no images they may have none.
    """
    if not isinstance(value, list) or not value:
        raise FieldError("messages", 'must be a list of {"role": "...", "content": "..."}, at least one')
    if len(value) > _MOST_MESSAGES:
        raise FieldError("messages", f"must be at most {_MOST_MESSAGES}")
    contents = ContentReader(sees_images)
    messages = [as_message(item, f"messages[{index}]", contents) for index, item in enumerate(value)]
    check_calls(messages)
    return messages


def as_message(value: object, field: str, contents: ContentReader) -> Message:
    """Return the message of a plain dict; `field` names it in a `FieldError`.

    A content may be missing where there are calls, whose arguments are a text, or the object itself, and in a result.
    One in parts has texts and, if it is the user's, images: data: URLs or, in Python, what `image_of` takes but texts.
    Keys that are not known change nothing: programs send replies back with what other servers have added.
    """
    if not isinstance(value, dict):
        raise FieldError(field, 'must be an object: {"role": "...", "content": "..."}')
    role = value.get("role")
    if role not in ROLES:
        raise FieldError(f"{field}.role", f"must be one of {', '.join(ROLES)}")
    fields = _object(value, field, _KEYS.get(role, ("role", "content")))
    calls = _calls(fields["tool_calls"], f"{field}.tool_calls") if "tool_calls" in fields else ()
    may_be_empty = bool(calls) or role == "tool"
    content, images = contents.read(value, field, "" if may_be_empty else None)
    message = Message(role, content, tool_calls=calls, images=tuple(images))
    if role == "tool":
        message.tool_call_id = _name(fields, "tool_call_id", field)
        message.name = _name(fields, "name", field) if "name" in fields else None
    for key in ("reasoning_content", "reasoning"):
        message.reasoning = _text(fields, key, field) if key in fields else message.reasoning
    return message


def _calls(value: object, field: str) -> tuple[ToolCall, ...]:
    if not isinstance(value, list) or len(value) > MOST_CALLS:
        raise FieldError(field, f"must be a list of at most {MOST_CALLS} calls")
    calls = tuple(_call(item, f"{field}[{index}]") for index, item in enumerate(value))
    if len({call.id for call in calls}) < len(calls):
        raise FieldError(field, "must have ids that differ")
    return calls


def _call(value: object, field: str) -> ToolCall:
    fields = _object(value, field, ("id", "type", "function"))
    if fields.get("type", "function") != "function":
        raise FieldError(f"{field}.type", "must be function")
    function = _object(fields.get("function"), f"{field}.function", ("name", "arguments"))
    arguments = function.get("arguments", "{}")
    if isinstance(arguments, dict):
        function["arguments"] = _json(arguments, f"{field}.function.arguments")
    return ToolCall(
        _name(fields, "id", field),
        _name(function, "name", f"{field}.function"),
        _text(function, "arguments", f"{field}.function", "{}"),
    )


def _json(value: object, field: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        raise FieldError(field, "must be a JSON object, or its text") from None


def _object(value: object, field: str, keys: Sequence[str]) -> dict[str, object]:
    """Return those of the keys that have a value: other programs write null for what a message does not have."""
    if not isinstance(value, dict):
        raise FieldError(field, f"must be an object with {', '.join(keys)}")
    return {key: value[key] for key in keys if value.get(key) is not None}


def _text(fields: Mapping[str, object], key: str, field: str, default: str | None = None) -> str:
    text = fields.get(key, default)
    if not isinstance(text, str):
        raise FieldError(f"{field}.{key}", "must be a text")
    return well_formed(text)


def _name(fields: Mapping[str, object], key: str, field: str) -> str:
    name = fields.get(key)
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
        raise FieldError(f"{field}.{key}", f"must be a text of 1 to {_LONGEST_NAME} characters")
    return well_formed(name)


def exchanges(messages: Sequence[Message]) -> list[int]:
    """Return the index of each message that begins an exchange: a user's, and all that follows up to the next."""
    return [index for index, message in enumerate(messages) if message.role == "user"]


def check_conversation(messages: Sequence[Message], first: int = 0) -> None:
    """Refuse messages that do not begin with a user's, or have calls without results but at the end (`FieldError`).

    Messages before `first` are known to be right.
    """
    if messages and messages[0].role != "user":
        raise FieldError("messages[0].role", "must be user: a system prompt stands apart from the messages")
    check_calls(messages, first)


def check_calls(messages: Sequence[Message], first: int = 0) -> None:
    """Refuse results without a call, and calls that are not followed by their results; those at the end may be."""
    for index in range(first, len(messages)):
        message, waiting = messages[index], [call.id for call in open_calls(messages, index)]
        if message.role == "tool" and message.tool_call_id not in waiting:
            raise FieldError(f"messages[{index}].tool_call_id", "must be that of a call before it without a result")
        if message.role != "tool" and waiting:
            raise FieldError(f"messages[{index}].role", f"must be tool: the call {waiting[0]!r} has no result yet")


def open_calls(messages: Sequence[Message], end: int | None = None) -> list[ToolCall]:
    """Return the calls without a result after the first `end` messages."""
    answered = set()
    for index in reversed(range(len(messages) if end is None else end)):
        message = messages[index]
        if message.role != "tool":
            return [call for call in message.tool_calls if call.id not in answered]
        answered.add(message.tool_call_id)
    return []
