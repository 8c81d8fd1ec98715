"""Tools of servers in a box of tools, as a chat has them."""

import threading

import pytest

from tinychat.errors import ToolError
from tinychat.mcp.tools import mcp_tools
from tinychat.tools.runnable import Toolbox, fingerprint


def test_tools_of_a_server_run_in_a_box(plain):
    server = plain()
    box = Toolbox(mcp_tools(server))
    assert [tool.name for tool in box.definitions] == ["plain_echo", "plain_b_c", "plain_d"]
    echo = box.find("plain_echo")
    assert echo.definition.parameters == {"type": "object", "properties": {"text": {"type": "string"}}}
    assert echo.writes
    result = box.run("plain_echo", box.check("plain_echo", '{"text": "a"}'))
    assert (result.text, result.is_error) == ("a", False)
    result = box.run("plain_d", {})
    assert (result.text, result.is_error) == ("it went wrong", True)
    server.close()
    result = box.run("plain_echo", {})
    assert (result.text, result.is_error) == ("the MCP server plain is not started", True)


def test_names_that_become_one_are_refused(plain):
    box = Toolbox(mcp_tools(plain()))
    with pytest.raises(ToolError, match="two tools are called 'plain_echo'"):
        box.add(mcp_tools(plain())[0])


def test_what_a_server_says_of_its_tools_is_shown_and_not_believed(plain):
    tool = mcp_tools(plain("says it reads"))[0]
    assert tool.writes
    assert tool.preview({}) == "plain says that this only reads; nothing checks that"
    assert mcp_tools(plain())[0].preview({}) is None


def test_a_stopped_tool_ends_at_once(plain):
    stop = threading.Event()
    timer = threading.Timer(0.1, stop.set)
    timer.start()
    result = Toolbox(mcp_tools(plain("hangs"))).run("plain_echo", {}, stop)
    timer.join()
    assert (result.text, result.is_error) == ("tools/call of the MCP server plain was stopped", True)


def test_a_tool_that_has_changed_needs_consent_anew(plain):
    server = plain("changes")
    shown = mcp_tools(server)[0]
    assert shown.run({}, threading.Event()).text == "before"
    while (now := mcp_tools(server)[0]).definition == shown.definition:
        pass
    assert fingerprint(now.definition) != fingerprint(shown.definition)
    result = shown.run({}, threading.Event())
    assert (result.text, result.is_error) == (
        "the tool echo of plain has changed since it was shown; ask again",
        True,
    )


def test_a_server_that_dies_in_a_call_leaves_its_tools_usable(plain):
    box = Toolbox(mcp_tools(plain("dies once")))
    result = box.run("plain_echo", {"text": "a"})
    assert result.is_error
    assert result.text.startswith("the MCP server plain is gone: it has ended (exit code 3): no more coffee")
    result = box.run("plain_echo", {"text": "a"})
    assert (result.text, result.is_error) == ("a", False)
