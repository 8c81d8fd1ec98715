"""Messages of servers of tools, and their configurations: sound ones, and functions that read them as a chat would."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tinychat.errors import McpError
from tinychat.mcp.content import result_text
from tinychat.mcp.offers import prompt_of, resource_of, tool_of
from tinychat.mcp.protocol import parse_line, peer_of
from tinychat.mcp.servers import mcp_servers, read_mcp_file

MESSAGES, SERVERS = "messages.jsonl", "mcp.json"
_BLOCKS = [
    {"type": "text", "text": "caf\ud83d\ude00\ud800"},
    {"type": "image", "data": "QUJD", "mimeType": "image/png"},
    {"type": "resource", "resource": {"uri": "notes://1", "mimeType": "text/plain", "blob": "w6k="}},
    {"type": "resource_link", "uri": "notes://2"},
]
_TOOL = {
    "name": "add",
    "description": "Adds.",
    "inputSchema": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "annotations": {"readOnlyHint": True, "title": "Add"},
}
_PROMPT = {"name": "greet", "description": "Greets.", "arguments": [{"name": "who", "required": True}]}
_RESULT = {
    "protocolVersion": "2025-11-25",
    "serverInfo": {"name": "s", "version": "1"},
    "capabilities": {"tools": {"listChanged": True}},
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "s"}},
    "content": _BLOCKS,
    "structuredContent": {"result": 1.5},
    "tools": [_TOOL],
    "prompts": [_PROMPT],
    "resources": [{"uri": "notes://1", "name": "n", "mimeType": "text/plain", "size": 3}],
}
_PROGRESS = {"progressToken": 1, "progress": 1, "total": 2.5, "message": "half\nway"}
SOUND_MESSAGES = "".join(
    json.dumps(message) + "\n"
    for message in (
        {"jsonrpc": "2.0", "id": 1, "result": _RESULT},
        [{"jsonrpc": "2.0", "method": "notifications/progress", "params": _PROGRESS}],
    )
).encode()
SOUND_SERVERS = json.dumps(
    {
        "mcpServers": {
            "files": {"command": "npx", "args": ["-y", "${HOME}"], "env": {"A": "${B}"}, "cwd": "sub", "timeout": 5},
            "web": {"url": "https://user:key@example.org/mcp?k=1", "headers": {"X": "y"}, "disabled": True},
        }
    }
).encode()


def read_messages(folder: Path) -> None:
    """Read each line as the thread of a server does, and each part of a result as those that asked for it."""
    for line in (folder / MESSAGES).read_bytes().splitlines(keepends=True):
        for message in parse_line(line) or ():
            for value in (message.get("params"), message.get("result"), message):
                if isinstance(value, dict):
                    _read(value)


def _read(value: dict[str, Any]) -> None:
    peer = peer_of(value, "2025-11-25")
    texts = [peer.name, peer.release, *peer.changing, result_text(value)]
    for key, read in (("tools", tool_of), ("prompts", prompt_of), ("resources", resource_of)):
        items = value.get(key)
        texts += [_offer(read, item) for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    # No half of a surrogate pair may have come through.
    "".join(texts).encode()


def _offer(read: Callable[[dict[str, Any]], object], item: dict[str, Any]) -> str:
    try:
        return str(read(item))
    except McpError as error:
        return str(error)


def read_servers(folder: Path) -> None:
    """Read a file of servers and show each, as `tinychat mcp list` does; none is started."""
    found = read_mcp_file(folder / SERVERS)
    with mcp_servers(found):
        pass
    for server in found.values():
        str((server.line, server.fingerprint))
        try:
            server.resolved({"HOME": "/home/me", "B": "b"})
        except McpError:
            pass
