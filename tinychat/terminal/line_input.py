"""Where the user's messages come from: a terminal with line editing, or plain lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TextIO

from tinychat.errors import SettingError
from tinychat.files import HAS_NUL
from tinychat.terminal.safe_text import safe_text

PROMPT, QUESTION, CONTINUATION = "> ", "y/N> ", "  "
FENCE = '"""'


def is_command(line: str) -> bool:
    """Return whether `line` is meant for the chat program; a space before the slash makes it a message."""
    return line.startswith("/")


def as_message(text: str) -> str:
    """Return `text`, behind a space if it would be read as a command."""
    return f" {text}" if is_command(text) else text


class Candidate(NamedTuple):
    """What may stand for the last word of a line.

    Attributes
    ----------
    text : str
        The word.
    description : str
        What a list of candidates says of it.
    """

    text: str
    description: str = ""


def _no_candidates(_line: str) -> list[Candidate]:
    return []


def _no_bar(_width: int) -> str:
    return ""


@dataclass(frozen=True)
class InputPrompt:
    """What one reading of a message begins with and shows.

    Attributes
    ----------
    text : str
        What stands in the prompt at first.
    multiline : bool
        Whether Enter begins a new line and Alt-Enter sends, instead of the other way round.
    complete : callable
        Candidates for the last word of a line that begins with "/".
    bar : callable
        The status line below the prompt, for a width in columns.
    is_question : bool
        Whether yes or no is asked for, which no history keeps.
    """

    text: str = ""
    multiline: bool = False
    complete: Callable[[str], list[Candidate]] = _no_candidates
    bar: Callable[[int], str] = _no_bar
    is_question: bool = False

    @property
    def mark(self) -> str:
        """What stands before the text."""
        return QUESTION if self.is_question else PROMPT


class LineDiscarded(KeyboardInterrupt):
    """Ctrl-C threw away a line that held text."""


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
        """Return the next message: a line without its end, or lines that three quotation marks fence.

        Raises
        ------
        EOFError
            At the end of the stream.
        SettingError
            If the stream is not UTF-8, or has a NUL byte.
        """
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
        """Return the next message, as `PlainInput` does. A text to begin with can only be shown."""
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
            # What comes next begins a line of its own.
            self._terminal.write("\n")
            self._terminal.flush()
        return line


class MarkedInput(DumbTerminalInput):
    """Lines of a terminal whose replies go elsewhere, such as to tee: a mark tells messages from replies."""

    interactive = False


def is_open(text: str) -> bool:
    """Return whether `text` begins with a fence that is not closed yet."""
    return text.startswith(FENCE) and not (len(text) >= 2 * len(FENCE) and text.rstrip().endswith(FENCE))


def unfence(text: str) -> str:
    """Return what stands between the fences, or `text` itself where there are none."""
    if not text.startswith(FENCE):
        return text
    return text.removeprefix(FENCE).rstrip().removesuffix(FENCE).strip("\n")
