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
    """Send a file's text with the next message; without a path, list what goes with it."""
    if not argument:
        desk.notice(attachment_list(desk))
    elif argument == "none":
        detach(desk, "all")
    else:
        path = Path(os.path.expanduser(argument))
        _attach(desk, Attachment(path.name, _read_text(path), str(path.resolve())))


def detach(desk: Desk, argument: str) -> None:
    """Take back one attachment by name or number, the only one there is, or all."""
    attached = desk.chat.attachments
    if argument == "all":
        desk.chat.attachments = []
        desk.notice("nothing goes with your next message")
        return
    if not argument and len(attached) > 1:
        desk.notice(f"{attachment_list(desk)}\ntype /detach NAME, its number, or all")
        return
    if not attached:
        raise SettingError("there is no attachment to take back: /file PATH makes one")
    names = [attachment.name for attachment in attached]
    if not argument:
        place = 0
    elif argument in names:
        place = names.index(argument)
    elif argument.isdecimal() and 1 <= int(argument) <= len(attached):
        place = int(argument) - 1
    else:
        raise SettingError(f"{argument} is not attached: /file lists what goes with your next message")
    desk.chat.attachments = [*attached[:place], *attached[place + 1 :]]
    desk.notice(f"{names[place]} no longer goes with your next message")


def complete_attachment(desk: Desk, _argument: str) -> Iterable[str]:
    """Complete the name of an attachment."""
    return [*(attachment.name for attachment in desk.chat.attachments), "all"]


def attachment_list(desk: Desk) -> str:
    """Return a line for each attachment: number, name and tokens."""
    lines = [
        f"{number}  {attachment.name} ({_tokens(desk, attachment)} tokens)"
        for number, attachment in enumerate(desk.chat.attachments, 1)
    ]
    return "\n".join(lines) or "nothing is attached to your next message"


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
    """Attach a text once; a file that has changed since takes the place of what it was."""
    if not attachment.text.strip():
        raise SettingError(f"{attachment.name} is empty: nothing to send")
    attached = desk.chat.attachments
    if attachment in attached:
        desk.notice(f"{attachment.name} is attached already")
        return
    others = [other for other in attached if not attachment.path or other.path != attachment.path]
    desk.chat.attachments = [*others, attachment]
    desk.notice(f"{attachment.name} ({_tokens(desk, attachment)} tokens) goes with your next message")


def _tokens(desk: Desk, attachment: Attachment) -> int:
    return len(desk.chat.model.encode(attachment.text, add_bos=False))


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
