"""The tools that a chat begins with: groups of our own, functions of files, tools of MCP servers."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinychat.errors import McpError, SettingError, TinychatError
from tinychat.settings import ToolSettings
from tinychat.terminal.line_input import InputPrompt
from tinychat.terminal.safe_text import escaped_text
from tinychat.tools.consent import FILE, Ask, Consent, ConsentAnswer, ConsentStore, Decision, Question
from tinychat.tools.definitions import Tool
from tinychat.tools.runnable import RunnableTool, ToolResult
from tinychat.user_folders import config_folder

if TYPE_CHECKING:
    from tinychat.chat.loop import ChatLoop
    from tinychat.mcp.server import McpServer


# The name of a server stands behind it; no tool has a name with a space.
_START = "start "


def names_of(texts: Iterable[str]) -> list[str]:
    """Return the names of texts in which commas stand between them, each once."""
    return list(dict.fromkeys(name.strip() for text in texts for name in text.split(",") if name.strip()))


def set_up_tools(loop: ChatLoop, settings: ToolSettings, servers: Mapping[str, McpServer]) -> None:
    """Give a chat the tools of its settings, and say which are on and what they cost.

    `TinychatError` if a group, file or server cannot be used. At a terminal it is shown, and the chat begins without.
    """
    _add_own(loop, settings)
    for name in names_of(settings.mcp) or (servers if settings.mcp_config else ()):
        _attempt(loop, _add_server, name, servers)
    _tell_of_tools(loop, settings)


def change_tools(loop: ChatLoop, settings: ToolSettings) -> None:
    """Switch to the tools of other settings, such as those of a role; errors are those of `set_up_tools`.

    Tools that were added by hand stay, and those of MCP servers, which a chat begins with.
    """
    before = loop.tool_settings
    if settings == before:
        return
    for group in _own_groups(before):
        if group not in _own_groups(settings):
            loop.shelf.replace(group, ())
    _add_own(loop, settings)
    if not loop.shelf.on:
        loop.notice("no tools are on")
    _tell_of_tools(loop, settings)
    if settings.mcp_config != before.mcp_config:
        loop.notice("the MCP servers stay those that the chat began with: begin another chat for others")


def _own_groups(settings: ToolSettings) -> list[str]:
    """Return the groups of tools that settings name, servers left out."""
    return [*names_of(settings.tools), *settings.functions]


def _add_own(loop: ChatLoop, settings: ToolSettings) -> None:
    """Add the tools of settings that are not there yet, servers left out."""
    loop.tool_settings = settings
    loop.chat.tools.max_rounds = settings.max_tool_rounds
    loop.chat.tools.consent = _consent(loop, loop.screen.ask, names_of(settings.allow_tool))
    present = loop.shelf.groups
    for group in names_of(settings.tools):
        if group not in present:
            _attempt(loop, add_group, group)
    for path in settings.functions:
        if path not in present:
            _attempt(loop, _add_functions, path)


def _tell_of_tools(loop: ChatLoop, settings: ToolSettings) -> None:
    """Keep the tools to their budget, and say which are on and what they cost."""
    allowed = names_of(settings.allow_tool)
    off = [] if settings.tools_budget is None else loop.shelf.keep_to(settings.tools_budget, allowed)
    if loop.interactive and loop.shelf.on:
        loop.notice(f"tools: {', '.join(loop.shelf.on)} ({loop.shelf.tokens()} tokens); calls ask you first")
    if off:
        loop.notice(f"off, as more than --tools-budget {settings.tools_budget}: {', '.join(off)}")
    if warning := loop.shelf.warning():
        loop.notice(warning)
    if unknown := [name for name in allowed if name not in loop.shelf.tools]:
        loop.notice(f"--allow-tool names no tool of this chat: {escaped_text(', '.join(unknown))}")


def add_group(loop: ChatLoop, group: str) -> None:
    """Add a group of our own tools, rooted in the working folder; `SettingError` if there is none of this name."""
    from tinychat.tools.own.groups import GROUPS

    if group not in GROUPS:
        raise SettingError(f"there are no tools called {group!r}; expected some of {', '.join(GROUPS)}")
    loop.shelf.add(group, GROUPS[group](Path.cwd()))


def _attempt(loop: ChatLoop, add: Any, *arguments: Any) -> None:
    """Add some tools; at a terminal an error is shown, and the chat goes on without them."""
    try:
        add(loop, *arguments)
    except TinychatError as error:
        if not loop.interactive:
            raise
        loop.renderer.error(str(error))


def _add_functions(loop: ChatLoop, path: str) -> None:
    from tinychat.tools.own.functions import functions_of

    def tell(name: str, line: str) -> None:
        loop.notice(escaped_text(f"{name}: {line}"))

    loop.shelf.add(path, functions_of(Path(path), tell))


def _add_server(loop: ChatLoop, name: str, servers: Mapping[str, McpServer]) -> None:
    from tinychat.mcp.tools import mcp_tools

    if name not in servers:
        others = f"; there are {', '.join(servers)}" if servers else ", which has none"
        raise McpError(f"there is no MCP server {name!r} in the configuration{others}")
    server = servers[name]
    start = _ServerStart(server)
    answer = _consent(loop, lambda question: _ask_to_start(loop, question)).decide(start, start.arguments)
    if not answer.is_yes:
        advice = "" if loop.interactive else ": allow it once at a terminal"
        raise McpError(f"the MCP server {name} is not started{advice}")
    start.run(start.arguments, threading.Event())
    loop.shelf.add(name, mcp_tools(server))
    loop.servers[name] = server


def _ask_to_start(loop: ChatLoop, question: Question) -> ConsentAnswer:
    """Show the whole command line of a server, and ask for its start."""
    name = question.tool.name.removeprefix(_START)
    command = escaped_text(str(question.arguments["command"]))
    loop.notice(f"start the MCP server {name}? its command line:\n  {command}\ny this time, a always this one, n no")
    try:
        typed = loop.read(InputPrompt(question="y/a/n> ", is_fresh=True)).strip().lower()
    except (KeyboardInterrupt, EOFError):
        typed = "n"
    return ConsentAnswer({"y": Decision.ONCE, "a": Decision.EXACTLY}.get(typed, Decision.NO))


def refresh_servers(loop: ChatLoop) -> None:
    """Take over the tools of servers that have told a change of their list; the error of one that fails shows once."""
    if not loop.servers:
        return
    from tinychat.mcp.tools import mcp_tools

    for name, server in loop.servers.items():
        try:
            found = mcp_tools(server)
        except McpError as error:
            if loop.server_errors.get(name) != str(error):
                loop.renderer.error(str(error))
            loop.server_errors[name] = str(error)
            continue
        loop.server_errors.pop(name, None)
        shown = [each.tool.definition for each in loop.shelf.tools.values() if each.group == name]
        if [tool.definition for tool in found] != shown:
            loop.shelf.replace(name, found)
            loop.notice(f"the tools of {name} have changed: /tools lists them")


def _consent(loop: ChatLoop, ask: Ask, allowed: Iterable[str] = ()) -> Consent:
    path = None
    with suppress(OSError):
        path = config_folder(os.environ) / FILE
    store = ConsentStore(path)
    if store.warning is not None:
        loop.notice(store.warning)
    return Consent(store, Path.cwd(), ask if loop.interactive else None, tuple(allowed))


class _ServerStart(RunnableTool):
    """The start of a server in the form of a call, so that consent to it is remembered in the same way."""

    exact_only = True

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self.definition = Tool(f"{_START}{server.name}", "Start an MCP server.")
        self.arguments = {"command": server.settings.line, "fingerprint": server.settings.fingerprint}

    def run(self, arguments: dict[str, Any], stop: threading.Event) -> ToolResult:
        return ToolResult(self._server.start().name)
