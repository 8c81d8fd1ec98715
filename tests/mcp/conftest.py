"""Servers to connect to: a plain one that starts at once, and one of the official SDK."""

import sys
from pathlib import Path

import pytest

from tinychat.mcp.server import McpServer
from tinychat.mcp.server_settings import ServerSettings

HERE = Path(__file__).parent


@pytest.fixture
def plain(tmp_path):
    """Return a function that starts the plain server, which misbehaves as it is told; all end with the test."""
    servers = []

    def started(mode="", **settings):
        args = ("-I", "-S", str(HERE / "plain_server.py"), mode)
        given = {"command": sys.executable, "args": args, "cwd": str(tmp_path), "timeout": 10} | settings
        servers.append(McpServer(ServerSettings("plain", **given)))
        servers[-1].start()
        return servers[-1]

    yield started
    for server in servers:
        server.close()
