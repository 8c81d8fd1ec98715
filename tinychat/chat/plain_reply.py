"""A reply as the text that the model wrote."""

from __future__ import annotations

from typing import TextIO

from tinychat.chat.safe_text import safe_text


class PlainReply:
    """Writes a reply as it comes: to a file or pipe unchanged, to a terminal without control characters."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._at_line_start = True

    def feed(self, text: str) -> None:
        """Write the next piece."""
        self._out.write(safe_text(text) if self._is_terminal else text)
        self._out.flush()
        self._at_line_start = text.endswith("\n")

    def finish(self) -> None:
        """End the line that was begun."""
        if not self._at_line_start:
            self._out.write("\n")
            self._out.flush()
            self._at_line_start = True
