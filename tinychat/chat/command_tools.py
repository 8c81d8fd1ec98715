"""The command of tools: list them with their cost, switch them, show the last calls whole."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import shorten

from tinychat.chat.call_screen import unfolded
from tinychat.chat.loop import ChatLoop
from tinychat.chat.tool_setup import add_group
from tinychat.conversation.messages import exchanges
from tinychat.errors import SettingError
from tinychat.terminal.safe_text import escaped_text
from tinychat.tools.own.groups import GROUPS

_USAGE = "type /tools, /tools on NAME, /tools off NAME or /tools last"
_LONGEST = 42


def tools(loop: ChatLoop, argument: str) -> None:
    """List the tools, switch some on or off, or show the last calls whole."""
    match argument.split():
        case []:
            loop.notice(tool_list(loop))
        case ["last"]:
            loop.notice(_last_calls(loop))
        case ["on" | "off" as switch, *names] if names:
            _switch(loop, names, switch == "on")
        case _:
            raise SettingError(f"{argument!r} is not understood: {_USAGE}")


def complete_tools(loop: ChatLoop, argument: str) -> Iterable[str]:
    """Complete the switch, then the names of tools and groups."""
    switch, space, _ = argument.partition(" ")
    if not space:
        return ["on", "off", "last"]
    wanted = switch == "on"
    names = [name for name, each in loop.shelf.tools.items() if each.is_on != wanted]
    groups = [group for group in GROUPS if group not in loop.shelf.groups] if wanted else []
    return [f"{switch} {name}" for name in (*names, *groups)]


def tool_list(loop: ChatLoop) -> str:
    """Return the lines of /tools: each tool with the tokens that its text takes."""
    shelf = loop.shelf
    if not shelf.tools:
        return f"no tools: /tools on NAME adds one of the groups {', '.join(GROUPS)}"
    size, tokens = loop.chat.model.context_size, shelf.tokens()
    lines = [f"{len(shelf.on)} of {len(shelf.tools)} tools are on: {tokens} of {size} tokens of the context"]
    width = max(map(len, shelf.tools))
    for name, each in shelf.tools.items():
        about = shorten(escaped_text(each.tool.definition.description), _LONGEST, placeholder="...")
        writes = "writes" if each.tool.writes else "reads "
        lines.append(
            f"{'on ' if each.is_on else 'off'}  {name:<{width}}  {shelf.tokens_of(name):>5}  {writes}  {about}"
        )
    if warning := shelf.warning():
        lines.append(warning)
    return "\n".join(lines)


def _switch(loop: ChatLoop, names: list[str], is_on: bool) -> None:
    shelf = loop.shelf
    for name in names:
        if is_on and name in GROUPS and name not in shelf.groups:
            add_group(loop, name)
    shelf.switch(names, is_on)
    loop.notice(f"tools that are on: {', '.join(shelf.on) or 'none'} ({shelf.tokens()} tokens)")
    if is_on and (warning := shelf.warning()):
        loop.notice(warning)


def _last_calls(loop: ChatLoop) -> str:
    """Return the calls of the last exchange that has any, whole."""
    messages, end = loop.chat.messages, len(loop.chat.messages)
    for begin in reversed(exchanges(messages)):
        if lines := [*unfolded(messages[begin:end])]:
            return "\n".join(lines)
        end = begin
    raise SettingError("no tool was called in this conversation")
