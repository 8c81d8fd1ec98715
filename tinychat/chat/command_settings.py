"""Commands that change and show settings."""

from __future__ import annotations

from collections.abc import Iterable

from tinychat.chat.desk import Desk
from tinychat.chat.overflow import POLICIES
from tinychat.chat.settings import NAMES, change_setting, settings_of
from tinychat.errors import SettingError

_THINKING = {"show": True, "hide": False}


def set_value(desk: Desk, argument: str) -> None:
    """Change a setting."""
    name, _, value = argument.replace("=", " ", 1).partition(" ")
    if not value.strip():
        raise SettingError(f"{name} to what? Type /set KEY VALUE; /show shows the settings")
    if name == "think":
        _set_thinking(desk, value.strip())
    else:
        change_setting(desk.chat, name, value.strip())
        desk.chat.on_change()
    show(desk, "")


def _set_thinking(desk: Desk, value: str) -> None:
    if value not in _THINKING:
        raise SettingError(f"think must be one of {', '.join(_THINKING)}, not {value!r}")
    desk.show_thinking = _THINKING[value]


def complete_set(_desk: Desk, argument: str) -> Iterable[str]:
    """Complete the name of a setting, then the words that some take."""
    if argument.startswith("overflow "):
        return [f"overflow {policy}" for policy in POLICIES]
    if argument.startswith("think "):
        return [f"think {choice}" for choice in _THINKING]
    return [*NAMES, "think"]


def show(desk: Desk, _argument: str) -> None:
    """Show the model, the system prompt, all settings and what goes with the next message."""
    chat = desk.chat
    lines = {"model": chat.model.name, "system": chat.system or "none"}
    lines |= {name: "none" if value is None else str(value) for name, value in settings_of(chat).items()}
    if chat.request.stop:
        lines["stop"] = ", ".join(map(repr, chat.request.stop))
    lines["think"] = next(name for name, shown in _THINKING.items() if shown == desk.show_thinking)
    lines["attached"] = ", ".join(attachment.name for attachment in chat.attachments) or "nothing"
    lines["session"] = desk.workspace.name or "not saved yet"
    width = max(map(len, lines))
    desk.notice("\n".join(f"{name:<{width}}  {value}" for name, value in lines.items()))


def multiline(desk: Desk, _argument: str) -> None:
    """Let Enter begin a new line, or send again."""
    if desk.toggle_multiline():
        desk.notice("Enter begins a new line, Alt-Enter sends; /multiline changes back")
    else:
        desk.notice("Enter sends")
