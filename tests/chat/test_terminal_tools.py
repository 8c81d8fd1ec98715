"""Tools in a real terminal: two consents, what was typed ahead, Ctrl-C, and the session that stays."""

import json
import os
import sys
from pathlib import Path

import pytest
from terminal_app import CTRL_C, ENTER

QUESTION = "y/a/t/n/r>"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Work in a folder with a note."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("It will rain.\n")
    return tmp_path


def answer(terminal, mark, keys):
    """Wait for a question and press these keys."""
    terminal.expect(terminal.prompt)
    terminal.expect_exact(mark)
    terminal.send(keys + ENTER)


def saved_messages():
    (file,) = Path(os.environ["TINYCHAT_HOME"], "sessions").glob("*.json")
    return json.loads(file.read_text(encoding="utf-8"))["messages"]


def test_what_changed_in_this_folder_takes_two_consents(start, folder):
    terminal = start("chat", "curious", "--tools", "files")
    terminal.say("what changed in this folder today?")
    answer(terminal, QUESTION, "y")
    answer(terminal, QUESTION, "y")
    terminal.expect("rain")
    terminal.say("/tools last")
    terminal.expect("It will rain")
    terminal.say("and?")
    terminal.expect("And that is all")
    terminal.leave()
    roles = [message["role"] for message in saved_messages()]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant", "user", "assistant"]
    assert "notes.txt" in terminal.output
    assert "<tool_call>" not in terminal.output


def test_what_was_typed_ahead_is_no_answer(start, folder):
    """The keys come while the model is still reading, before anybody can have seen the question."""
    terminal = start("chat", "curious", "--tools", "files")
    terminal.type("hi" + ENTER + "y" + ENTER)
    terminal.expect(terminal.prompt)
    terminal.expect_exact(QUESTION)
    assert not any(line.startswith(f"{QUESTION} y") for line in terminal.lines())
    terminal.send("r not now" + ENTER)
    answer(terminal, QUESTION, "n")
    terminal.expect("rain")
    # It is sent as a message, as everything that is typed during a reply.
    terminal.expect("And that is all")
    terminal.leave()
    assert [message["content"] for message in saved_messages()][2] == "error: the user did not allow this call: not now"
    assert saved_messages()[-2]["content"] == "y"


@pytest.mark.slow
def test_ctrl_c_at_the_question_ends_the_turn_and_not_the_chat(start, folder):
    terminal = start("chat", "curious", "--tools", "files")
    terminal.say("hi")
    terminal.expect(terminal.prompt)
    terminal.expect_exact(QUESTION)
    terminal.send(CTRL_C)
    terminal.expect("stopped: the call does not run")
    terminal.say("/undo")
    terminal.expect("undone: hi")
    terminal.leave()


def test_ctrl_c_stops_the_running_tool_first(start, folder):
    terminal = start("chat", "commanding", "--tools", "shell")
    terminal.say("sleep")
    answer(terminal, "y/a/n/r>", "y")
    terminal.expect("running run_command")
    terminal.send(CTRL_C)
    terminal.expect("the model has not answered these results")
    terminal.say("/regen")
    terminal.expect("Never")
    terminal.leave()
    messages = saved_messages()
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[2]["content"].startswith("error: ")


@pytest.mark.slow
def test_a_terminal_without_escape_codes_asks_too(start, folder):
    terminal = start("chat", "curious", "--tools", "files", TERM="dumb")
    terminal.expect("> ")
    terminal.send("hi" + ENTER)
    terminal.expect_exact(QUESTION)
    terminal.send(CTRL_C)
    terminal.expect("stopped: the call does not run")
    terminal.leave()


def test_a_server_is_asked_for_and_its_tool_runs(start, folder):
    server = Path(__file__).parents[1] / "mcp" / "plain_server.py"
    words = ", ".join(json.dumps(word) for word in ("-I", "-S", str(server)))
    section = f"[mcp.servers.plain]\ncommand = {json.dumps(sys.executable)}\nargs = [{words}]\n"
    Path(os.environ["TINYCHAT_HOME"], "config.toml").write_text(section)
    terminal = start("chat", "echoing", "--mcp", "plain", columns=200)
    terminal.expect("start the MCP server plain")
    terminal.expect_exact("plain_server.py")
    answer(terminal, "y/a/n>", "y")
    terminal.expect("tools: plain_echo")
    terminal.say("echo")
    answer(terminal, QUESTION, "y")
    terminal.expect("Heard")
    terminal.leave()
    assert "rain" in saved_messages()[2]["content"]
