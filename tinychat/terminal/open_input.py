"""The choice between a prompt and plain lines as the source of messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

from tinychat.terminal.line_input import PROMPT, DumbTerminalInput, MarkedInput, PlainInput

if TYPE_CHECKING:
    from tinychat.terminal.line_editor import TerminalInput


def open_input(
    stdin: TextIO, stdout: TextIO, stderr: TextIO, environment: Mapping[str, str], keeps_history: bool = True
) -> PlainInput | TerminalInput:
    """Return a prompt if stdin and stdout are terminals, else plain lines.

    Enter it early: from then on, keys typed between prompts are saved for the next one, and the prompt's mark is shown
    until the next output. The prompt is drawn on stderr if that is a terminal, so that stdout carries only the model's
    text. TERM=dumb means no line editing. Without `keeps_history`, the history of messages is not saved.
    """
    if not (stdin.isatty() and stdout.isatty()):
        return MarkedInput(stdin, stderr) if stdin.isatty() and stderr.isatty() else PlainInput(stdin)
    terminal = stderr if stderr.isatty() else stdout
    if environment.get("TERM") == "dumb":
        return DumbTerminalInput(stdin, terminal)
    # The cursor returns: the next output overwrites the mark.
    terminal.write(f"{PROMPT.rstrip()}\r")
    terminal.flush()
    # Imported here: only a real terminal needs it, and it takes a tenth of a second.
    from tinychat.terminal.line_editor import TerminalInput

    return TerminalInput(stdin, terminal, environment, keeps_history)
