"""The whole program in a real terminal, driven by keys."""

import os
import sys
from pathlib import Path

import pytest

pexpect = pytest.importorskip("pexpect", reason="no terminal to drive without pexpect")

APP = Path(__file__).parents[1] / "fake_app.py"
ENVIRONMENT = {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1", "LC_ALL": "C.UTF-8"}
CTRL_C, CTRL_D = "\x03", "\x04"
# Switching bracketed paste on is what the line editor does when it is ready for keys.
PROMPT = r"\x1b\[\?2004h"


@pytest.fixture
def start():
    """Return a function that starts the chat; what it started ends with the test."""
    started = []

    def begin(*arguments, **environment):
        child = pexpect.spawn(
            sys.executable,
            [str(APP), *arguments],
            env=os.environ | ENVIRONMENT | environment,
            encoding="utf-8",
            timeout=30,
            dimensions=(24, 80),
        )
        started.append(child)
        return child

    yield begin
    for child in started:
        child.close(force=True)


def say(child, text, prompt=PROMPT):
    child.expect(prompt)
    child.send(text + "\r")


def leave(child, prompt=PROMPT):
    child.expect(prompt)
    child.send(CTRL_D)
    assert exit_code(child) == 0


def exit_code(child):
    child.expect(pexpect.EOF)
    return child.wait()


def test_a_reply_streams_and_is_summed_up(start):
    child = start("chat", "chatty")
    child.expect("Ctrl-D leaves")
    say(child, "hi")
    child.expect("Hello 😀!")
    child.expect("11 tokens, .* tok/s, first token after")
    leave(child)


def test_ctrl_c_stops_the_reply_then_clears_the_line_and_ctrl_d_leaves(start):
    child = start("chat", "chatty")
    say(child, "hi")
    child.expect("Hello")
    say(child, "think")
    child.expect("I think that wait")
    child.send(CTRL_C)
    child.expect("stopped")
    child.expect(PROMPT)
    child.send("half a li" + CTRL_C)
    child.expect("Ctrl-D leaves")
    say(child, "/stats")
    child.expect("messages: 4")
    leave(child)


def test_escape_codes_of_the_model_are_shown_not_obeyed(start):
    child = start("chat", "colourful")
    say(child, "hi")
    child.expect_exact("Red ␛[31malert␛[0m.")
    leave(child)


def test_a_dumb_terminal_gets_no_escape_codes(start):
    child = start("chat", "chatty", TERM="dumb")
    say(child, "hi", prompt="> ")
    child.expect(r"Hello 😀!\r\n11 tokens, ")
    assert "\x1b" not in child.before + child.after
    say(child, "think", prompt="> ")
    child.expect("wait")
    child.send(CTRL_C)
    child.expect("stopped")
    child.expect("> ")
    child.send("half a li" + CTRL_C)
    child.expect("Ctrl-D leaves")
    leave(child, prompt="> ")


def test_no_color_leaves_the_styles_out(start):
    child = start("chat", "chatty", NO_COLOR="1")
    child.expect_exact("chatty Ctrl-C stops a reply")
    say(child, "hi")
    child.expect_exact("Hello 😀!\r\n11 tokens, ")
    leave(child)


def test_ctrl_c_in_a_one_shot_completion_is_130(start):
    child = start("complete", "slow", "-p", "hi")
    child.expect("Please wait")
    child.send(CTRL_C)
    assert exit_code(child) == 130
