"""Contents of messages in parts: texts, and images, which only some models see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tinychat.errors import FieldError, TextError
from tinychat.text.guard import Guarded

NO_IMAGES = "must be left out: this model reads text alone"
"""The problem of an image for a model that sees none."""


def has_images(message: Mapping[str, object]) -> bool:
    """Return whether the content of a message has images between its texts."""
    content = message.get("content")
    return isinstance(content, list) and any(_kind(part) == "image" for part in content)


def refuse_images(messages: Sequence[Mapping[str, object]]) -> None:
    """Refuse messages with images: for models that see none (`FieldError`)."""
    for index, message in enumerate(messages):
        if has_images(message):
            raise FieldError(f"messages[{index}].content", f"has an image, which {NO_IMAGES}")


def as_written(content: Sequence[object]) -> list[dict[str, object]]:
    """Return parts as templates get them: of an image they only write the token that stands for it.

    Texts that follow each other are one: no token's spelling may be split over them. `TextError` for a part that is
    neither a text nor an image.
    """
    parts: list[dict[str, object]] = []
    for part in content:
        if _kind(part) not in ("text", "image") or not isinstance(part, Mapping):
            raise TextError("a part of a chat message must be a text or an image")
        text = part.get("text")
        before = parts[-1].get("text") if parts else None
        if _kind(part) == "image":
            parts.append({"type": "image"})
        elif _is_plain(before) and _is_plain(text):
            parts[-1] = {"type": "text", "text": f"{before}{text}"}
        else:
            parts.append({"type": "text", "text": text})
    return parts


def _is_plain(text: object) -> bool:
    return isinstance(text, str) and not isinstance(text, Guarded)


def _kind(part: object) -> object:
    return part.get("type") if isinstance(part, Mapping) else None
