"""The command that attaches the output of a program."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Iterable, Iterator

from tinychat.chat.command_files import attach, complete_path
from tinychat.chat.interrupt_flag import InterruptFlag
from tinychat.chat.loop import ChatLoop
from tinychat.conversation.attachments import Attachment
from tinychat.errors import SettingError
from tinychat.tools.own.bounded_command import MAX_BYTES, Stopped, run_bounded

_MAX_SECONDS = 30.0
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


def output_of(
    command: str, stopped: Callable[[], bool], max_seconds: float = _MAX_SECONDS, max_bytes: int = MAX_BYTES
) -> tuple[str, str]:
    """Run a command as ``sh -c`` in the user's shell, within the bounds of `run_bounded`.

    Returns its text, and its ending in words, empty for success.
    """
    shell = os.environ.get("SHELL") or "/bin/sh"
    try:
        data, limit, ending = run_bounded([shell, "-c", command], stopped, max_seconds, max_bytes=max_bytes)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingError(f"{shell} cannot run the command: {reason}; $SHELL names another shell") from None
    try:
        # A limit may have cut the last character in two.
        text = codecs.getincrementaldecoder("utf-8")().decode(data, final=not limit)
    except UnicodeDecodeError:
        text = None
    if text is None or "\0" in text:
        raise SettingError("the output is not UTF-8 text: nothing is attached")
    return text.replace("\r\n", "\n"), ending


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
