"""Commands that attach, copy and export text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tinychat.chat.loop import ChatLoop
from tinychat.chat.typed_files import IMAGE, TEXT, FileKind, typed_files, typed_path
from tinychat.conversation.attachments import Attachment, image_tokens, message_with
from tinychat.conversation.conversation import Chat
from tinychat.conversation.overflow import begins_full, way_out
from tinychat.errors import SettingError
from tinychat.files import replacing, write_new
from tinychat.images.data_url import with_data_urls
from tinychat.setting_kinds import whole_number
from tinychat.terminal.clipboard import read_clipboard, write_clipboard
from tinychat.text.guard import well_formed

_SPEAKERS = {"user": "You", "assistant": "Model", "tool": "Tool", "system": "System", "developer": "Developer"}


def attach_file(loop: ChatLoop, argument: str) -> None:
    """Attach the text of files, or SERVER:URI, to the next message; without a path, list the attachments."""
    if not argument:
        loop.notice(attachment_list(loop))
    elif argument == "none":
        detach(loop, "all")
    elif (address := argument.partition(":"))[0] in loop.servers and address[2]:
        attach(loop, Attachment(argument, loop.servers[address[0]].read_resource(address[2])))
    else:
        _attach_files(loop, argument, TEXT)


def attach_image(loop: ChatLoop, argument: str) -> None:
    """Attach images to the next message; without a path, list the attachments."""
    model = loop.chat.model
    if not argument:
        loop.notice(attachment_list(loop))
    elif not model.sees_images:
        raise SettingError(f"{model.name} reads text alone: /model NAME switches to a model that sees images")
    else:
        _attach_files(loop, argument, IMAGE)


def _attach_files(loop: ChatLoop, argument: str, kind: FileKind) -> None:
    """Attach all files of an argument, or none."""
    found = typed_files(argument, kind)
    before = loop.chat.attachments
    try:
        for attachment in found.attachments:
            attach(loop, attachment, is_alone=len(found.attachments) == 1)
    except SettingError:
        loop.chat.attachments = before
        raise
    if len(found.attachments) > 1 or found.skipped:
        tokens = sum(_tokens(loop, attachment) for attachment in found.attachments)
        skipped = f"; {found.skipped} skipped, which hold no {kind.name}" if found.skipped else ""
        files = "1 file" if len(found.attachments) == 1 else f"{len(found.attachments)} files"
        loop.notice(f"attached {files} ({tokens} tokens){skipped}")


def detach(loop: ChatLoop, argument: str) -> None:
    """Remove an attachment by name or number, the only one, or all."""
    attached = loop.chat.attachments
    if argument == "all":
        loop.chat.attachments = []
        loop.notice("removed all attachments")
        return
    if not argument and len(attached) > 1:
        loop.notice(f"{attachment_list(loop)}\ntype /detach with a name, a number, or all")
        return
    if not attached:
        raise SettingError("nothing is attached: /file PATH attaches a file")
    names = [attachment.name for attachment in attached]
    if not argument:
        index = 0
    elif argument in names:
        index = names.index(argument)
    elif 1 <= (number := whole_number(argument) or 0) <= len(attached):
        index = number - 1
    else:
        raise SettingError(f"{argument} is not attached: /file lists the attachments")
    loop.chat.attachments = [*attached[:index], *attached[index + 1 :]]
    loop.notice(f"removed {names[index]}")


def complete_attachment(loop: ChatLoop, _argument: str) -> Iterable[str]:
    """Complete the name of an attachment."""
    return [*(attachment.name for attachment in loop.chat.attachments), "all"]


def attachment_list(loop: ChatLoop) -> str:
    """Return a line for each attachment: number, name and tokens."""
    lines = [
        f"{number}  {attachment.name} ({_tokens(loop, attachment)} tokens)"
        for number, attachment in enumerate(loop.chat.attachments, 1)
    ]
    return "\n".join(lines) or "nothing is attached"


def paste(loop: ChatLoop, _argument: str) -> None:
    """Attach the clipboard's text to the next message."""
    attach(loop, Attachment("Clipboard", read_clipboard()))


def copy(loop: ChatLoop, _argument: str) -> None:
    """Copy the last reply."""
    messages = loop.chat.messages
    if not messages or messages[-1].role != "assistant":
        raise SettingError("no reply to copy yet: send a message first")
    text = messages[-1].content
    try:
        write_clipboard(text)
    except SettingError:
        if not loop.renderer.offer_to_terminal(text):
            raise
        loop.notice(f"sent to the terminal, which may copy it: {len(text)} characters")
        return
    loop.notice(f"copied: {len(text)} characters")


