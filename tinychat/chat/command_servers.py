"""The command of prompts that MCP servers write, and the list of what they offer."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from textwrap import shorten

from tinychat.chat.draft import Draft
from tinychat.chat.loop import ChatLoop
from tinychat.errors import McpError, SettingError
from tinychat.terminal.line_input import Candidate
from tinychat.terminal.safe_text import escaped_text

_USAGE = "type /prompt SERVER:NAME KEY=VALUE, with quotation marks around a value of several words"
_LONGEST = 60


def prompt(loop: ChatLoop, argument: str) -> None:
    """Bring a prompt of a server into the line, where it may be changed and sent; alone, list what servers offer."""
    if not argument:
        loop.notice("\n".join(_offers(loop)) or "no MCP server runs: --mcp NAME starts one with the chat")
        return
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
    # What a person cannot see is not sent in their name.
    whole = escaped_text("\n\n".join(text for _, text in messages))
    if loop.interactive:
        loop.prefill(Draft(whole))
        loop.notice("change the message and send it; Ctrl-C cancels")
    else:
        loop.write_reply(partial(loop.chat.stream, whole))


def complete_prompt(loop: ChatLoop, _argument: str) -> Iterable[Candidate]:
    """Complete the name of a prompt; its arguments are told."""
    for name, server in loop.servers.items():
        # A key that was pressed is not answered by an error.
        with suppress(McpError):
            for each in server.prompts():
                about = " ".join([*(f"{one.name}=" for one in each.arguments), each.description])
                yield Candidate(f"{name}:{each.name}", escaped_text(about))


def _offers(loop: ChatLoop) -> Iterator[str]:
    """Yield a line for each prompt and each resource, as they are typed."""
    for name, server in loop.servers.items():
        try:
            for each in server.prompts():
                words = [f"{one.name}=..." if one.is_required else f"[{one.name}=...]" for one in each.arguments]
                yield _offer(" ".join(["/prompt", f"{name}:{each.name}", *words]), each.description)
            for resource in server.resources():
                yield _offer(f"/file {name}:{resource.uri}", f"{resource.name} {resource.description}")
        except McpError as error:
            yield str(error)


def _offer(typed: str, about: str) -> str:
    return f"{escaped_text(typed)}  {shorten(escaped_text(about), _LONGEST, placeholder='...')}".rstrip()
