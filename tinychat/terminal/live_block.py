"""A block of lines at the bottom of the terminal, redrawn while it grows."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rich.cells import cell_len

_STYLE_CODE = re.compile(r"\x1b\[[0-9;]*m")
_ERASE_LINE_END, _ERASE_BELOW = "\x1b[K", "\x1b[J"

TerminalSize = Callable[[], tuple[int, int]]
"""Returns columns and rows, which may change at any time."""


class LiveBlock:
    """Draws blocks one after the other; only changed lines are written again, if they are still on the screen."""

    def __init__(self, write: Callable[[str], object], size: TerminalSize) -> None:
        self._write = write
        self._size = size
        self._drawn: list[str] = []  # the cursor is at the end of the last one
        self._scrolled = 0  # number of lines of this block above them
        self._width = 0
        self._follows = False  # whether there is another block above

    def show(self, lines: Sequence[str]) -> None:
        """Draw `lines`, none wider than the terminal, as the block."""
        width, height = self._size()
        if width != self._width:
            self._erase(width, height)
        if not self._drawn and lines and self._follows:
            self._write("\n")
            self._follows = False
        visible = list(lines[self._scrolled :])
        self._redraw(visible)
        surplus = max(0, len(visible) - max(1, height - 1))
        self._scrolled += surplus
        self._drawn = visible[surplus:]

    def finish(self, lines: Sequence[str]) -> None:
        """Draw the block for the last time; an empty line follows it."""
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
            # The common case, a line that grows: only its end is written.
            self._write("\n".join([lines[same].removeprefix(drawn[same]), *lines[same + 1 :]]))
            return
        same = max(0, min(same, len(lines) - 1))
        up = len(drawn) - 1 - same
        rest = "\n".join(self._with_erased_end(line) for line in lines[same:])
        self._write("\r" + (f"\x1b[{up}A" if up else "") + rest + (_ERASE_BELOW if len(drawn) > len(lines) else ""))

    def _with_erased_end(self, line: str) -> str:
        # Behind the last column of a full line, some terminals erase that column.
        return line + _ERASE_LINE_END if _cells(line) < self._width else line

    def _erase(self, width: int, height: int) -> None:
        """After a change of width, erase the lines, which the terminal has wrapped, to begin the block again."""
        if self._drawn:
            rows = sum(max(1, -(-_cells(line) // width)) for line in self._drawn)
            up = min(rows, height) - 1
            self._write("\r" + (f"\x1b[{up}A" if up else "") + _ERASE_BELOW)
        self._drawn, self._scrolled, self._width = [], 0, width


def _cells(line: str) -> int:
    return cell_len(_STYLE_CODE.sub("", line))
