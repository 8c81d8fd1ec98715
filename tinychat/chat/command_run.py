"""The command that attaches the output of a program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tinychat.chat.command_files import attach, complete_path
from tinychat.chat.interrupt_flag import InterruptFlag
from tinychat.chat.loop import ChatLoop
from tinychat.chat.shell_output import output_of
from tinychat.conversation.attachments import Attachment
from tinychat.tools.own.bounded_command import Stopped

_SHOWN_LINES, _SHOWN_COLUMNS = 40, 400


def run(loop: ChatLoop, argument: str) -> None:
    """Run a command in the user's shell after a confirmation, show its output, and attach it."""
    if not loop.confirm(f"run this command and attach its output?\n  {argument}"):
        loop.notice("not run")
        return
    try:
        with InterruptFlag() as stopped:
            text, ending = output_of(argument, stopped)
    except Stopped:
        loop.notice("stopped: nothing is attached")
        return
    ended = f" ({ending})" if ending else ""
    if not text.strip():
        loop.notice(f"no output{ended}: nothing is attached")
        return
    loop.notice("\n".join(_shown(text)))
    attach(loop, Attachment(f"$ {' '.join(argument.split())}{ended}", text))


def _shown(text: str) -> Iterator[str]:
    """Yield the first lines of a text, shortened."""
    lines = text.rstrip().split("\n")
    for line in lines[:_SHOWN_LINES]:
        yield line if len(line) <= _SHOWN_COLUMNS else f"{line[:_SHOWN_COLUMNS]}..."
    if len(lines) > _SHOWN_LINES:
        yield f"... and {len(lines) - _SHOWN_LINES} more lines"


def complete_run(loop: ChatLoop, argument: str) -> Iterable[str]:
    """Complete the path in the last word."""
    before, space, word = argument.rpartition(" ")
    return [f"{before}{space}{path}" for path in complete_path(loop, word)]
