"""Commands of the shell in a real terminal: the question, Ctrl-C, and what stays in the history."""

import os
from pathlib import Path

import pytest
from terminal_app import CTRL_C, CTRL_D, ENTER, UP, saved

SHELL = {"SHELL": "/bin/sh"}


def test_a_command_is_asked_for_shown_and_attached(start):
    terminal = start("chat", "counting", **SHELL)
    terminal.say("/run printf 'one\\033[31m\\ntwo'")
    terminal.expect_exact("run this command and attach its output?")
    terminal.expect_exact("printf 'one\\033[31m\\ntwo'")
    terminal.type("y" + ENTER)
    # Control characters of the output are shown, not obeyed.
    terminal.sees("one\u241b[31m", "two", "attached $ printf ")
    terminal.expect(r"attached .* tokens")
    terminal.say("How many?")
    terminal.expect("lines, last: How many?")
    # Only what was typed at the prompt itself comes back.
    terminal.type(UP + UP)
    terminal.sees("> /run printf")
    terminal.send("\x15")
    terminal.send(CTRL_D)
    terminal.ends_with(0)
    assert "two" in saved()[0]


@pytest.mark.parametrize("answer", [ENTER, "n" + ENTER, "yesterday" + ENTER, CTRL_C, CTRL_D])
def test_anything_but_yes_runs_nothing(start, tmp_path, answer):
    terminal = start("chat", "counting", **SHELL)
    terminal.say(f"/run touch {tmp_path / 'made'}")
    terminal.type(answer)
    terminal.expect("not run")
    if answer.startswith("yester"):
        # A message that was typed ahead of the question is not lost.
        terminal.sees("> yesterday")
        terminal.send(ENTER)
        terminal.expect("1 lines, last: yesterday")
    terminal.leave()
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_the_command_and_not_the_chat(start, tmp_path):
    terminal = start("chat", "counting", **SHELL)
    terminal.say(f"/run touch {tmp_path / 'begun'}; sleep 61; touch {tmp_path / 'ended'}")
    terminal.type("y" + ENTER)
    while not (tmp_path / "begun").exists():
        terminal.lines(0.05)
    terminal.send(CTRL_C)
    terminal.expect("stopped: nothing is attached")
    terminal.say("hi")
    terminal.expect("1 lines, last: hi")
    terminal.leave()
    assert not (tmp_path / "ended").exists()


def test_answers_are_not_kept_in_the_history(start):
    terminal = start("chat", "counting", **SHELL)
    terminal.say("/run true")
    terminal.type("y" + ENTER)
    terminal.expect("no output")
    terminal.leave()
    kept = Path(os.environ["TINYCHAT_HOME"], "history").read_text(encoding="utf-8")
    assert [line for line in kept.splitlines() if line.startswith("+")] == ["+/run true"]


def test_a_terminal_without_escape_codes_is_asked_too(start):
    terminal = start("chat", "counting", TERM="dumb", **SHELL)
    terminal.say("/run echo here I am")
    terminal.expect("y/N> ")
    terminal.send("y" + ENTER)
    terminal.expect("here I am\r\n")
    terminal.leave()
