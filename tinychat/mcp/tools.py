"""Tools of MCP servers as tools that a chat can run."""

from __future__ import annotations

import threading
from typing import Any

from tinychat.errors import McpError
from tinychat.mcp.content import result_text
from tinychat.mcp.offers import ServerTool, tool_name
from tinychat.mcp.server import McpServer
from tinychat.tools.definitions import Tool
from tinychat.tools.runnable import RunnableTool, ToolResult


class McpTool(RunnableTool):
    """A tool of a server, called ``server_tool``.

    It counts as one that writes, whatever the server says: nothing checks that. The server is running, and is started
    again if it ends. The tool is as it is shown to the user: a call fails if the server's tool is another by then.
    """

    writes = True

    def __init__(self, server: McpServer, tool: ServerTool) -> None:
        self._server, self._tool = server, tool
        self.definition = Tool(tool_name(server.name, tool.name), tool.description, tool.schema)

    def preview(self, arguments: dict[str, Any]) -> str | None:
        """Return the server's own words on what the tool does to the world."""
        if not self._tool.says_it_only_reads:
            return None
        return f"{self._server.name} says that this only reads; nothing checks that"

    def run(self, arguments: dict[str, Any], stop: threading.Event) -> ToolResult:
        """Call the tool and return its result; what goes wrong is a result, too."""
        try:
            result = self._server.call(self._tool, arguments, stop)
        except McpError as error:
            return ToolResult(str(error), is_error=True)
        return ToolResult(result_text(result), is_error=result.get("isError") is True)


def mcp_tools(server: McpServer) -> list[McpTool]:
    """Return the tools of a running server; errors are those of `McpServer.tools`."""
    return [McpTool(server, tool) for tool in server.tools()]
