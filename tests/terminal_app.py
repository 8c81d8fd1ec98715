"""The chat in a terminal of its own, driven by keys."""

import json
import os
import sys
from pathlib import Path
from time import monotonic

import pytest

pexpect = pytest.importorskip("pexpect", reason="no terminal to drive without pexpect")
pyte = pytest.importorskip("pyte", reason="no screen to look at without pyte")
termios = pytest.importorskip("termios", reason="no POSIX terminal")

APP = Path(__file__).parent / "fake_app.py"
ENVIRONMENT = {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1", "LC_ALL": "C.UTF-8"}
CTRL_C, CTRL_D, CTRL_G, CTRL_J, CTRL_R, TAB, UP, ENTER = "\x03", "\x04", "\x07", "\n", "\x12", "\t", "\x1b[A", "\r"
ALT_ENTER = "\x1b\r"
CTRL_U = "\x15"
_MARKS_PASTES = 2004 << 5
# Switching bracketed paste on is what the line editor does when it is ready for keys, and then it draws.
PROMPT = r"\x1b\[\?2004h(?=\x1b\[\?(1l|25l\x1b\[0m))"
DUMB_PROMPT = "> "


class _Screen(pyte.Screen):
    """What a person sees; it answers when it is asked where the cursor is."""

    answer = None

    def write_process_input(self, data):
        self.answer(data)


class _Feed:
    """Shows on a screen what a process writes."""

    def __init__(self, screen):
        self._stream = pyte.Stream(screen)
        self.text = ""

    def write(self, text):
        self.text += text
        self._stream.feed(text)

    def flush(self):
        """Everything is shown at once."""


class Terminal:
    """A running chat.

    Attributes
    ----------
    child : pexpect.spawn
        The process; `expect` and `send` are its own.
    screen : pyte.Screen
        What stands on the terminal, as far as it was read.
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
        self.screen = _Screen(columns, 24)
        self.screen.answer = self.child.send
        self.child.logfile_read = _Feed(self.screen)
        self.expect, self.send = self.child.expect, self.child.send
        self.expect_exact = self.child.expect_exact

    def type(self, keys):
        """Wait for the prompt and press these keys."""
        self.expect(self.prompt)
        self.send(keys)

    def say(self, text):
        """Wait for the prompt and send a message."""
        self.type(text + ENTER)

    def paste(self, text):
        """Paste a text as a terminal does: marked if the program has asked for it, else as if it were typed."""
        marked = _MARKS_PASTES in self.screen.mode
        self.send(f"\x1b[200~{text}\x1b[201~" if marked else text.replace("\n", ENTER))

    def lines(self, seconds=0.3):
        """Return the lines on the screen after this time."""
        self.child.expect([pexpect.TIMEOUT], timeout=seconds)
        return [line.rstrip() for line in self.screen.display]

    def sees(self, *wanted):
        """Wait until lines that begin like these stand on the screen, in this order, with nothing between them."""
        until = monotonic() + 20
        while True:
            lines = self.lines(0.05)
            for start in range(len(lines)):
                if all(line.startswith(begin) for line, begin in zip(lines[start:], wanted)):
                    return
            assert monotonic() < until, "\n".join(lines)

    def attributes(self):
        """Return how the terminal treats keys, as `termios.tcgetattr` does."""
        return termios.tcgetattr(self.child.child_fd)

    def is_used_by_a_shell(self):
        """Let the terminal treat keys as a shell's commands have it, with other lines on the screen."""
        attributes = self.attributes()
        attributes[0] |= termios.ICRNL
        attributes[3] |= termios.ECHO | termios.ICANON | termios.ISIG
        termios.tcsetattr(self.child.child_fd, termios.TCSANOW, attributes)
        self.screen.erase_in_display(2)
        self.screen.cursor_position(5, 1)

    @property
    def output(self):
        """All that was written so far."""
        return self.child.logfile_read.text

    def leave(self):
        """Wait for the prompt, and leave."""
        self.type(CTRL_D)
        self.ends_with(0)

    def ends_with(self, code):
        """Wait for the end, which must have this exit code."""
        self.expect(pexpect.EOF)
        assert self.child.wait() == code


def saved(name="*"):
    """Return the texts of the saved conversation, as its file holds them."""
    (file,) = Path(os.environ["TINYCHAT_HOME"], "sessions").glob(f"{name}.json")
    return [message["content"] for message in json.loads(file.read_text(encoding="utf-8"))["messages"]]
