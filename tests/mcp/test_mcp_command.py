"""`tinychat mcp`: which servers there are, and a try of one."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from console import Console
from fake_model import Replies, fake_model

PLAIN = str(Path(__file__).parent / "plain_server.py")


@pytest.fixture
def console(monkeypatch, capsys):
    return Console(fake_model(Replies()), monkeypatch, capsys)


@pytest.fixture
def servers(tmp_path):
    """Return an mcp.json with a server of each kind."""
    command = {"command": sys.executable, "args": ["-I", "-S", PLAIN]}
    found = {
        "plain": command,
        "dies": command | {"args": [*command["args"], "ancient"]},
        "secret": command | {"env": {"TOKEN": "${NO_SUCH_VARIABLE}", "KEY": "hush"}},
        "off": command | {"disabled": True},
    }
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": found}))
    return str(path)


def test_servers_are_listed_and_none_is_started(console, servers):
    Path(os.environ["TINYCHAT_HOME"], "config.toml").write_text("[mcp.servers.web]\nurl = 'https://a.b/mcp?key=hush'\n")
    code, out, err = console.run("mcp", "list", "--mcp-config", servers)
    lines = out.splitlines()
    assert code == 0
    assert [line.split()[0] for line in lines] == ["web", "plain", "dies", "secret", "off"]
    assert lines[0].split()[1:] == ["on", "https://a.b/mcp?..."]
    assert "${NO_SUCH_VARIABLE}: set this variable of the environment" in lines[3]
    assert "TOKEN=... KEY=... " in lines[3]
    assert lines[4].split()[1] == "off"
    assert "hush" not in out + err
    assert not Path(os.environ["TINYCHAT_HOME"], "mcp").exists()


def test_without_servers_a_line_says_how_to_add_one(console):
    assert console.run("mcp", "list") == (
        0,
        "",
        "no servers: `tinychat config --init` writes a file that shows how to add one\n",
    )
    said = "error: there is no MCP server 'git': none is configured\n"
    assert console.run("mcp", "test", "git") == (1, "", said)


def test_a_server_is_tried(console, servers):
    code, out, err = console.run("mcp", "test", "nonsense", "--mcp-config", servers)
    assert (code, out) == (1, "")
    assert err.startswith("error: there is no MCP server 'nonsense'; there are plain, dies, ")
    code, out, err = console.run("mcp", "test", "plain", "--mcp-config", servers)
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["TOOL", "CHARACTERS", "DESCRIPTION"],
        ["plain_echo", "83", "Echoes."],
        ["plain_b_c", "82", "Echoes."],
        ["plain_d", "80", "Echoes."],
    ]
    line, ready, offers = err.splitlines()
    assert line.endswith(f"-I -S {PLAIN}")
    assert re.fullmatch(r"plain 1\.0 speaks 2025-06-18, and was ready after \d\.\d s", ready)
    assert offers == "3 tools (245 characters), 0 resources, 1 prompt"
    code, out, err = console.run("mcp", "test", "dies", "--mcp-config", servers)
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith("error: the MCP server dies speaks 2019-01-01, and tinychat 2024-11-05")
