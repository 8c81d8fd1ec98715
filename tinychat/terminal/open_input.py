"""The choice of where the user's messages come from, by what stdin and stdout are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

from tinychat.terminal.line_input import PROMPT, DumbTerminalInput, MarkedInput, PlainInput

if TYPE_CHECKING:
    from tinychat.terminal.line_editor import TerminalInput


def open_input(
    stdin: TextIO, stdout: TextIO, stderr: TextIO, environment: Mapping[str, str], keeps_history: bool = True
) -> PlainInput | TerminalInput:
    """Return a prompt when stdin and stdout are terminals, else plain lines, which a person sees marked.

    Enter it before anything that takes time: from then on, keys that are typed while no prompt is
    shown wait for the next one. On a real terminal the mark of the prompt stands there at once; whatever
    is written next takes its place.

    The prompt is drawn on stderr when that is a terminal too, so that stdout carries the model's
    text only. TERM=dumb in `environment` means a prompt without line editing. Without `keeps_history`
    what is typed is forgotten with the program.
    """
    if not (stdin.isatty() and stdout.isatty()):
        return MarkedInput(stdin, stderr) if stdin.isatty() and stderr.isatty() else PlainInput(stdin)
    terminal = stderr if stderr.isatty() else stdout
    if environment.get("TERM") == "dumb":
        return DumbTerminalInput(stdin, terminal)
    # The cursor goes back: a banner, a bar or an error begins where the mark is.
    terminal.write(f"{PROMPT.rstrip()}\r")
    terminal.flush()
    # Imported here: only a real terminal needs it, and it takes a tenth of a second.
    from tinychat.terminal.line_editor import TerminalInput

    return TerminalInput(stdin, terminal, environment, keeps_history)
