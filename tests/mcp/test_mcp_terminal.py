"""A server in the chat of a real terminal: consent to its start and to a call, a prompt, a resource, and its end."""

import json
import sys
import time
from pathlib import Path

import pytest
from terminal_app import CTRL_U, ENTER

PLAIN = str(Path(__file__).parent / "plain_server.py")


pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")


def is_running(mark):
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(path.read_bytes())
        except OSError:
            continue
    return any(PLAIN.encode() in command and mark.encode() in command for command in commands)


def test_a_server_is_started_used_and_ended(start, tmp_path):
    path, mark = tmp_path / "mcp.json", str(tmp_path)
    server = {"command": sys.executable, "args": ["-I", "-S", PLAIN, "offers", mark]}
    path.write_text(json.dumps({"mcpServers": {"plain": server}}))
    terminal = start("chat", "echoing", "--mcp-config", str(path), columns=200)
    terminal.expect(terminal.prompt)
    terminal.expect_exact("y/a/n>")
    assert any("-I -S" in line and "plain_server.py" in line for line in terminal.lines())
    assert not is_running(mark)
    terminal.send("y" + ENTER)
    terminal.say("echo!")
    terminal.expect(terminal.prompt)
    terminal.expect_exact("y/a/t/n/r>")
    terminal.send("y" + ENTER)
    terminal.expect("It echoes")
    terminal.say("/tools last")
    terminal.expect("from a server")
    terminal.say("/file plain:notes://today")
    terminal.expect("attached plain:notes://today")
    terminal.say("/prompt plain:greet who=Ann")
    terminal.expect("exit is what Ann says")
    assert is_running(mark)
    terminal.send(CTRL_U)
    terminal.send("/exit" + ENTER)
    terminal.ends_with(0)
    until = time.monotonic() + 5
    while is_running(mark):
        assert time.monotonic() < until
        time.sleep(0.01)
