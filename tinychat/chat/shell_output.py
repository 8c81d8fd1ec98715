"""The output of a shell command as text."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable
from typing import NamedTuple

from tinychat.errors import SettingError
from tinychat.tools.own.bounded_command import MAX_BYTES, run_bounded

MAX_SECONDS = 30.0


class Output(NamedTuple):
    """The output of a command, and its ending in words, empty for success."""

    text: str
    ending: str


def output_of(
    command: str, stopped: Callable[[], bool], max_seconds: float = MAX_SECONDS, max_bytes: int = MAX_BYTES
) -> Output:
    """Run a command as ``sh -c`` in the user's shell, within the bounds of `run_bounded`, and return its text."""
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
    return Output(text.replace("\r\n", "\n"), ending)