def export(loop: ChatLoop, argument: str) -> None:
    """Write the conversation to a file; -f before or after its name overwrites an existing one."""
    name = argument.removesuffix(" -f").removeprefix("-f ").strip()
    path = typed_path(name)
    export_conversation(loop.chat, path, overwrites=name != argument)
    loop.notice(f"written: {path}")


def complete_path(_loop: ChatLoop, argument: str) -> Iterable[str]:
    """Complete a path; folders end with a slash."""
    folder, slash, start = argument.rpartition("/")
    try:
        entries = sorted(Path(folder + slash or ".").expanduser().iterdir())
    except (OSError, RuntimeError, ValueError):
        return []
    shown = (entry for entry in entries if start.startswith(".") or not entry.name.startswith("."))
    return [f"{folder}{slash}{entry.name}{'/' * entry.is_dir()}" for entry in shown]


def attach(loop: ChatLoop, attachment: Attachment, is_alone: bool = True) -> None:
    """Attach a text or an image once; a changed file replaces what it had before."""
    if attachment.image is not None:
        attachment = replace(attachment, image=attachment.image.seen_in(loop.chat.image_detail))
    if attachment.is_empty:
        raise SettingError(f"{attachment.name} is empty: nothing to attach")
    attached = loop.chat.attachments
    if attachment in attached:
        if is_alone:
            loop.notice(f"{attachment.name} is attached already")
        return
    others = [other for other in attached if not attachment.path or other.path != attachment.path]
    replaces_turns = _check_room(loop, attachment, [*others, attachment])
    loop.chat.attachments = [*others, attachment]
    later = "; the oldest turns will be dropped" if replaces_turns else ""
    if is_alone or replaces_turns:
        loop.notice(f"attached {attachment.name} ({_tokens(loop, attachment)} tokens){later}")


def _check_room(loop: ChatLoop, attachment: Attachment, attached: Sequence[Attachment]) -> bool:
    """Refuse attachments that fill the context alone; return whether turns will be dropped to make room for them."""
    chat, size = loop.chat, loop.chat.model.context_size
    message = message_with(attached, (), "")
    needed = len(chat.prompt([*chat.messages[chat.dropped :], message]).ids)
    if not begins_full(needed, size):
        return False
    if chat.overflow != "stop" and chat.messages:
        needed = len(chat.prompt([message]).ids)
        if not begins_full(needed, size):
            return True
    advice = way_out(needed, chat.model.trained_length, "attach a part of it")
    raise SettingError(
        f"{attachment.name} has {_tokens(loop, attachment)} tokens, which do not fit into "
        f"the context of {size}: {advice}"
    )


def _tokens(loop: ChatLoop, attachment: Attachment) -> int:
    model = loop.chat.model
    if attachment.image is not None:
        return image_tokens(model, attachment.image)
    return len(model.encode(attachment.text, add_bos=False))


def export_conversation(chat: Chat, path: Path, overwrites: bool = False) -> None:
    """Write `chat` to a file in the format of its extension, .md or .json."""
    formats = {".md": as_markdown, ".json": as_json}
    write = formats.get(path.suffix.lower())
    if write is None:
        raise SettingError(f"unknown format of {path}: use the extension .md or .json")
    text = well_formed(write(chat))
    try:
        if overwrites and path.is_file():
            with replacing(path, is_private=False) as file:
                file.write(text.encode("utf-8"))
        else:
            write_new(path, text)
    except FileExistsError:
        raise SettingError(f"{path} exists already: choose another name, or add -f to overwrite it") from None
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from None


def as_markdown(chat: Chat) -> str:
    """Return the conversation with a heading for each message."""
    return "\n\n".join(_paragraphs(chat)) + "\n"


def as_json(chat: Chat) -> str:
    """Return the conversation as an object with `model` and `messages` in OpenAI's form."""
    system = [{"role": "system", "content": chat.system}] if chat.system else []
    messages = with_data_urls([message.as_dict() for message in chat.messages])
    document = {"model": chat.model.name, "messages": [*system, *messages]}
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"


def _paragraphs(chat: Chat) -> Iterator[str]:
    yield f"# Conversation with {chat.model.name}"
    if chat.system:
        yield f"## System\n\n{chat.system}"
    for message in chat.messages:
        stopped = " (stopped)" if message.partial else ""
        yield f"## {_SPEAKERS[message.role]}{stopped}\n\n{message.text.strip()}"
