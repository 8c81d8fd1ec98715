"""A terminal's screen for tests: it obeys the few codes that the chat may write, and refuses all others."""

import io
import re

from rich.cells import cell_len

_CODE = re.compile(r"\x1b\[(\d*)([AJKm]|[\d;]*m)|(.)", re.DOTALL)


class Terminal(io.StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self):
        return True


class Screen:
    """Lines as they stand; wide characters take two cells, the second of which is empty."""

    def __init__(self, width=80, height=24):
        self.width, self.height = width, height
        self.writes = 0
        self._rows = [[]]
        self._row = self._column = 0

    @property
    def lines(self):
        return ["".join(row).rstrip() for row in self._rows]

    def size(self):
        return self.width, self.height

    def isatty(self):
        return True

    def flush(self):
        """Everything is shown at once."""

    def write(self, text):
        self.writes += 1
        for found in _CODE.finditer(text):
            count, code, character = found.groups()
            if character is None:
                self._obey(code, int(count or 1))
            else:
                self._put(character)

    def _obey(self, code, count):
        row = self._rows[self._row]
        if code == "A":
            top = max(0, len(self._rows) - self.height)
            assert self._row - count >= top, "the cursor would leave the screen"
            self._row -= count
        elif code == "K":
            del row[self._column :]
        elif code == "J":
            del row[self._column :]
            del self._rows[self._row + 1 :]

    def _put(self, character):
        if character == "\n":
            self._row, self._column = self._row + 1, 0
            if self._row == len(self._rows):
                self._rows.append([])
        elif character == "\r":
            self._column = 0
        else:
            assert character >= " " and character != "\x7f", f"a control character: {character!r}"
            self._draw(character)

    def _draw(self, character):
        cells = cell_len(character)
        assert self._column + cells <= self.width, "a line is wider than the screen"
        row = self._rows[self._row]
        row += [" "] * (self._column + cells - len(row))
        row[self._column : self._column + cells] = [character, *[""] * (cells - 1)][: max(cells, 1)]
        self._column += cells
