"""Conversations that outlive the program, whichever way it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
# The real program, with a model of prepared replies, saving at every delta instead of every two seconds.
PROGRAM = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from fake_app import load
from tinychat.chat import workspace
from tinychat.cli import main
workspace._SECONDS_BETWEEN_SAVES = 0.0
sys.exit(main(load=load))
"""


def run(*arguments, stdin=""):
    command = [sys.executable, "-c", PROGRAM, "chat", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def terminal():
    """Return a function that starts the chat in a terminal without escape codes."""
    pexpect = pytest.importorskip("pexpect", reason="no terminal to drive without pexpect")
    started = []

    def start(*arguments):
        environment = os.environ | {"TERM": "dumb", "LC_ALL": "C.UTF-8"}
        started.append(
            pexpect.spawn(
                sys.executable, ["-c", PROGRAM, "chat", *arguments], env=environment, encoding="utf-8", timeout=60
            )
        )
        return started[-1]

    yield start
    for child in started:
        child.close(force=True)


def say(child, text):
    child.expect("> ")
    child.sendline(text)


def test_a_conversation_killed_in_mid_reply_goes_on(terminal):
    child = terminal("slow", "--system", "Be kind.", "--temperature", "0.5")
    say(child, "hi")
    child.expect("Please wait")
    child.kill(signal.SIGKILL)
    child.wait()
    result = run("--continue", stdin="/show\n/context\n")
    assert result.returncode == 0
    assert "model           slow\n" in result.stderr
    assert "2 messages" in result.stderr
    assert "the last reply is incomplete: /continue continues it" in result.stderr
    assert "system          Be kind.  (this conversation)\n" in result.stderr
    assert "temperature     0.5  (this conversation)\n" in result.stderr
    assert "assistant  Please wait\n" in result.stderr


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_conversation_that_a_signal_ends_is_whole(name, terminal):
    number = getattr(signal, name)
    child = terminal("slow")
    say(child, "hi")
    child.expect("Please wait")
    child.kill(number)
    assert "Traceback" not in child.read()
    assert child.wait() == 128 + number
    sessions = Path(os.environ["TINYCHAT_HOME"], "sessions")
    assert [path.suffix for path in sessions.iterdir()] == [".json"]
    result = run("--continue", stdin="/context\n")
    assert "assistant  Please wait\n" in result.stderr


def test_a_signal_at_the_prompt_leaves_the_terminal_as_it_was(start):
    terminal = start("chat", "chatty")
    terminal.type("typed")
    terminal.expect("typed")
    terminal.child.kill(signal.SIGTERM)
    terminal.ends_with(128 + signal.SIGTERM)
    assert "Traceback" not in terminal.child.before
    assert "\x1b[?2004l" in terminal.child.before


def test_a_named_conversation_is_resumed_and_flags_win(terminal):
    child = terminal("chatty", "--temperature", "0.5", "--top-k", "7")
    say(child, "hi")
    child.expect("Hello")
    say(child, "/save greeting")
    child.expect("saved as greeting")
    say(child, "/exit")
    child.wait()
    result = run("--resume", "greeting", "--temperature", "0.1", "--system", "Be brief.", stdin="/show\nhow?\n")
    assert result.returncode == 0
    assert "greeting: 2 messages" in result.stderr
    assert "temperature     0.1  (the command line)\n" in result.stderr
    assert "top_k           7  (this conversation)\n" in result.stderr
    assert "system          Be brief.  (the command line)\n" in result.stderr
    again = run("--resume", "greeting", stdin="/stats\n")
    assert "messages: 4" in again.stderr


def test_a_pipe_saves_nothing_of_its_own_accord():
    assert run("chatty", stdin="hi\n").returncode == 0
    result = run("--continue")
    assert result.returncode == 1
    assert result.stderr.startswith("error: no conversation is saved in ")


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--resume", "nothing"], 1, "there is no conversation 'nothing': none is saved yet"),
        (["--resume", "../x"], 1, "cannot name a conversation"),
        (["--resume", "x", "--continue"], 2, "leave out one"),
        (["--overflow", "spill"], 2, "spill"),
    ],
)
def test_what_cannot_be_resumed_is_said(arguments, code, complaint):
    result = run(*arguments)
    assert (result.returncode, result.stdout) == (code, "")
    assert complaint in result.stderr


def test_a_damaged_conversation_that_is_the_only_one_is_said():
    folder = Path(os.environ["TINYCHAT_HOME"], "sessions")
    folder.mkdir(parents=True)
    (folder / "broken.json").write_text('{"format": 1, "messages"')
    result = run("--continue")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        f"passed over: {folder / 'broken.json'} is damaged: it is not valid JSON\n"
        f"error: no conversation can be read in {folder}: start one with `tinychat chat`\n"
    )


def test_what_was_said_last_is_shown_dimmed(start):
    first = start("chat", "chatty")
    first.say("hi")
    first.say("/save talk")
    first.leave()
    again = start("chat", "chatty", "--continue")
    again.expect_exact("\x1b[2m> hi\x1b[0m\r\n\x1b[2mHello 😀!\x1b[0m\r\n")
    again.say("/clear")
    again.say("/load talk")
    again.expect_exact("\x1b[2m> hi\x1b[0m\r\n\x1b[2mHello 😀!\x1b[0m\r\n")
    again.leave()


def test_a_private_chat_leaves_no_trace(start):
    terminal = start("chat", "chatty", "--private")
    terminal.say("hi")
    terminal.expect("Hello")
    terminal.leave()
    assert [path for path in Path(os.environ["TINYCHAT_HOME"]).rglob("*") if path.is_file()] == []
