"""A reply written as plain text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from tinychat.terminal.blocks import Blocks
from tinychat.terminal.safe_text import safe_text


class PlainReply:
    """Writes a reply as it streams: unchanged to a file or pipe, with visible control characters to a terminal."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._at_line_start = True
        self._blocks = Blocks()
        self._interjections: list[Callable[[], None]] = []

    def feed(self, text: str) -> None:
        """Write the next delta."""
        if self._is_terminal and self._blocks.feed(text) and self._interjections:
            end = len(text) - len(self._blocks.open)
            self._write(text[:end])
            self._interject()
            self._out.write("\n")
            text = text[end:]
        self._write(text)

    def interject(self, write: Callable[[], None]) -> None:
        """Call `write`, which writes whole lines; on a terminal, after the present block."""
        self._interjections.append(write)
        if not self._is_terminal or not self._blocks.open.strip():
            self._interject()

    def _interject(self) -> None:
        waiting, self._interjections = self._interjections, []
        for write in waiting:
            write()

    def _write(self, text: str) -> None:
        if text:
            self._out.write(safe_text(text) if self._is_terminal else text)
            self._out.flush()
            self._at_line_start = text.endswith("\n")

    def finish(self) -> None:
        """End the last line."""
        if not self._at_line_start:
            self._out.write("\n")
            self._out.flush()
            self._at_line_start = True
        self._interject()
