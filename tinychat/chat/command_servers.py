"""What MCP servers offer beside tools: prompts that go into the input, and resources that are attached."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from functools import partial
from textwrap import shorten
from typing import TYPE_CHECKING

from tinychat.chat.draft import Draft
from tinychat.chat.loop import ChatLoop
from tinychat.conversation.attachments import Attachment
from tinychat.errors import McpError, SettingError
from tinychat.terminal.safe_text import escaped_text

if TYPE_CHECKING:
    from tinychat.mcp.offers import Prompt
    from tinychat.mcp.server import McpServer

_LONGEST = 60


def take_prompt(loop: ChatLoop, argument: str) -> None:
    """Put a prompt of a server into the input, to be edited and sent; alone, list what the servers offer."""
    if not argument:
        loop.notice("\n".join(_offers(loop)) or "no MCP server runs: `tinychat chat --mcp NAME` starts one")
        return
    try:
        address, *words = shlex.split(argument)
    except ValueError as error:
        raise SettingError(f"{argument!r} is not understood: {error}") from None
    server, name = _server_of(loop, address)
    prompt = next((one for one in server.prompts() if one.name == name), None)
    if prompt is None:
        raise SettingError(f"{server.name} has no prompt {name!r}: /prompt lists them")
    messages = server.prompt(name, _arguments(address, prompt, words))
    speakers = {role for role, _ in messages}
    texts = [text if speakers == {"user"} else f"{role}: {text}" for role, text in messages]
    # What a person cannot see is not sent in their name.
    whole = escaped_text("\n\n".join(texts))
    if loop.interactive:
        loop.prefill(Draft(whole))
    else:
        loop.write_reply(partial(loop.chat.stream, whole))


def complete_prompt(loop: ChatLoop, argument: str) -> Iterable[str]:
    """Complete the name of a server."""
    return [f"{name}:" for name in loop.servers]


def typed_resource(loop: ChatLoop, argument: str) -> Attachment | None:
    """Return the resource that ``server:uri`` names; None if this begins with the name of no server that runs."""
    name, colon, uri = argument.partition(":")
    if not colon or name not in loop.servers:
        return None
    return Attachment(argument, loop.servers[name].read_resource(uri))


def _server_of(loop: ChatLoop, address: str) -> tuple[McpServer, str]:
    name, _, prompt = address.partition(":")
    if name not in loop.servers or not prompt:
        known = ", ".join(loop.servers) or "none"
        raise SettingError(f"{address!r} is no prompt: type /prompt SERVER:NAME; the servers that run are {known}")
    return loop.servers[name], prompt


def _arguments(address: str, prompt: Prompt, words: list[str]) -> dict[str, str]:
    """Return the values of a prompt's arguments, of words such as language=German."""
    usage = f"type /prompt {address} {' '.join(_usage(prompt))}".rstrip()
    known, given = [one.name for one in prompt.arguments], {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in known:
            raise SettingError(f"{word!r} is no argument of this prompt: {usage}")
        given[name] = value
    if missing := [one.name for one in prompt.arguments if one.is_required and one.name not in given]:
        raise SettingError(f"the prompt wants {missing[0]}: {usage}")
    return given


def _usage(prompt: Prompt) -> Iterator[str]:
    for one in prompt.arguments:
        yield f"{one.name}=TEXT" if one.is_required else f"[{one.name}=TEXT]"


def _offers(loop: ChatLoop) -> Iterator[str]:
    """Yield a line for each prompt and each resource, as they are typed."""
    for name, server in loop.servers.items():
        try:
            for prompt in server.prompts():
                usage = " ".join(["/prompt", f"{name}:{prompt.name}", *_usage(prompt)])
                yield f"{escaped_text(usage)}  {_about(prompt.description)}".rstrip()
            for resource in server.resources():
                about = _about(f"{resource.name} {resource.description}")
                yield f"/file {escaped_text(f'{name}:{resource.uri}')}  {about}".rstrip()
        except McpError as error:
            yield escaped_text(str(error))


def _about(text: str) -> str:
    return shorten(escaped_text(text), _LONGEST, placeholder="...")
