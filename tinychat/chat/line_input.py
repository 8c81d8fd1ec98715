"""Where the person's messages come from: a terminal with line editing, or plain lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, TextIO

from tinychat.errors import SettingError

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession


_PROMPT = "> "


class LineInput(Protocol):
    """A source of messages."""

    interactive: bool

    def read(self) -> str:
        """Return the next line without its end.

        Raises
        ------
        EOFError
            At the end of the input.
        KeyboardInterrupt
            If Ctrl-C was pressed; the line is lost.
        """
        ...


class PlainInput:
    """Lines of a file, a pipe or a terminal without editing."""

    interactive = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def read(self) -> str:
        """Return the next line; see `LineInput`.

        Raises
        ------
        EOFError
            At the end of the stream.
        SettingError
            If the stream is not UTF-8.
        """
        try:
            line = self._stream.readline()
        except UnicodeDecodeError as error:
            raise SettingError(f"the input is not valid UTF-8 ({error.reason}): convert it first") from error
        if not line:
            raise EOFError
        return line.rstrip("\r\n")


class DumbTerminalInput(PlainInput):
    """A prompt without line editing, for terminals that know no escape codes."""

    interactive = True

    def __init__(self, stream: TextIO, terminal: TextIO) -> None:
        super().__init__(stream)
        self._terminal = terminal

    def read(self) -> str:
        """Return the next line; see `LineInput`."""
        self._terminal.write(_PROMPT)
        self._terminal.flush()
        return super().read()


class TerminalInput:
    """A prompt with line editing and the history of this conversation."""

    interactive = True

    def __init__(self, terminal: TextIO) -> None:
        self._session = _prompt_session(terminal)

    def read(self) -> str:
        """Return the edited line; see `LineInput`."""
        return self._session.prompt(_PROMPT)


def open_input(stdin: TextIO, stdout: TextIO, stderr: TextIO, environment: Mapping[str, str]) -> LineInput:
    """Return a prompt when stdin and stdout are terminals, else plain lines.

    The prompt is drawn on stderr when that is a terminal too, so that stdout carries the model's
    text only. TERM=dumb in `environment` means a prompt without line editing.
    """
    if not (stdin.isatty() and stdout.isatty()):
        return PlainInput(stdin)
    terminal = stderr if stderr.isatty() else stdout
    if environment.get("TERM") == "dumb":
        return DumbTerminalInput(stdin, terminal)
    return TerminalInput(terminal)


def _prompt_session(terminal: TextIO) -> PromptSession[str]:
    # Imported here: only a real terminal needs it, and it takes a tenth of a second.
    from prompt_toolkit import PromptSession
    from prompt_toolkit.output import create_output

    return PromptSession(output=create_output(stdout=terminal))
