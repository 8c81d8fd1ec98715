"""The chat in a terminal of its own, driven by keys."""

import os
import sys
from pathlib import Path

import pytest

pexpect = pytest.importorskip("pexpect", reason="no terminal to drive without pexpect")

APP = Path(__file__).parents[1] / "fake_app.py"
ENVIRONMENT = {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1", "LC_ALL": "C.UTF-8"}
CTRL_C, CTRL_D, CTRL_G, CTRL_J, CTRL_R, TAB, UP, ENTER = "\x03", "\x04", "\x07", "\n", "\x12", "\t", "\x1b[A", "\r"
ALT_ENTER = "\x1b\r"
# Switching bracketed paste on is what the line editor does when it is ready for keys.
PROMPT = r"\x1b\[\?2004h"
DUMB_PROMPT = "> "


class Terminal:
    """A running chat.

    Attributes
    ----------
    child : pexpect.spawn
        The process; `expect` and `send` are its own.
    """

    def __init__(self, arguments, environment, columns):
        self.prompt = DUMB_PROMPT if environment.get("TERM") == "dumb" else PROMPT
        self.child = pexpect.spawn(
            sys.executable,
            [str(APP), *arguments],
            env=os.environ | ENVIRONMENT | environment,
            encoding="utf-8",
            timeout=30,
            dimensions=(24, columns),
        )
        self.expect, self.send = self.child.expect, self.child.send
        self.expect_exact = self.child.expect_exact

    def type(self, keys):
        """Wait for the prompt and press these keys."""
        self.expect(self.prompt)
        self.send(keys)

    def say(self, text):
        """Wait for the prompt and send a message."""
        self.type(text + ENTER)

    def leave(self):
        """Wait for the prompt, and leave."""
        self.type(CTRL_D)
        self.ends_with(0)

    def ends_with(self, code):
        """Wait for the end, which must have this exit code."""
        self.expect(pexpect.EOF)
        assert self.child.wait() == code
