"""A server of tools: started once somebody has said yes, started again when it has ended, asked for what it offers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from tinychat.errors import McpError
from tinychat.installing import install_command
from tinychat.json_file import one_line
from tinychat.mcp.connection import Connection, Wait
from tinychat.mcp.content import block_text, resource_text
from tinychat.mcp.offers import Resource, ServerPrompt, ServerTool, prompt_of, resource_of, tool_of
from tinychat.mcp.protocol import Json, Peer
from tinychat.mcp.server_settings import ServerSettings

MOST_ITEMS = 512
_MOST_PAGES = 100
_MOST_STARTS = 5

_Item = TypeVar("_Item")


class McpServer:
    """A server by its settings. Nothing runs before `start`. Any number of threads may use it.

    A server that has ended is started again with the next request, up to four times.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.name = settings.name
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._is_started, self._starts = False, 0
        self._lists: dict[str, tuple[Any, ...]] = {}

    def start(self) -> Peer:
        """Start the server, or connect to it, if that is not done yet; return what it says about itself.

        Whoever calls it has asked the user, or been told to.

        `McpError` if it cannot be started, ends, does not answer in time, or speaks no version that is known.
        """
        self._is_started = True
        return self._connected().peer

    def close(self) -> None:
        """End the server and all that it has started; it can be started again. Requests that wait fail."""
        self._is_started = False
        # Without the lock, which a thread that lists tools has until it is answered.
        if (connection := self._connection) is not None:
            connection.close()
        with self._lock:
            self._connection = None
            self._lists.clear()

    def tools(self) -> tuple[ServerTool, ...]:
        """Return the tools that the settings allow, listed anew when the server has told a change.

        `McpError` if they cannot be listed, one is malformed, or one that the settings name is not there.
        """
        return self._cached("tools", self._allowed)

    def call(self, tool: ServerTool, arguments: Json, stop: threading.Event | None = None) -> Json:
        """Call a tool and return the result, as the protocol has it.

        `McpError` if the tool is not what it was any more, the server ends or does not answer in time, or `stop` is
        set; `McpRefusedError` if the server refuses the call.
        """
        if tool not in self.tools():
            raise McpError(f"the tool {one_line(tool.name)} of {self.name} has changed since it was shown; ask again")
        wait = Wait(self.settings.timeout, stop, has_progress=True)
        return self._connected().request("tools/call", {"name": tool.name, "arguments": arguments}, wait)

    def resources(self) -> tuple[Resource, ...]:
        """Return the resources that it lists; none where it has none. Errors are those of `tools`."""
        return self._cached("resources", lambda: self._list("resources", resource_of))

    def read_resource(self, uri: str) -> str:
        """Return the text of a resource; `McpError` if there is none."""
        contents = self._request("resources/read", {"uri": uri}).get("contents")
        if not isinstance(contents, list) or not contents:
            raise self._error(f"has nothing at {one_line(uri)}")
        return "\n".join(resource_text(one) for one in contents if isinstance(one, dict))

    def prompts(self) -> tuple[ServerPrompt, ...]:
        """Return the prompts that it lists; none where it has none. Errors are those of `tools`."""
        return self._cached("prompts", lambda: self._list("prompts", prompt_of))

    def prompt(self, name: str, arguments: dict[str, str]) -> tuple[tuple[str, str], ...]:
        """Return the messages of a prompt, each with its role, user or assistant; `McpError` if there are none."""
        messages = self._request("prompts/get", {"name": name, "arguments": arguments}).get("messages")
        if not isinstance(messages, list) or not messages:
            raise self._error(f"has a prompt {one_line(name)!r} without messages")
        return tuple(self._message(one, name) for one in messages)

    def _message(self, message: Any, name: str) -> tuple[str, str]:
        match message:
            case {"role": "user" | "assistant" as role, "content": dict() as content}:
                return role, block_text(content)
        raise self._error(f"has a prompt {one_line(name)!r} with a message that is none")

    def _cached(self, kind: str, listed: Callable[[], Iterable[_Item]]) -> tuple[_Item, ...]:
        """Return a list of the server, asked for anew when it has told a change."""
        with self._lock:
            if self._connected().changes.take(kind):
                self._lists.pop(kind, None)
            if kind not in self._lists:
                self._lists[kind] = tuple(listed())
            return self._lists[kind]

    def _allowed(self) -> Iterator[ServerTool]:
        allowed = self.settings.tools
        found = list(self._list("tools", lambda item: item))
        names = [item.get("name") for item in found]
        if missing := [name for name in allowed or () if name not in names]:
            raise self._error(f"has no tool {missing[0]!r}, which its settings name")
        for item in found:
            if allowed is None or item.get("name") in allowed:
                yield self._checked(tool_of, item)

    def _list(self, kind: str, read: Callable[[Json], _Item]) -> Iterator[_Item]:
        """Yield what one of the lists has, page by page."""
        if not self._connected().peer.offers(kind):
            return
        cursor, seen = None, 0
        for _page in range(_MOST_PAGES):
            result = self._request(f"{kind}/list", {} if cursor is None else {"cursor": cursor})
            items = result.get(kind)
            if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
                raise self._error(f"lists {kind} that are no list of objects")
            if (seen := seen + len(items)) > MOST_ITEMS:
                raise self._error(f"lists more than {MOST_ITEMS} {kind}")
            for item in items:
                yield self._checked(read, item)
            cursor = result.get("nextCursor")
            if not isinstance(cursor, str) or not cursor:
                return
        raise self._error(f"lists its {kind} on more than {_MOST_PAGES} pages")

    def _checked(self, read: Callable[[Json], _Item], item: Json) -> _Item:
        try:
            return read(item)
        except McpError as error:
            raise self._error(f"is not used: {error}") from None

    def _request(self, method: str, params: Json) -> Json:
        return self._connected().request(method, params, Wait(self.settings.timeout))

    def _connected(self) -> Connection:
        """Return the connection, made again if the server has ended."""
        with self._lock:
            if not self._is_started:
                raise self._error("is not started")
            if self._connection is None or self._connection.has_ended:
                if self._connection is not None:
                    self._connection.close()
                    self._connection = None
                if self._starts >= _MOST_STARTS:
                    raise self._error(f"has ended {_MOST_STARTS} times, and is not started again")
                self._starts += 1
                self._lists.clear()
                self._connection = self._connect()
            return self._connection

    def _connect(self) -> Connection:
        settings = self.settings.resolved()
        # Imported here: each needs what the other does without.
        if settings.url:
            try:
                from tinychat.mcp.http import connect as connect_http
            except ImportError:
                raise self._error(f"is reached by a package that is missing: {install_command('mcp')}") from None
            return connect_http(settings)
        from tinychat.mcp.client import connect

        return connect(settings)

    def _error(self, problem: str) -> McpError:
        return McpError(f"the MCP server {self.name} {problem}")
