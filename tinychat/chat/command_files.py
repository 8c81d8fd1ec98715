"""Commands that attach, copy and export texts: files, the clipboard, the conversation as a document."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tinychat.chat.command import ChatLoop
from tinychat.chat.typed_files import Found, typed_files, typed_path
from tinychat.conversation.attachments import Attachment
from tinychat.conversation.conversation import Chat
from tinychat.conversation.messages import Message
from tinychat.conversation.overflow import begins_full, way_out
from tinychat.errors import SettingError
from tinychat.files import replacing
from tinychat.terminal.clipboard import read_clipboard, write_clipboard
from tinychat.text.guard import well_formed

_SPEAKERS = {"user": "You", "assistant": "Model", "tool": "Tool", "system": "System", "developer": "Developer"}


def attach_file(loop: ChatLoop, argument: str) -> None:
    """Send the text of files with the next message; without a path, list what goes with it."""
    if not argument:
        loop.notice(attachment_list(loop))
    elif argument == "none":
        detach(loop, "all")
    else:
        found = typed_files(argument)
        before = loop.chat.attachments
        try:
            for attachment in found.attachments:
                attach(loop, attachment, is_alone=len(found.attachments) == 1)
        except SettingError:
            loop.chat.attachments = before
            raise
        if len(found.attachments) > 1 or found.left_out:
            _say_how_many(loop, found)


def detach(loop: ChatLoop, argument: str) -> None:
    """Take back one attachment by name or number, the only one there is, or all."""
    attached = loop.chat.attachments
    if argument == "all":
        loop.chat.attachments = []
        loop.notice("nothing goes with your next message")
        return
    if not argument and len(attached) > 1:
        loop.notice(f"{attachment_list(loop)}\ntype /detach NAME, its number, or all")
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
    loop.chat.attachments = [*attached[:place], *attached[place + 1 :]]
    loop.notice(f"{names[place]} no longer goes with your next message")


def complete_attachment(loop: ChatLoop, _argument: str) -> Iterable[str]:
    """Complete the name of an attachment."""
    return [*(attachment.name for attachment in loop.chat.attachments), "all"]


def attachment_list(loop: ChatLoop) -> str:
    """Return a line for each attachment: number, name and tokens."""
    lines = [
        f"{number}  {attachment.name} ({_tokens(loop, attachment)} tokens)"
        for number, attachment in enumerate(loop.chat.attachments, 1)
    ]
    return "\n".join(lines) or "nothing is attached to your next message"


def paste(loop: ChatLoop, _argument: str) -> None:
    """Send the clipboard's text with the next message."""
    attach(loop, Attachment("Clipboard", read_clipboard()))


def copy(loop: ChatLoop, _argument: str) -> None:
    """Copy the last reply."""
    messages = loop.chat.messages
    if not messages or messages[-1].role != "assistant":
        raise SettingError("there is no reply yet that could be copied: send a message first")
    text = messages[-1].content
    try:
        write_clipboard(text)
    except SettingError:
        if not loop.offer_to_terminal(text):
            raise
        loop.notice(f"sent to the terminal, which may take it: {len(text)} characters")
        return
    loop.notice(f"copied: {len(text)} characters")


def export(loop: ChatLoop, argument: str) -> None:
    """Write the conversation to a file; with -f before or after its name in the place of what is there."""
    name = argument.removesuffix(" -f").removeprefix("-f ").strip()
    path = typed_path(name)
    export_conversation(loop.chat, path, overwrites=name != argument)
    loop.notice(f"written: {path}")


def complete_path(_loop: ChatLoop, argument: str) -> Iterable[str]:
    """Complete a path, folders with a slash at their end."""
    folder, slash, start = argument.rpartition("/")
    try:
        entries = sorted(Path(folder + slash or ".").expanduser().iterdir())
    except (OSError, RuntimeError, ValueError):
        return []
    shown = (entry for entry in entries if start.startswith(".") or not entry.name.startswith("."))
    return [f"{folder}{slash}{entry.name}{'/' * entry.is_dir()}" for entry in shown]


def _say_how_many(loop: ChatLoop, found: Found) -> None:
    tokens = sum(_tokens(loop, attachment) for attachment in found.attachments)
    count = len(found.attachments)
    left_out = f"; {found.left_out} left out, which hold no text" if found.left_out else ""
    loop.notice(
        f"{count} {'file goes' if count == 1 else 'files go'} with your next message ({tokens} tokens){left_out}"
    )


def attach(loop: ChatLoop, attachment: Attachment, is_alone: bool = True) -> None:
    """Attach a text once; a file that has changed since takes the place of what it was."""
    if not attachment.text.strip():
        raise SettingError(f"{attachment.name} is empty: nothing to send")
    attached = loop.chat.attachments
    if attachment in attached:
        if is_alone:
            loop.notice(f"{attachment.name} is attached already")
        return
    others = [other for other in attached if not attachment.path or other.path != attachment.path]
    replaces_turns = _check_room(loop, attachment, [*others, attachment])
    loop.chat.attachments = [*others, attachment]
    later = "; the oldest turns will have to go" if replaces_turns else ""
    if is_alone or replaces_turns:
        loop.notice(f"{attachment.name} ({_tokens(loop, attachment)} tokens) goes with your next message{later}")


def _check_room(loop: ChatLoop, attachment: Attachment, attached: Sequence[Attachment]) -> bool:
    """Refuse attachments that no message can go with; return whether turns will be forgotten to make room for them."""
    chat, size = loop.chat, loop.chat.model.context_size
    message = Message("user", "\n\n".join(each.content for each in attached))
    needed = len(chat.prompt([*chat.messages[chat.dropped :], message]).ids)
    if not begins_full(needed, size):
        return False
    if chat.overflow != "stop" and chat.messages:
        needed = len(chat.prompt([message]).ids)
        if not begins_full(needed, size):
            return True
    advice = way_out(needed, chat.model.trained_length, "send a part of it")
    raise SettingError(
        f"{attachment.name} has {_tokens(loop, attachment)} tokens, which do not fit into "
        f"the context of {size}: {advice}"
    )


def _tokens(loop: ChatLoop, attachment: Attachment) -> int:
    return len(loop.chat.model.encode(attachment.text, add_bos=False))


def export_conversation(chat: Chat, path: Path, overwrites: bool = False) -> None:
    """Write `chat` to a file, in the format that its ending names.

    Raises
    ------
    SettingError
        If the ending is neither .md nor .json, the file exists and must not be overwritten, or it cannot be written.
    """
    formats = {".md": as_markdown, ".json": as_json}
    write = formats.get(path.suffix.lower())
    if write is None:
        raise SettingError(f"{path} names no format: let it end in .md or .json")
    text = well_formed(write(chat))
    try:
        if overwrites and path.is_file():
            with replacing(path) as file:
                file.write(text.encode("utf-8"))
        else:
            _write_new(path, text)
    except FileExistsError:
        raise SettingError(f"{path} exists already: choose another name, or add -f to overwrite it") from None
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
    """Return the conversation as an object with `model` and `messages` in OpenAI's form."""
    standing = [{"role": "system", "content": chat.system}] if chat.system else []
    document = {"model": chat.model.name, "messages": [*standing, *(message.as_dict() for message in chat.messages)]}
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"


def _paragraphs(chat: Chat) -> Iterator[str]:
    yield f"# Conversation with {chat.model.name}"
    if chat.system:
        yield f"## System\n\n{chat.system}"
    for message in chat.messages:
        stopped = " (stopped)" if message.partial else ""
        yield f"## {_SPEAKERS[message.role]}{stopped}\n\n{message.text.strip()}"
