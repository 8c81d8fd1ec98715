"""A conversation as a document: Markdown to read, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tinychat.chat.session import Chat
from tinychat.errors import SettingError
from tinychat.text.guard import well_formed

_SPEAKERS = {"user": "You", "assistant": "Model"}


def export_conversation(chat: Chat, path: Path) -> None:
    """Write `chat` to a new file, in the format that its ending names.

    Raises
    ------
    SettingError
        If the ending is neither .md nor .json, the file exists, or it cannot be written.
    """
    formats = {".md": as_markdown, ".json": as_json}
    write = formats.get(path.suffix.lower())
    if write is None:
        raise SettingError(f"{path} names no format: let it end in .md or .json")
    text = well_formed(write(chat))
    try:
        _write_new(path, text)
    except FileExistsError:
        raise SettingError(f"{path} exists already: choose another name") from None
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from None


def _write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet, whole or not at all."""
    with path.open("x", encoding="utf-8", newline="\n") as file:
        try:
            file.write(text)
            file.flush()
        except BaseException:
            with suppress(OSError):
                path.unlink()
            raise


def as_markdown(chat: Chat) -> str:
    """Return the conversation with a heading for each message."""
    return "\n\n".join(_paragraphs(chat)) + "\n"


def as_json(chat: Chat) -> str:
    """Return the conversation as an object with `model` and `messages`, as chat templates take them."""
    standing = [{"role": "system", "content": chat.system}] if chat.system else []
    spoken = [{"role": message.role, "content": message.content} for message in chat.messages]
    document = {"model": chat.model.name, "messages": [*standing, *spoken]}
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"


def _paragraphs(chat: Chat) -> Iterator[str]:
    yield f"# Conversation with {chat.model.name}"
    if chat.system:
        yield f"## System\n\n{chat.system}"
    for message in chat.messages:
        stopped = " (stopped)" if message.partial else ""
        yield f"## {_SPEAKERS[message.role]}{stopped}\n\n{message.content.strip()}"
