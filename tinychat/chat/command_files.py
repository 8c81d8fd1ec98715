"""Commands that bring texts in and take them out."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from tinychat.chat.clipboard import read_clipboard, write_clipboard
from tinychat.chat.desk import Desk
from tinychat.chat.export import export_conversation
from tinychat.chat.message import Attachment
from tinychat.errors import SettingError

# Far beyond what a context holds, and read in an instant.
_MAX_BYTES = 16 << 20


def attach_file(desk: Desk, argument: str) -> None:
    """Send a file's text with the next message, or take back what was to go with it."""
    if argument == "none":
        desk.chat.attachments = []
        desk.notice("nothing goes with your next message")
        return
    path = Path(os.path.expanduser(argument))
    _attach(desk, Attachment(path.name, _read_text(path)))


def paste(desk: Desk, _argument: str) -> None:
    """Send the clipboard's text with the next message."""
    _attach(desk, Attachment("Clipboard", read_clipboard()))


def copy(desk: Desk, _argument: str) -> None:
    """Copy the last reply."""
    messages = desk.chat.messages
    if not messages:
        raise SettingError("there is no reply yet that could be copied: send a message first")
    text = messages[-1].content
    try:
        write_clipboard(text)
    except SettingError:
        if not desk.offer_to_terminal(text):
            raise
        desk.notice(f"sent to the terminal, which may take it: {len(text)} characters")
        return
    desk.notice(f"copied: {len(text)} characters")


def export(desk: Desk, argument: str) -> None:
    """Write the conversation to a file."""
    path = Path(os.path.expanduser(argument))
    export_conversation(desk.chat, path)
    desk.notice(f"written: {path}")


def complete_path(_desk: Desk, argument: str) -> Iterable[str]:
    """Complete a path, folders with a slash at their end."""
    folder, slash, start = argument.rpartition("/")
    try:
        entries = sorted(Path(folder + slash or ".").expanduser().iterdir())
    except (OSError, RuntimeError, ValueError):
        return []
    shown = (entry for entry in entries if start.startswith(".") or not entry.name.startswith("."))
    return [f"{folder}{slash}{entry.name}{'/' * entry.is_dir()}" for entry in shown]


def _attach(desk: Desk, attachment: Attachment) -> None:
    if not attachment.text.strip():
        raise SettingError(f"{attachment.name} is empty: nothing to send")
    desk.chat.attachments = [*desk.chat.attachments, attachment]
    tokens = len(desk.chat.model.encode(attachment.text, add_bos=False))
    desk.notice(f"{attachment.name} ({tokens} tokens) goes with your next message")


def _read_text(path: Path) -> str:
    try:
        if not path.is_file():
            raise SettingError(f"{path} is no file: check the path")
        if path.stat().st_size > _MAX_BYTES:
            raise SettingError(f"{path} is larger than {_MAX_BYTES >> 20} MiB: send a part of it")
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise SettingError(f"{path} is no UTF-8 text: convert it first") from None
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
