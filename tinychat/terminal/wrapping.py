"""Lines that end between words where a terminal would cut a word in two."""

from __future__ import annotations

import re
from collections.abc import Callable

# What stands in columns, such as a name and its description, has two spaces between them.
_COLUMN = re.compile(r"\S {2,}(?=\S)")
_JOINER, _AS_EMOJI = "\u200d", "\ufe0f"


class WordWrap:
    """Breaks a text that grows into lines; a word is passed on once it is whole.

    Parameters
    ----------
    width : callable
        Tells the columns of the terminal, which may change at any time.
    indent : int
        Columns that the lines after a break begin with.

    Attributes
    ----------
    column : int
        Where the next word would begin; 0 at the start of a line.
    """

    def __init__(self, width: Callable[[], int], indent: int = 0) -> None:
        self.column = 0
        self._width = width
        self._indent = indent
        self._spaces = self._word = ""

    def feed(self, text: str) -> str:
        """Return what can be written after `text`."""
        return "".join(map(self._take, text))

    def finish(self) -> str:
        """Return the word that was held back."""
        return self._end_word()

    def _take(self, character: str) -> str:
        if character == "\n":
            ended = self._end_word()
            self.column, self._spaces = 0, ""
            return ended + "\n"
        if character.isspace():
            ended = self._end_word()
            self._spaces += character
            return ended
        ended = ""
        # Languages with wide characters have no spaces: a line may end between any two.
        if self._word and (_is_wide(self._word) or _is_wide(character)) and not self._joins(character):
            ended = self._end_word()
        self._word += character
        return ended

    def _joins(self, character: str) -> bool:
        """Return whether a character makes one sign with the one before it, as the parts of an emoji do."""
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
        # A word longer than a line is cut by the terminal itself.
        reached = self.column + cells
        self.column = reached if reached <= width else reached % max(width, 1)
        return text


def wrapped(text: str, width: int) -> str:
    """Return `text` with each line broken between words; what stands in columns goes on below one of them."""
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
    # Imported here: a pipe that gets plain text must not wait for it.
    from rich.cells import cell_len

    return cell_len(text)
