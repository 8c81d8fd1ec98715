"""The command of prompts that MCP servers write."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from tinychat.chat.draft import Draft
from tinychat.chat.loop import ChatLoop
from tinychat.errors import SettingError
from tinychat.terminal.line_input import Candidate

_USAGE = "type /prompt SERVER:NAME KEY=VALUE, with quotation marks around a value of several words"


def prompt(loop: ChatLoop, argument: str) -> None:
    """Bring a prompt of a server into the line, where it may be changed and sent."""
    try:
        address, *words = shlex.split(argument)
    except ValueError:
        raise SettingError(f"a quotation mark is not closed: {_USAGE}") from None
    server, _, name = address.partition(":")
    if server not in loop.servers or not name:
        known = ", ".join(loop.servers) or "none"
        raise SettingError(f"{address!r} is no prompt of a server that runs, of which there are {known}: {_USAGE}")
    pairs = [word.partition("=") for word in words]
    if wrong := [key for key, equals, _ in pairs if not key or not equals]:
        raise SettingError(f"{wrong[0]!r} is no KEY=VALUE: {_USAGE}")
    messages = loop.servers[server].prompt(name, {key: value for key, _, value in pairs})
    loop.prefill(Draft("\n\n".join(text for _, text in messages)))
    loop.notice("change the message and send it; Ctrl-C cancels")


def complete_prompt(loop: ChatLoop, _argument: str) -> Iterable[Candidate]:
    """Complete the name of a prompt; its arguments are told."""
    return [
        Candidate(f"{name}:{each.name}", " ".join([*(f"{one.name}=" for one in each.arguments), each.description]))
        for name, server in loop.servers.items()
        for each in server.prompts()
    ]
