"""The client of MCP against servers that start at once: versions, calls, and every way to misbehave."""

import json
import os
import threading
import time
from pathlib import Path

import pytest
from processes import is_running

from tinychat.errors import McpError, McpRefusedError
from tinychat.mcp import client
from tinychat.mcp.content import result_text


def called(server, name="echo", stop=None, **arguments):
    tool = next(tool for tool in server.tools() if tool.name == name)
    return result_text(server.call(tool, arguments, stop))


def ended(pid, seconds=5):
    """Return whether a process has ended within some seconds."""
    until = time.monotonic() + seconds
    while is_running(int(pid)) and time.monotonic() < until:
        time.sleep(0.02)
    return not is_running(int(pid))


@pytest.mark.parametrize(
    ("mode", "version", "name"),
    [("", "2025-06-18", "plain"), ("oldest", "2024-11-05", "plain"), ("stateless", "2026-07-28", "stateless")],
)
def test_versions_are_agreed_on_and_tools_called(plain, mode, version, name):
    server = plain(mode)
    assert (server.start().version, server.start().name) == (version, name)
    assert [tool.name for tool in server.tools()] == ["echo", "b.c", "d"]
    assert called(server, text="hé\n") == "hé\n"


def test_a_server_that_ends_at_the_question_for_the_newest_version_is_started_again(plain):
    server = plain("dies at probe")
    assert server.start().version == "2025-06-18"
    assert called(server, text="a") == "a"


def test_a_server_that_is_too_slow_for_the_first_question_is_asked_again(plain, monkeypatch):
    monkeypatch.setattr(client, "_PROBE_SECONDS", 0.1)
    server = plain("slow")
    assert server.start().version == "2026-07-28"
    assert called(server, text="a") == "a"


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("ancient", "the MCP server plain speaks 2019-01-01, and tinychat 2024-11-05, "),
        ("other version", "the MCP server plain speaks 2031-01-01, and tinychat 2024-11-05, "),
        ("mute", "the MCP server plain did not answer initialize within 0.3 s"),
    ],
)
def test_a_server_that_cannot_be_talked_to_is_one_line(plain, mode, message):
    with pytest.raises(McpError) as caught:
        plain(mode, timeout=10 if mode != "mute" else 0.3)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"command": "no-such-program"}, "plain cannot be started: no-such-program: No such file or directory"),
        ({"cwd": "/no/such/folder"}, "plain cannot be started: /no/such/folder: No such file or directory"),
        ({"args": ("-c", "raise SystemExit('no key')")}, "plain is gone: it has ended (exit code 1): no key (log: "),
    ],
)
def test_a_program_that_does_not_run_is_one_line(plain, settings, message):
    with pytest.raises(McpError) as caught:
        plain(**settings)
    assert message in str(caught.value)


class SlowThread(threading.Thread):
    """A thread whose starter goes on late, as on a machine that is busy."""

    def start(self):
        super().start()
        time.sleep(0.2)


def test_a_program_that_ends_before_all_threads_have_started_is_one_line(plain, monkeypatch):
    monkeypatch.setattr(threading, "Thread", SlowThread)
    with pytest.raises(McpError, match=r"plain is gone: it has ended \(exit code 1\): no key \(log: "):
        plain(args=("-c", "raise SystemExit('no key')"))


def test_a_server_may_ask_before_all_threads_have_started(plain, monkeypatch, tmp_path):
    monkeypatch.setattr(threading, "Thread", SlowThread)
    assert called(plain("asks at once"), text="a") == "a"
    assert (tmp_path / "answered").read_text() == "{}"


def test_errors_of_calls_are_results_and_refusals_are_errors(plain):
    server = plain("refuses")
    tool = server.tools()[2]
    assert server.call(tool, {}) == {"content": [{"type": "text", "text": "it went wrong"}], "isError": True}
    with pytest.raises(McpRefusedError, match=r"plain refuses prompts/list: no prompts/list") as caught:
        server.prompts()
    assert caught.value.code == -32601
    # What the server does not say that it has is not asked for.
    assert server.resources() == ()


