"""A block of lines at the bottom of the terminal that is redrawn while it grows."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rich.cells import cell_len

_STYLE_CODE = re.compile(r"\x1b\[[0-9;]*m")
_ERASE_LINE_END, _ERASE_BELOW = "\x1b[K", "\x1b[J"

TerminalSize = Callable[[], tuple[int, int]]
"""Tells columns and rows."""


class LiveBlock:
    """Draws one block after the other; only the lines that changed are written again.

    Lines that have left the screen at its top are final.

    Parameters
    ----------
    write : callable
        Takes text for the terminal.
    size : callable
        Tells the terminal's size; it may change at any time.
    """

    def __init__(self, write: Callable[[str], object], size: TerminalSize) -> None:
        self._write = write
        self._size = size
        self._drawn: list[str] = []  # the cursor is behind the last of them
        self._scrolled = 0  # lines of this block above them
        self._width = 0
        self._follows = False  # whether another block stands above

    def show(self, lines: Sequence[str]) -> None:
        """Make the block look like `lines`, each no wider than the terminal."""
        width, height = self._size()
        if width != self._width:
            self._forget(width, height)
        if not self._drawn and lines and self._follows:
            self._write("\n")
            self._follows = False
        visible = list(lines[self._scrolled :])
        self._redraw(visible)
        surplus = max(0, len(visible) - max(1, height - 1))
        self._scrolled += surplus
        self._drawn = visible[surplus:]

    def finish(self, lines: Sequence[str]) -> None:
        """Draw the block for the last time; what comes next stands below it after an empty line."""
        self.show(lines)
        self._write("\n")
        self._drawn, self._scrolled, self._follows = [], 0, True

    def _redraw(self, lines: list[str]) -> None:
        drawn = self._drawn
        same = next((n for n, (old, new) in enumerate(zip(drawn, lines)) if old != new), min(len(drawn), len(lines)))
        if same == len(drawn):
            self._write("".join(("\n" if number else "") + line for number, line in enumerate(lines) if number >= same))
            return
        if same == len(drawn) - 1 < len(lines) and lines[same].startswith(drawn[same]):
            # The usual case, a line that grows: nothing on the screen is touched.
            self._write("\n".join([lines[same].removeprefix(drawn[same]), *lines[same + 1 :]]))
            return
        same = max(0, min(same, len(lines) - 1))
        up = len(drawn) - 1 - same
        rest = "\n".join(self._with_erased_end(line) for line in lines[same:])
        self._write("\r" + (f"\x1b[{up}A" if up else "") + rest + (_ERASE_BELOW if len(drawn) > len(lines) else ""))

    def _with_erased_end(self, line: str) -> str:
        # A full line has no rest, and behind its last column some terminals erase that one.
        return line + _ERASE_LINE_END if _cells(line) < self._width else line

    def _forget(self, width: int, height: int) -> None:
        """After a change of width, erase what the terminal has wrapped anew, and begin the block again."""
        if self._drawn:
            rows = sum(max(1, -(-_cells(line) // width)) for line in self._drawn)
            up = min(rows, height) - 1
            self._write("\r" + (f"\x1b[{up}A" if up else "") + _ERASE_BELOW)
        self._drawn, self._scrolled, self._width = [], 0, width


def _cells(line: str) -> int:
    return cell_len(_STYLE_CODE.sub("", line))
