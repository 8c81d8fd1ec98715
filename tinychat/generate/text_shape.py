"""Detection of code blocks and tables in a text that is being written."""

from __future__ import annotations

# So much of a line tells what it is.
_LINE_BYTES = 64


class TextShape:
    """Follows a text token by token."""

    def __init__(self) -> None:
        self._is_code = self._is_table = False
        self._line = b""

    @property
    def is_structured(self) -> bool:
        """Whether the text is in a code block or a table."""
        return self._is_code or self._is_table

    @property
    def is_at_beginning(self) -> bool:
        """Whether the line has only digits, spaces and marks of headings and emphasis so far."""
        return not self._line.strip(b" *#0123456789")

    def add(self, text: bytes) -> bool:
        """Add text; return whether it is structured now."""
        *ended, rest = (self._line + text).split(b"\n")
        for line in ended:
            self._is_code ^= line.lstrip().startswith(b"```")
            self._is_table = line.lstrip().startswith(b"|")
        self._line = rest[:_LINE_BYTES]
        self._is_table |= self._line.lstrip().startswith(b"|")
        return self.is_structured