def test_progress_gives_more_time(plain):
    # It takes 0.6 seconds in all.
    assert called(plain("works", timeout=0.5)) == "done"


def test_answers_in_a_batch_are_read(plain):
    assert called(plain("batch")) == "together"


def test_what_is_no_message_is_passed_over(plain):
    server = plain("prints")
    assert called(server) == "fine"
    log = Path(os.environ["TINYCHAT_HOME"]) / "mcp" / "plain.log"
    assert b"stdout: Hello from a library!" in log.read_bytes()
    assert log.stat().st_mode & 0o077 == 0


def test_half_of_a_surrogate_pair_becomes_a_character(plain):
    assert called(plain("surrogates")) == "a\ufffdb"


def test_requests_of_the_server_are_refused_and_a_ping_is_answered(plain):
    answers = json.loads(called(plain("asks")))
    assert answers[0] == ["mine ping", {}, None]
    assert [answer[1:] for answer in answers[1:]] == [[None, -32601]] * 3


def test_a_server_has_its_own_environment_and_folder(plain, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    server = plain("environment", env={"TOKEN": "t", "HOME": "/nowhere"})
    found = json.loads(called(server))
    assert found["env"]["TOKEN"] == "t"
    assert found["env"]["HOME"] == "/nowhere"
    assert "OPENAI_API_KEY" not in found["env"]
    assert os.path.realpath(found["cwd"]) == os.path.realpath(tmp_path)


def test_a_stopped_call_is_cancelled_at_the_server(plain, tmp_path):
    server = plain("hangs")
    stop = threading.Event()
    timer = threading.Timer(0.1, stop.set)
    timer.start()
    begin = time.monotonic()
    with pytest.raises(McpError, match="tools/call of the MCP server plain was stopped"):
        called(server, stop=stop)
    assert time.monotonic() - begin < 2
    timer.join()
    until = time.monotonic() + 5
    while not (tmp_path / "cancelled").exists() or not (tmp_path / "cancelled").read_text():
        assert time.monotonic() < until
        time.sleep(0.01)
    assert (tmp_path / "cancelled").read_text() == "True"


def test_ctrl_c_in_a_call_is_cancelled_at_the_server(plain, tmp_path):
    server = plain("works")

    class Pressed(threading.Event):
        def is_set(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        called(server, stop=Pressed())
    # Its late answer is nobody's.
    assert result_text(server.call(server.tools()[0], {})) == "done"


def test_a_server_that_hangs_is_waited_for_in_vain_and_no_longer(plain):
    server = plain("hangs", timeout=0.3)
    with pytest.raises(McpError, match=r"the MCP server plain did not answer tools/call within 0\.3 s"):
        called(server)
    assert not server._connection.has_ended


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("dies", "it has ended (exit code 3): no more coffee"),
        ("killed", "it has ended (SIGKILL)"),
        ("floods", "it sent more than 5000 messages or 64 MB in a second"),
        ("long line", "it sent a message of more than 16 MB"),
    ],
)
def test_a_server_that_ends_in_a_call_is_one_line_and_starts_again(plain, mode, reason):
    server = plain(mode)
    with pytest.raises(McpError) as caught:
        called(server)
    assert str(caught.value).startswith(f"the MCP server plain is gone: {reason}")
    assert server._connection.has_ended
    assert [tool.name for tool in server.tools()] == ["echo", "b.c", "d"]
    assert not server._connection.has_ended


def test_a_server_that_ends_again_and_again_is_left_alone(plain):
    server = plain("dies")
    for _ in range(5):
        with pytest.raises(McpError, match="no more coffee"):
            called(server)
    with pytest.raises(McpError, match="plain has ended 5 times, and is not started again"):
        called(server)


def test_much_on_stderr_costs_neither_the_call_nor_the_disk(plain):
    server = plain("floods stderr")
    assert called(server) == "still here"
    log = Path(os.environ["TINYCHAT_HOME"]) / "mcp" / "plain.log"
    assert 0 < log.stat().st_size <= 1 << 20


