"""The whole program with a terminal on one side only: never interactive, and no codes in a pipe."""

import os
import shlex
import subprocess
import sys

import pytest
from terminal_app import APP, ENVIRONMENT, pexpect

CHAT = shlex.join([sys.executable, str(APP), "chat", "markdown"])


@pytest.fixture
def shell():
    """Return a function that runs a shell command in a terminal."""
    started = []

    def begin(command):
        environment = os.environ | ENVIRONMENT
        child = pexpect.spawn("/bin/sh", ["-c", command], env=environment, encoding="utf-8", timeout=30)
        started.append(child)
        return child

    yield begin
    for child in started:
        child.close(force=True)


def test_pipes_on_both_sides_carry_the_text_alone():
    result = subprocess.run(shlex.split(CHAT), input="hi\n", capture_output=True, text=True, timeout=30, check=True)
    assert result.stdout.startswith("# Title\n\nSome **bold** text.\n")
    assert result.stderr == ""


def test_a_pipe_behind_the_chat_gets_the_text_alone(shell, tmp_path):
    child = shell(f"{CHAT} > {tmp_path}/out")
    child.expect_exact("> ")
    assert "Ctrl-D leaves" not in child.before
    child.sendline("hi")
    child.expect("first token after")
    child.expect_exact("> ")
    child.sendeof()
    child.expect(pexpect.EOF)
    assert (tmp_path / "out").read_text().startswith("# Title\n\nSome **bold** text.\n")


def test_behind_tee_messages_are_marked_and_no_reply_is_cut_by_other_lines(shell, tmp_path):
    child = shell(f"{CHAT} | tee {tmp_path}/out")
    child.expect_exact("> ")
    child.sendline("hi")
    child.expect_exact("> ")
    lines = [line.strip() for line in child.before.splitlines() if line.strip()]
    assert (lines[0], lines[1], lines[-2]) == ("hi", "# Title", "| 1 | 2 |")
    assert "first token after" in lines[-1]
    child.sendeof()
    child.expect(pexpect.EOF)


def test_a_pipe_before_the_chat_is_answered_without_prompt(shell):
    child = shell(f"echo hi | {CHAT}")
    child.expect_exact("\x1b[1mbold\x1b[0m")
    child.expect(pexpect.EOF)
    assert "> " not in child.before
    assert "\x1b[?2004h" not in child.before
