"""A server of MCP, made with the official SDK: over stdin and stdout, or by HTTP where another module serves `app`."""

import os
import sys
from pathlib import Path

import anyio
from mcp.server.mcpserver import Context, Image, MCPServer

server = MCPServer("official", version="3.1")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("nothing works")


@server.tool()
async def count(steps: int, context: Context) -> str:
    """Count, and tell how far it is."""
    for step in range(steps):
        await context.report_progress(step, steps, f"step {step}")
        await anyio.sleep(0.4)
    return f"{steps} steps"


@server.tool()
async def wait(path: str) -> str:
    """Wait until it is cancelled, and note that in a file."""
    try:
        await anyio.sleep(60)
    except anyio.get_cancelled_exc_class():
        Path(path).write_text("cancelled")
        raise
    return "waited"


@server.tool()
def draw() -> Image:
    """Draw."""
    return Image(data=b"\x89PNG" * 3000, format="png")


@server.tool()
def exit_at_once() -> str:
    """End the server in the middle of a call."""
    sys.stderr.write("it was a good life\n")
    sys.stderr.flush()
    os._exit(7)


@server.tool()
async def learn(context: Context) -> str:
    """Learn another tool."""

    def forget() -> str:
        """Forget it."""
        return "forgotten"

    server.add_tool(forget)
    await context.notify_tools_changed()
    await context.session.send_tool_list_changed()
    return "learned"


@server.resource("notes://today", mime_type="text/plain")
def today() -> str:
    """The notes of today."""
    return "Buy milk."


@server.resource("notes://picture", mime_type="image/png")
def picture() -> bytes:
    """A picture."""
    return b"\x89PNG" * 1000


@server.prompt()
def review(code: str) -> str:
    """Review code."""
    return f"Review this: {code}"


if __name__ == "__main__":
    server.run()