def test_a_server_that_reads_nothing_does_not_block(plain, monkeypatch):
    monkeypatch.setattr("tinychat.mcp.process._STDIN_SECONDS", 0.2)
    server = plain("deaf", timeout=0.2)
    with pytest.raises(McpError, match="did not answer"):
        called(server)
    with pytest.raises(McpError, match="did not answer"):
        called(server, text="x" * 1_000_000)


@pytest.mark.parametrize(
    ("mode", "message"),
    [("rude", "answers tools/call by what is no result"), ("questions", "answers tools/call by a question of its own")],
)
def test_an_answer_that_is_none_is_one_line(plain, mode, message):
    with pytest.raises(McpError, match=f"the MCP server plain {message}"):
        called(plain(mode))


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("endless", "lists its tools on more than 100 pages"),
        ("many", "lists more than 512 tools"),
        ("huge", "is not used: the tool 'echo' is described in 10,000,"),
        ("malformed", "is not used: the tool 'f' has no schema of an object"),
        ("no list", "lists tools that are no list of objects"),
    ],
)
def test_lists_are_bounded_and_checked(plain, mode, message):
    server = plain(mode)
    with pytest.raises(McpError) as caught:
        server.tools()
    assert str(caught.value).startswith(f"the MCP server plain {message}")
    assert "\n" not in str(caught.value)


def test_only_tools_that_are_allowed_are_there(plain):
    assert [tool.name for tool in plain(tools=("d", "echo")).tools()] == ["echo", "d"]
    with pytest.raises(McpError, match="plain has no tool 'rm', which its settings name"):
        plain(tools=("rm",)).tools()


def test_a_tool_that_has_changed_is_not_called(plain):
    server = plain("changes")
    tool = server.tools()[0]
    assert result_text(server.call(tool, {})) == "before"
    until = time.monotonic() + 5
    with pytest.raises(McpError, match="the tool echo of plain has changed since it was shown"):
        while time.monotonic() < until:
            server.call(tool, {})
    assert server.tools()[0].description == "Sends your files away."


def test_a_server_without_handshake_tells_changes_too(plain):
    server = plain("stateless")
    server.tools()
    connection = server._connected()
    until = time.monotonic() + 5
    while not connection.changes.take("tools"):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_server_and_its_children_end_with_the_chat(plain, tmp_path, monkeypatch):
    monkeypatch.setattr("tinychat.mcp.process._STDIN_SECONDS", 0.3)
    monkeypatch.setattr("tinychat.mcp.process._GRACE_SECONDS", 0.3)
    with pytest.raises(McpError, match="did not answer"):
        plain("stays", timeout=0.3)
    server, child = (tmp_path / "pids").read_text().split()
    assert ended(server)
    assert ended(child)


def test_who_waits_when_a_server_is_closed_is_told(plain):
    server, errors = plain("lists nothing"), []

    def listing():
        with pytest.raises(McpError) as caught:
            server.tools()
        errors.append(str(caught.value))

    thread = threading.Thread(target=listing)
    thread.start()
    while not server._connection._waiting:
        time.sleep(0.01)
    server.close()
    thread.join(2)
    assert errors[0].startswith("the MCP server plain is gone: it has ended (exit code 0)")


def test_nothing_runs_before_it_is_started_or_after_it_is_closed(plain):
    server = plain()
    server.close()
    server.close()
    assert server._connection is None
    with pytest.raises(McpError, match="the MCP server plain is not started"):
        server.tools()


def test_ctrl_c_while_a_server_ends_leaves_nothing_behind(plain, tmp_path, monkeypatch):
    """Signals that ask do not help with this one."""
    looks = iter([KeyboardInterrupt])

    def pressed(seconds):
        for error in looks:
            raise error

    monkeypatch.setattr("tinychat.mcp.process.sleep", pressed)
    with pytest.raises(KeyboardInterrupt):
        plain("stays", timeout=0.3)
    server, child = (tmp_path / "pids").read_text().split()
    assert ended(server)
    assert ended(child)
