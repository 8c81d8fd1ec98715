"""Commands that change the conversation and its settings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from textwrap import shorten

from tinychat.chat.command import ChatLoop, as_assignments, as_count
from tinychat.chat.draft import Draft
from tinychat.chat.settings import SETTABLE, change_setting, changed_sampling, known_name, settings_of
from tinychat.conversation.conversation import Chat
from tinychat.conversation.messages import SUMMARY_REQUEST, exchanges
from tinychat.conversation.request_state import SET_HERE, SYSTEM_HERE
from tinychat.errors import SettingError
from tinychat.generate.request import SAMPLING_FIELDS, Request
from tinychat.settings import SETTINGS, in_use
from tinychat.terminal.line_input import Candidate

_THINKING = {"show": True, "hide": False}
_COMPILING = "compiling kernels for this, once for this model's shape"


def clear(loop: ChatLoop, _argument: str) -> None:
    """Forget the conversation."""
    kept = loop.workspace.leave_file()
    loop.chat.clear()
    loop.notice("the conversation is forgotten" + (f"; it stays saved as {kept}" if kept else ""))


def regenerate(loop: ChatLoop, _argument: str) -> None:
    """Write the last reply again."""
    loop.regenerate()


def go_on(loop: ChatLoop, _argument: str) -> None:
    """Let the model go on with a reply that was stopped or cut."""
    loop.go_on()


def undo(loop: ChatLoop, argument: str) -> None:
    """Take back the last changes."""
    before = len(loop.chat.messages)
    message = loop.chat.undo(as_count(argument, "/undo [N]", "steps"))
    if len(loop.chat.messages) < before:
        loop.notice(f"taken back: {_short(message)}")
    else:
        loop.notice(f"back again: {'the turns of the summary' if message == SUMMARY_REQUEST else _last_words(loop)}")


def redo(loop: ChatLoop, argument: str) -> None:
    """Bring back what /undo took back."""
    message = loop.chat.redo(as_count(argument, "/redo [N]", "steps"))
    loop.notice(f"back again: {'the summary' if message == SUMMARY_REQUEST else _last_words(loop)}")


def compact(loop: ChatLoop, argument: str) -> None:
    """Let the model's own summary take the place of all but the last turns."""
    chat = loop.chat
    used, count = chat.tokens_in_use(), len(exchanges(chat.messages))
    turns = as_count(argument, "/compact [N]")
    summary = loop.compact(turns)
    if summary:
        loop.notice(
            f"a summary replaces {count - turns} {'turn' if count - turns == 1 else 'turns'}: "
            f"{chat.tokens_in_use()} tokens in the place of {used}; /undo leads back\n{summary}"
        )


def edit(loop: ChatLoop, argument: str) -> None:
    """Put an earlier message into the prompt; once it is sent, it takes the place of all that follows."""
    turns = as_count(argument, "/edit [N]")
    loop.prefill(Draft(loop.chat.message_of(turns), turns))
    sent = "change the message and send it again" if turns == 1 else f"sent, it replaces the last {turns} turns"
    loop.notice(f"{sent}; Ctrl-C leaves all as it is")


def _last_words(loop: ChatLoop) -> str:
    return _short(loop.chat.messages[-1].text if loop.chat.messages else "")


def _short(text: str) -> str:
    return shorten(text, 60)


def retry(loop: ChatLoop, argument: str) -> None:
    """Write the last reply again with other sampling settings, once; without an argument, with more randomness."""
    usual = loop.chat.request
    request = changed_sampling(usual, as_assignments(argument)) if argument else _freer(usual)
    if loop.chat.messages and not argument:
        loop.notice(f"writing it again with temperature={request.temperature:g}, this once")
    with loop.chat.using(request):
        loop.regenerate()


def _freer(request: Request) -> Request:
    usual = request.temperature
    return replace(request, temperature=1.0 if usual < 1.0 else min(round(usual + 0.3, 2), 100.0))


def complete_retry(loop: ChatLoop, argument: str) -> Iterable[Candidate]:
    """Complete the name of a sampling setting in the last word."""
    before, space, _ = argument.rpartition(" ")
    values = _settings(loop)
    return [Candidate(f"{before}{space}{name}=", f"usually {values[name]}") for name in SAMPLING_FIELDS]


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
        raise SettingError(f"{name} to what? Type /set KEY VALUE; /show shows the settings")
    before = _settings(loop)
    if name == "think" and value in _THINKING:
        loop.show_thinking = _THINKING[value]
    elif name == "stats":
        loop.show_stats = SETTINGS[name].read(value)
        loop.chat.origins[name] = SET_HERE
    else:
        change_setting(loop.chat, name, value, on_progress=loop.progress(_COMPILING))
        loop.chat.on_change()
    now = _settings(loop)[name]
    loop.notice(f"{name}: {now}" + (f" (was {before[name]})" if before[name] != now else ", as before"))
    if name == "think":
        _say_what_thinking_is_not(loop)


def _say_what_thinking_is_not(loop: ChatLoop) -> None:
    """Say where a model cannot be asked to think or not."""
    chat = loop.chat
    if chat.thinking.wanted is not None and chat.model.template.thinking_switch is None:
        loop.notice(f"the chat template of {chat.model.name} has no switch for thinking; a limit holds where it thinks")


def complete_set(loop: ChatLoop, argument: str) -> Iterable[str | Candidate]:
    """Complete the name of a setting, then the words that some take."""
    named, space, _ = argument.partition(" ")
    if space and named in SETTABLE:
        return [f"{named} {word}" for word in (*SETTINGS[named].kind.words, *(_THINKING if named == "think" else ()))]
    values = _settings(loop)
    return [Candidate(name, f"now {_short(values[name])}") for name in SETTABLE]


def show(loop: ChatLoop, _argument: str) -> None:
    """Show the model, the system prompt, all settings and what goes with the next message."""
    chat = loop.chat
    lines = {"model": chat.model.name}
    values = _settings(loop)
    values = {"system": values.pop("system"), **values}
    lines |= {name: _with_origin(chat, name, value) for name, value in values.items() if in_use(name, chat.request)}
    lines["attached"] = ", ".join(attachment.name for attachment in chat.attachments) or "nothing"
    lines["session"] = loop.workspace.name or "not saved yet"
    width = max(map(len, lines))
    loop.notice("\n".join(f"{name:<{width}}  {value}" for name, value in lines.items()))


def _settings(loop: ChatLoop) -> dict[str, str]:
    """Return all settings by name, as they are shown."""
    chat = loop.chat
    sequence = chat.model.sequence
    found = settings_of(chat) | {"kv": sequence.kv, "threads": sequence.engine.threads}
    found |= {"system": chat.system or None, "stop": chat.request.stop, "stats": loop.show_stats is not False}
    values = {name: SETTINGS[name].write(found[name]) for name in SETTABLE}
    values["think"] += "" if loop.show_thinking else ", hidden"
    return values


def _with_origin(chat: Chat, name: str, value: str) -> str:
    origin = chat.origins.get(name)
    return value if origin is None else f"{value}  ({origin})"


def multiline(loop: ChatLoop, _argument: str) -> None:
    """Let Enter begin a new line, or send again."""
    if loop.toggle_multiline():
        loop.notice("Enter begins a new line, Alt-Enter sends; /multiline changes back")
    else:
        loop.notice("Enter sends")
