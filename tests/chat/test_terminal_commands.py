"""Every command, and every policy for a full context, in the whole program at a terminal."""

import os
import sys
from pathlib import Path

import pytest

pexpect = pytest.importorskip("pexpect", reason="no terminal to drive without pexpect")

from terminal_app import saved  # noqa: E402 (it needs pexpect)

TESTS = Path(__file__).parents[1]
# The real program; every model answers with its name and a number, in a context of 96 bytes if no other is asked for.
PROGRAM = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from fake_model import Replies, fake_model
from tinychat.cli import main

def load(name, options):
    replies = Replies(*(f"I am {{name}} {{number}}" for number in range(20)))
    size = options.context or 96
    return fake_model(replies, name=name, context_size=size, chunk_size=size)

sys.exit(main(load=load))
"""


@pytest.fixture
def chat(tmp_path):
    """Return a function that starts the chat in an empty folder, and sends what it is given."""
    started = []

    def start(*arguments):
        environment = os.environ | {"TERM": "dumb", "LC_ALL": "C.UTF-8", "PATH": str(tmp_path)}
        command = ["-c", PROGRAM, "chat", "ann", *arguments]
        child = pexpect.spawn(
            sys.executable, command, env=environment, cwd=tmp_path, encoding="utf-8", timeout=20, dimensions=(24, 200)
        )
        started.append(child)

        def say(text, *answers):
            child.expect("> ")
            child.sendline(text)
            for answer in answers:
                child.expect_exact([answer])

        return say

    yield start
    for child in started:
        child.close(force=True)


def test_every_command(chat, tmp_path):
    (tmp_path / "notes.txt").write_text("Buy milk.")
    say = chat()
    say("/help", "/help ", "/why [N]")
    say("hi", "I am ann 0")
    say("/regen", "I am ann 1")
    say("/retry temperature=0.5", "I am ann 2")
    say("/why 1", "'2' 100.0 %")
    say("/stats", "messages: 2", "seed ")
    say("/context", "of 96 tokens in use", "I am ann 2")
    say("/tokens ab", "2 tokens: 'a' 97  'b' 98")
    say("/save first", "saved as first")
    say("/fork", "this is now first-fork")
    say("/undo", "restored: I am ann 1")
    say("/undo 2", "undone: hi")
    say("/redo", "restored: I am ann 0")
    say("/redo 2", "restored: I am ann 2")
    say("/load first", "first: 2 messages")
    say("/sessions", "(this one)")
    say("/export talk.md", "written: talk.md")
    say("/model bob", "switched to bob")
    say("/edit", "change the message", "hi")
    say("", "not edited")
    say("/clear", "a new conversation begins")
    say("/system Be kind.", "system prompt: Be kind.")
    say("/set temperature 0.3", "temperature: 0.3 (was 0.8)")
    say("/show", "model           bob", "session         not saved yet")
    say("/multiline", "Enter begins a new line")
    say("/multiline")
    say("/file notes.txt", "attached notes.txt (9 tokens)")
    say("/file", "1  notes.txt (9 tokens)")
    say("/detach", "removed notes.txt")
    say("/file notes.txt", "attached notes.txt (9 tokens)")
    say("/paste", "error: the clipboard cannot be used")
    say("What?", "I am bob 0")
    say("/context", "notes.txt: ``` Buy milk. ``` What?")
    say("/copy", "error: the clipboard cannot be used")
    say("/contxt", "did you mean /context?")
    say("/exit", pexpect.EOF)
    assert "I am ann 2" in (tmp_path / "talk.md").read_text()


@pytest.mark.parametrize("overflow", ["drop", "shift"])
def test_a_full_context_is_said(chat, overflow):
    say = chat("--overflow", overflow)
    for number in range(4):
        say(f"question {number}", f"I am ann {number}")
    say("question 4", 'no longer sees the oldest 2 turns ("question 0", "question 1")', "37 left", "I am ann 4")
    assert saved()[::2] == [f"question {number}" for number in range(5)]


def test_a_full_context_is_summarised(chat):
    say = chat("--overflow", "summarise", "--context", "600")
    for number in range(3):
        say(f"question {number} " * 14, f"I am ann {number}")
    # Two replies are summaries, of what fits and of the rest.
    say("question 3 " * 14, "a summary by the model replaces the oldest 3 turns", "I am ann 5")
    say("/undo", "undone: question 3")
    say("/undo", "restored: the turns of the summary")
    assert [text[:10] for text in saved()[::2]] == ["question 0", "question 1", "question 2"]


def test_a_full_context_may_end_the_conversation(chat):
    say = chat("--overflow", "stop")
    for number in range(4):
        say(f"question {number}", f"I am ann {number}")
    say("question 4", "error: the prompt has ", "but the context holds 96")
    assert saved()[::2] == [f"question {number}" for number in range(4)]
