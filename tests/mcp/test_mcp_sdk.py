"""The client against servers of the official SDK: on this machine by lines, and by HTTP."""

import logging
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("mcp.server.mcpserver", reason="the official SDK of MCP is not installed: pip install mcp")

from tinychat.errors import McpError
from tinychat.mcp import client
from tinychat.mcp.content import result_text
from tinychat.mcp.server import McpServer
from tinychat.mcp.server_settings import ServerSettings

SCRIPT = Path(__file__).parent / "sdk_server.py"


@contextmanager
def closing(settings):
    server = McpServer(settings)
    try:
        server.start()
        yield server
    finally:
        server.close()


def by_lines(tmp_path):
    return closing(ServerSettings("official", command=sys.executable, args=(str(SCRIPT),), cwd=str(tmp_path)))


@contextmanager
def by_http(tmp_path):
    """Serve the same by HTTP, from a thread of this process."""
    import socket

    import uvicorn

    sys.path.insert(0, str(SCRIPT.parent))
    try:
        import sdk_server
    finally:
        sys.path.remove(str(SCRIPT.parent))
    config = uvicorn.Config(
        sdk_server.server.streamable_http_app(), log_level="critical", ws="none", timeout_graceful_shutdown=0
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        runner = uvicorn.Server(config)
        thread = threading.Thread(target=runner.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
            with closing(ServerSettings("official", url=url, headers={"X-Key": "k"}, timeout=5)) as server:
                yield server
                runner.should_exit = True
                thread.join()
                with pytest.raises(McpError, match="official is gone: Connection closed"):
                    server.read_resource("notes://today")
                with pytest.raises(McpError, match="official cannot be reached: "):
                    server.read_resource("notes://today")
        finally:
            runner.should_exit = True
            thread.join()


def call(server, name, stop=None, **arguments):
    tool = next(tool for tool in server.tools() if tool.name == name)
    return server.call(tool, arguments, stop)


def follow(server, version, tmp_path):
    """Use all that a server offers."""
    peer = server.start()
    assert (peer.version, peer.name, peer.release) == (version, "official", "3.1")
    tools = {tool.name: tool for tool in server.tools()}
    assert tools["add"].description == "Add two numbers."
    assert tools["add"].schema["properties"]["a"]["type"] == "integer"
    result = call(server, "add", a=2, b=40)
    assert (result_text(result), result["structuredContent"]) == ("42", {"result": 42})
    result = call(server, "fail")
    assert result["isError"] and result_text(result) == "Error executing tool fail"
    assert result_text(call(server, "draw")) == "[image, 12 KB]"
    patient, server.settings = server.settings, replace(server.settings, timeout=1.0)
    # Its signs of progress give it more time: it takes 1.2 seconds in all.
    assert result_text(call(server, "count", steps=3)) == "3 steps"
    server.settings = patient
    assert [resource.uri for resource in server.resources()] == ["notes://today", "notes://picture"]
    assert server.read_resource("notes://today") == "Buy milk."
    assert server.read_resource("notes://picture") == "[image/png, 4 KB]"
    with pytest.raises(McpError, match="the MCP server official refuses resources/read: "):
        server.read_resource("notes://tomorrow")
    (prompt,) = server.prompts()
    assert (prompt.name, prompt.description, prompt.arguments[0].name) == ("review", "Review code.", "code")
    assert prompt.arguments[0].is_required
    assert server.prompt("review", {"code": "x = 1"}) == (("user", "Review this: x = 1"),)
    stop, noted = threading.Event(), tmp_path / "noted"
    timer = threading.Timer(0.2, stop.set)
    timer.start()
    with pytest.raises(McpError, match="tools/call of the MCP server official was stopped"):
        call(server, "wait", stop, path=str(noted))
    timer.join()
    until = time.monotonic() + 10
    while not (noted.exists() and noted.read_text()):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert result_text(call(server, "learn")) == "learned"
    until = time.monotonic() + 10
    while "forget" not in [tool.name for tool in server.tools()]:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_server_of_this_machine_without_handshake(tmp_path):
    with by_lines(tmp_path) as server:
        follow(server, "2026-07-28", tmp_path)
        with pytest.raises(McpError, match=r"official is gone: it has ended \(exit code 7\): it was a good life"):
            call(server, "exit_at_once")
        assert server._connection.has_ended


@pytest.mark.slow
def test_a_server_of_this_machine_with_handshake(tmp_path, monkeypatch):
    monkeypatch.setattr(client.StdioConnection, "discover", lambda self: False)
    with by_lines(tmp_path) as server:
        follow(server, "2025-11-25", tmp_path)
        with pytest.raises(McpError, match="official is gone"):
            call(server, "exit_at_once")
        # It is started again.
        assert result_text(call(server, "add", a=1, b=1)) == "2"


def test_a_server_by_http(tmp_path, capfd):
    with by_http(tmp_path) as server:
        follow(server, "2026-07-28", tmp_path)
    assert logging.getLogger("mcp").propagate is False
    assert capfd.readouterr() == ("", "")
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("mcp-")]


def test_an_address_where_nobody_answers_is_one_line():
    with pytest.raises(McpError) as caught:
        McpServer(ServerSettings("x", url="http://127.0.0.1:9/mcp")).start()
    assert str(caught.value).startswith("the MCP server x cannot be reached: ")
    assert "\n" not in str(caught.value)


def test_without_the_package_a_line_tells_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tinychat.mcp.http", None)
    with pytest.raises(McpError, match=r"the MCP server x is reached by a package that is missing: .*install mcp"):
        McpServer(ServerSettings("x", url="http://127.0.0.1:9/mcp")).start()


class Misbehaving(BaseHTTPRequestHandler):
    """Answers each request in a way that is wrong."""

    mode = ""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.mode == "silent":
            time.sleep(1)
            self.close_connection = True
            return
        kind = "text/event-stream" if self.mode == "floods" else "application/json"
        self.send_response(401 if self.mode == "refuses" else 200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        with suppress(OSError):
            while self.mode in ("long", "floods"):
                self.wfile.write(b": nothing\n\n" if self.mode == "floods" else b" " * (1 << 20))
            self.wfile.write(b"<html>")

    def log_message(self, *_arguments):
        pass


@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        ("silent", "it did not answer in time; check its url"),
        ("refuses", "Server returned an error response (HTTP 401); check its url"),
        ("nonsense", "Failed to parse JSON response: "),
        ("long", "it sent a message of more than 16 MB; check its url"),
        ("floods", "it did not answer in time; check its url"),
    ],
)
def test_an_address_that_misbehaves_is_one_line(monkeypatch, mode, problem):
    monkeypatch.setattr(Misbehaving, "mode", mode)
    with ThreadingHTTPServer(("127.0.0.1", 0), Misbehaving) as listener:
        thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{listener.server_address[1]}/mcp"
            begin = time.monotonic()
            with pytest.raises(McpError) as caught, closing(ServerSettings("x", url=url, timeout=0.5)):
                pass
        finally:
            listener.shutdown()
            thread.join()
    assert str(caught.value).startswith(f"the MCP server x cannot be reached: {problem}")
    assert "\n" not in str(caught.value)
    assert time.monotonic() - begin < 5
