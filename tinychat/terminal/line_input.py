"""Prompts, and messages from plain lines: of a pipe, a file or a terminal without line editing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TextIO

from tinychat.errors import SettingError
from tinychat.files import HAS_NUL
from tinychat.terminal.safe_text import safe_text

PROMPT, QUESTION, CONTINUATION = "> ", "y/N> ", "  "
FENCE = '"""'


def as_message(text: str) -> str:
    """Return `text`, with a space before it if it begins as a command."""
    return f" {text}" if text.startswith("/") else text


class Candidate(NamedTuple):
    """A completion of the last word of a line, and its description."""

    text: str
    description: str = ""


@dataclass(frozen=True)
class InputPrompt:
    """A prompt for one message."""

    text: str = ""  # that the prompt begins with
    multiline: bool = False  # Enter begins a new line and Alt-Enter sends, instead of the other way round
    complete: Callable[[str], list[Candidate]] = lambda _line: []  # for the last word of a line that begins with "/"
    bar: Callable[[int], str] = lambda _width: ""  # the status bar for a width in columns
    question: str = ""  # the mark of a question, such as `QUESTION`; the history leaves out the answer
    is_fresh: bool = False  # keys that were typed before it is shown wait for the next prompt

    @property
    def mark(self) -> str:
        """The mark before the text."""
        return self.question or PROMPT


class LineDiscarded(KeyboardInterrupt):
    """Ctrl-C discarded a line with text."""


class PlainInput:
    """Lines of a file, a pipe or a terminal without editing."""

    interactive = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __enter__(self) -> PlainInput:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def read(self, _prompt: InputPrompt) -> str:
        """Return the next message: a line, or lines fenced by three quotation marks; EOFError at the end."""
        text = self._line()
        if not text:
            raise EOFError
        while is_open(text):
            line = self._line()
            if not line:
                break
            text += line
        return text.rstrip("\r\n")

    def _line(self) -> str:
        try:
            line = self._stream.readline()
            # In some locales Python reads bytes that are not UTF-8 as lone surrogates.
            line.encode("utf-8")
        except UnicodeError as error:
            raise SettingError("the input is not valid UTF-8: convert it first") from error
        if "\0" in line:
            raise SettingError(f"the input {HAS_NUL}")
        return line


class DumbTerminalInput(PlainInput):
    """A prompt without line editing, for terminals without escape codes."""

    interactive = True

    def __init__(self, stream: TextIO, terminal: TextIO) -> None:
        super().__init__(stream)
        self._terminal = terminal
        self._mark = PROMPT

    def read(self, prompt: InputPrompt) -> str:
        """Return the next message; the text of the prompt is only shown."""
        if prompt.text:
            self._terminal.write(safe_text(prompt.text) + "\n")
        self._mark = prompt.mark
        return super().read(prompt)

    def _line(self) -> str:
        self._terminal.write(self._mark)
        self._terminal.flush()
        self._mark = CONTINUATION
        line = super()._line()
        if not line:
            # The next output begins on a new line.
            self._terminal.write("\n")
            self._terminal.flush()
        return line


class MarkedInput(DumbTerminalInput):
    """Marked lines of a terminal, while replies go elsewhere, such as to tee."""

    interactive = False


def is_open(text: str) -> bool:
    """Return whether `text` begins with an open fence."""
    return text.startswith(FENCE) and not (len(text) >= 2 * len(FENCE) and text.rstrip().endswith(FENCE))


def unfence(text: str) -> str:
    """Return the text between fences, or `text` itself without them."""
    if not text.startswith(FENCE):
        return text
    return text.removeprefix(FENCE).rstrip().removesuffix(FENCE).strip("\n")
