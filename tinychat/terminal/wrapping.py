"""Wrapping of lines between words."""

from __future__ import annotations

import re
from collections.abc import Callable

# Columns, such as a name and its description, have two spaces between them.
_COLUMN = re.compile(r"\S {2,}(?=\S)")
_JOINER, _AS_EMOJI = "\u200d", "\ufe0f"
NO_BREAK_SPACE = "\u00a0"


class WordWrap:
    """Wraps text that streams in, word by word; `column` is the end of the present line.

    `width` returns the columns of the terminal; lines after a break have an `indent`.
    """

    def __init__(self, width: Callable[[], int], indent: int = 0) -> None:
        self.column = 0
        self._width = width
        self._indent = indent
        self._spaces = self._word = ""

    def feed(self, text: str) -> str:
        """Add `text`, and return the words that are complete."""
        return "".join(map(self._take, text))

    def finish(self) -> str:
        """Return the last word."""
        return self._end_word()

    def _take(self, character: str) -> str:
        if character == "\n":
            ended = self._end_word()
            self.column, self._spaces = 0, ""
            return ended + "\n"
        if character.isspace() and character != NO_BREAK_SPACE:
            ended = self._end_word()
            self._spaces += character
            return ended
        ended = ""
        # Scripts with wide characters have no spaces: a line may end between any two.
        if self._word and (_is_wide(self._word) or _is_wide(character)) and not self._joins(character):
            ended = self._end_word()
        self._word += character
        return ended

    def _joins(self, character: str) -> bool:
        """Return whether a character combines with the one before it, as the parts of an emoji."""
        return not _cells(character) or self._word.endswith(_JOINER)

    def _end_word(self) -> str:
        if not self._word:
            return ""
        width, before = self._width(), self._spaces
        cells = _cells(self._word)
        if self.column and self.column + _cells(before) + cells > width:
            before, self.column = "\n" + " " * self._indent, self._indent
        else:
            self.column += _cells(before)
        text, self._word, self._spaces = before + self._word, "", ""
        # The terminal itself wraps a word longer than a line.
        reached = self.column + cells
        self.column = reached if reached <= width else reached % max(width, 1)
        return text


def wrapped(text: str, width: int) -> str:
    """Wrap each line of `text` between words; text in columns continues below its column."""
    return "\n".join(
        line if len(line) <= width and line.isascii() else _lines(line, width) for line in text.split("\n")
    )


def _lines(line: str, width: int) -> str:
    columns = [_cells(line[: found.end()]) for found in _COLUMN.finditer(line)]
    wrap = WordWrap(lambda: width, max((column for column in columns if column <= width // 2), default=0))
    return wrap.feed(line) + wrap.finish()


def _is_wide(sign: str) -> bool:
    return not sign.isascii() and (_cells(sign[0]) > 1 or _AS_EMOJI in sign)


def _cells(text: str) -> int:
    if text.isascii():
        return len(text)
    # Imported here: output to a pipe must not wait for it.
    from rich.cells import cell_len

    return cell_len(text)
