"""The MCP servers of a user: those of config.toml, or of an ``mcp.json`` that is named."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tinychat.errors import CheckpointError, ConfigurationError, FieldError
from tinychat.files import read_small
from tinychat.json_file import one_line, parse_json_object
from tinychat.mcp.server import McpServer
from tinychat.mcp.server_settings import KEYS, ServerSettings, server_settings

_MAX_BYTES = 1 << 20


def read_mcp_file(path: Path) -> dict[str, ServerSettings]:
    """Read the servers of an ``mcp.json``: ``{"mcpServers": {"NAME": {"command": ..., "args": [...]}}}``.

    Keys that other programs put there are passed over, such as lists of tools that they run without asking.

    `ConfigurationError` if it cannot be read, or a server is not as it should be.
    """
    try:
        found = parse_json_object(read_small(path, _MAX_BYTES), str(path))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}; check the path") from None
    except CheckpointError as error:
        raise ConfigurationError(str(error)) from None
    tables = found.get("mcpServers")
    if not isinstance(tables, dict):
        raise ConfigurationError(f'{path} has no servers: it must hold {{"mcpServers": {{"NAME": {{...}}}}}}')
    return {name: _server(name, table, path) for name, table in tables.items()}


def all_servers(configured: Mapping[str, ServerSettings], path: Path | None) -> dict[str, ServerSettings]:
    """Return the servers of config.toml and those of an ``mcp.json`` that the user has named.

    `ConfigurationError` if a name is in both; other errors are those of `read_mcp_file`.
    """
    found = {} if path is None else read_mcp_file(path)
    if twice := configured.keys() & found.keys():
        raise ConfigurationError(f"{path}: the server {min(twice)!r} is in config.toml, too: give one another name")
    return {**configured, **found}


def _server(name: str, table: Any, path: Path) -> ServerSettings:
    try:
        if not isinstance(table, dict):
            raise FieldError("it", "must be an object")
        if table.get("type", "stdio") == "sse":
            raise FieldError("type", "sse is a way that MCP has left: use the server's address for Streamable HTTP")
        given = {key: value for key, value in table.items() if key in KEYS}
        if table.get("disabled") is True:
            given["enabled"] = False
        return server_settings(name, given, path.absolute().parent)
    except FieldError as error:
        raise ConfigurationError(f"{path}: the server {one_line(name)!r}: {error}") from None


@contextmanager
def mcp_servers(settings: Mapping[str, ServerSettings]) -> Iterator[dict[str, McpServer]]:
    """Yield servers by name; none runs until it is started, and all end with this context."""
    servers = {name: McpServer(one) for name, one in settings.items() if one.is_enabled}
    try:
        yield servers
    finally:
        # Beside each other: some take their time.
        threads = [threading.Thread(target=server.close) for server in servers.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
