"""tinychat mcp: the servers of tools (MCP) that the user has configured."""

from __future__ import annotations

import sys
from pathlib import Path
from time import monotonic

import click

from tinychat.commands.table import print_table
from tinychat.configuration import nearest, read_configuration
from tinychat.errors import ConfigurationError, McpError
from tinychat.mcp.server_settings import ServerSettings
from tinychat.terminal.safe_text import one_safe_line

_WIDEST = 60

mcp_config_option = click.option(
    "--mcp-config",
    "mcp_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help='Also use the servers of this file, of the form {"mcpServers": {"NAME": {"command": ..., "args": [...]}}}',
)


# An error is one line: a command that is missing is not told of by the whole help.
@click.group(no_args_is_help=False)
def mcp() -> None:
    """List and try servers of tools (MCP, the Model Context Protocol).

    Servers are configured in [mcp.servers.NAME] of the configuration file, by command, args, env and cwd, or by url and
    headers. None is started before you say so.
    """


@mcp.command("list")
@mcp_config_option
def list_servers(mcp_file: Path | None) -> None:
    """List the servers that are configured, and start none."""
    servers = _servers(mcp_file)
    print_table([(name, _state(one), one_safe_line(one.line)) for name, one in servers.items()])
    if not servers:
        print("no servers: `tinychat config --init` writes a file that shows how to add one", file=sys.stderr)


@mcp.command("test")
@click.argument("name")
@mcp_config_option
def test_server(name: str, mcp_file: Path | None) -> None:
    """Start the server NAME, and show what it offers.

    The characters of a tool are those that a model has to read; a token has about four.
    """
    servers = _servers(mcp_file)
    if name not in servers:
        others = nearest(name, servers) or (f"; there are {', '.join(servers)}" if servers else ": none is configured")
        raise ConfigurationError(f"there is no MCP server {name!r}{others}")
    # Imported here: it keeps `tinychat mcp list` fast.
    from tinychat.mcp.offers import tool_name
    from tinychat.mcp.server import McpServer

    print(one_safe_line(servers[name].line), file=sys.stderr)
    server, begin = McpServer(servers[name]), monotonic()
    try:
        peer = server.start()
        seconds = monotonic() - begin
        tools, resources, prompts = server.tools(), server.resources(), server.prompts()
    finally:
        server.close()
    rows = [(tool_name(name, tool.name), f"{tool.characters:,}", _summary(tool.description)) for tool in tools]
    if rows:
        print_table([("TOOL", "CHARACTERS", "DESCRIPTION"), *rows])
    print(f"{peer.name} {peer.release} speaks {peer.version}, and was ready after {seconds:.1f} s", file=sys.stderr)
    total = sum(tool.characters for tool in tools)
    offers = f"{_count(tools, 'tool')} ({total:,} characters)", _count(resources, "resource"), _count(prompts, "prompt")
    print(", ".join(offers), file=sys.stderr)


def _servers(mcp_file: Path | None) -> dict[str, ServerSettings]:
    from tinychat.mcp.servers import all_servers

    return all_servers(read_configuration().servers, mcp_file)


def _state(server: ServerSettings) -> str:
    if not server.is_enabled:
        return "off"
    try:
        server.resolved()
    except McpError as error:
        return one_safe_line(str(error).partition(" wants ")[2] or str(error))
    return "on"


def _summary(text: str) -> str:
    line = one_safe_line(text)
    return line if len(line) <= _WIDEST else f"{line[:_WIDEST]}..."


def _count(items: tuple[object, ...], kind: str) -> str:
    return f"{len(items)} {kind}{'' if len(items) == 1 else 's'}"
