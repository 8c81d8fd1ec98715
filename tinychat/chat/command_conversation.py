"""Commands that change the conversation and its settings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from textwrap import shorten

from tinychat.chat.command import as_assignments, as_count
from tinychat.chat.draft import Draft
from tinychat.chat.loop import ChatLoop
from tinychat.chat.settings import (
    SETTABLE,
    change_setting,
    changed_sampling,
    known_name,
    note_origin,
    settings_of,
    typed_value,
)
from tinychat.conversation.conversation import Chat
from tinychat.conversation.messages import SUMMARY_REQUEST, exchanges
from tinychat.conversation.request_state import SET_HERE, SYSTEM_HERE
from tinychat.errors import SettingError
from tinychat.generate.request import SAMPLING_FIELDS, Request
from tinychat.settings import SETTINGS, in_use
from tinychat.terminal.line_input import Candidate

_THINKING = {"show": True, "hide": False}
_COMPILING = "compiling kernels for this setting (once for models of this kind)"


def clear(loop: ChatLoop, _argument: str) -> None:
    """Begin a new conversation."""
    saved = loop.workspace.leave_file()
    loop.chat.clear()
    loop.notice("a new conversation begins" + (f"; the previous one stays saved as {saved}" if saved else ""))


def regenerate(loop: ChatLoop, _argument: str) -> None:
    """Write the last reply again."""
    loop.write_reply(loop.chat.regenerate)


def go_on(loop: ChatLoop, _argument: str) -> None:
    """Continue a reply that was stopped or cut."""
    loop.write_reply(loop.chat.go_on, loop.chat.stopped_in_thought)


def undo(loop: ChatLoop, argument: str) -> None:
    """Undo the last changes."""
    before = len(loop.chat.messages)
    message = loop.chat.undo(as_count(argument, "/undo [N]"))
    if len(loop.chat.messages) < before:
        loop.notice(f"undone: {_short(message)}")
    else:
        loop.notice(f"restored: {'the turns of the summary' if message == SUMMARY_REQUEST else _last_text(loop)}")


def redo(loop: ChatLoop, argument: str) -> None:
    """Redo what /undo undid."""
    message = loop.chat.redo(as_count(argument, "/redo [N]"))
    loop.notice(f"restored: {'the summary' if message == SUMMARY_REQUEST else _last_text(loop)}")


def compact(loop: ChatLoop, argument: str) -> None:
    """Replace all but the last turns by a summary of the model."""
    chat = loop.chat
    used, count = chat.tokens_in_use(), len(exchanges(chat.messages))
    turns = as_count(argument, "/compact [N]")
    summary = loop.compact(turns)
    if summary:
        loop.notice(
            f"a summary replaces {count - turns} {'turn' if count - turns == 1 else 'turns'}: "
            f"{chat.tokens_in_use()} tokens instead of {used}; /undo restores them\n{summary}"
        )


def edit(loop: ChatLoop, argument: str) -> None:
    """Put an earlier message into the prompt; once sent, it replaces the turns since then."""
    turns = as_count(argument, "/edit [N]")
    text = loop.chat.message_of(turns)
    message = loop.chat.messages[exchanges(loop.chat.messages)[-turns]]
    loop.prefill(Draft(text, turns, images=tuple(placed.image for placed in message.images)))
    sent = "change the message and send it again" if turns == 1 else f"sent, it replaces the last {turns} turns"
    loop.notice(f"{sent}; Ctrl-C cancels")


def _last_text(loop: ChatLoop) -> str:
    return _short(loop.chat.messages[-1].text if loop.chat.messages else "")


def _short(text: str) -> str:
    return shorten(text, 60)


def retry(loop: ChatLoop, argument: str) -> None:
    """Write the last reply again with other sampling settings, this time only; by default with a higher temperature."""
    current = loop.chat.request
    request = changed_sampling(current, as_assignments(argument)) if argument else _hotter(current)
    if loop.chat.messages and not argument:
        loop.notice(f"writing the reply again with temperature={request.temperature:g}, this time only")
    with loop.chat.using(request):
        loop.write_reply(loop.chat.regenerate)


def _hotter(request: Request) -> Request:
    now = request.temperature
    return replace(request, temperature=1.0 if now < 1.0 else min(round(now + 0.3, 2), 100.0))


def complete_retry(loop: ChatLoop, argument: str) -> Iterable[Candidate]:
    """Complete the name of a sampling setting in the last word."""
    before, space, _ = argument.rpartition(" ")
    values = _settings(loop)
    return [Candidate(f"{before}{space}{name}=", f"now {values[name]}") for name in SAMPLING_FIELDS]


def system(loop: ChatLoop, argument: str) -> None:
    """Set or show the system prompt."""
    if argument:
        loop.chat.system = None if argument == "none" else argument
        loop.chat.origins["system"] = SYSTEM_HERE
        loop.chat.on_change()
    loop.notice(f"system prompt: {loop.chat.system or 'none'}")


def set_value(loop: ChatLoop, argument: str) -> None:
    """Change a setting."""
    name, value = re.split(r"\s*=\s*|\s+|$", argument, maxsplit=1)
    name = known_name(name)
    if not value:
        raise SettingError(f"{name} needs a value: type /set {name} VALUE; /show shows the settings")
    before = _settings(loop)
    if name == "think" and value in _THINKING:
        loop.renderer.show_thinking = _THINKING[value]
    elif name in ("stats", "draft"):
        read, origin = typed_value(loop.chat, name, value, SET_HERE)
        if name == "stats":
            loop.renderer.show_stats = read
        else:
            loop.workspace.change_draft(read)
        note_origin(loop.chat, name, origin)
    else:
        change_setting(loop.chat, name, value, on_progress=loop.renderer.progress(_COMPILING))
        loop.chat.on_change()
    now = _settings(loop)[name]
    loop.notice(f"{name}: {now}" + (f" (was {before[name]})" if before[name] != now else " (unchanged)"))
    chat = loop.chat
    if name == "think" and chat.thinking.wanted is not None and chat.model.template.thinking_switch is None:
        loop.notice(f"the chat template of {chat.model.name} cannot switch thinking on or off; only a limit applies")


def complete_set(loop: ChatLoop, argument: str) -> Iterable[str | Candidate]:
    """Complete the name of a setting, then its value if it has named ones."""
    named, space, _ = argument.partition(" ")
    if space and named in SETTABLE:
        return [f"{named} {word}" for word in (*SETTINGS[named].kind.words, *(_THINKING if named == "think" else ()))]
    values = _settings(loop)
    return [Candidate(name, f"now {_short(values[name])}") for name in values]


def show(loop: ChatLoop, _argument: str) -> None:
    """Show the model, the system prompt, all settings and the attachments."""
    chat = loop.chat
    lines = {"model": chat.model.name}
    values = _settings(loop)
    values = {"system": values.pop("system"), **values}
    lines |= {name: _with_origin(chat, name, value) for name, value in values.items() if in_use(name, chat.request)}
    lines["attached"] = ", ".join(attachment.name for attachment in chat.attachments) or "none"
    if loop.shelf.on:
        lines["tools"] = f"{', '.join(loop.shelf.on)} ({loop.shelf.tokens()} tokens)"
    unsaved = "private, nothing is saved" if loop.workspace.private else "not saved yet"
    lines["session"] = loop.workspace.name or unsaved
    width = max(map(len, lines))
    loop.notice("\n".join(f"{name:<{width}}  {value}" for name, value in lines.items()))


def _settings(loop: ChatLoop) -> dict[str, str]:
    """Return the texts of all settings by name."""
    chat = loop.chat
    found = settings_of(chat)
    if chat.model.runs_here:
        sequence = chat.model.sequence
        engine = sequence.engine
        found |= {"kv": sequence.kv, "threads": engine.threads, "share": engine.share.percent}
        found |= {"draft": chat.model.draft}
    found |= {"system": chat.system or None, "stop": chat.request.stop, "stats": loop.renderer.show_stats is not False}
    values = {name: SETTINGS[name].write(found[name]) for name in SETTABLE if name in found}
    values["think"] += "" if loop.renderer.show_thinking else ", hidden"
    return values


def _with_origin(chat: Chat, name: str, value: str) -> str:
    origin = chat.origins.get(name)
    return value if origin is None else f"{value}  ({origin})"


def multiline(loop: ChatLoop, _argument: str) -> None:
    """Let Enter begin a new line instead of sending, or send again."""
    loop.multiline = not loop.multiline
    loop.notice(
        "Enter begins a new line, Alt-Enter sends; /multiline switches back" if loop.multiline else "Enter sends"
    )
