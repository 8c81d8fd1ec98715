"""The blocks of Markdown that streams in: paragraphs, lists, code, tables."""

from __future__ import annotations

import re

_FENCE = re.compile(r" *(?:[-*+] |\d+[.)] )? *(`{3,}|~{3,})(.*)")


class Blocks:
    """Splits the text of one reply into blocks; `open` is the text of the unfinished block.

    A block ends at a blank line before a line that is not indented, or at the end of a code fence that is not indented.
    """

    def __init__(self) -> None:
        self.open = ""
        self._scanned = 0
        self._fence = ""
        self._after_blank = False

    def feed(self, text: str) -> list[str]:
        """Add `text` and return the blocks that it finishes, without blank lines around them."""
        self.open += text
        finished = []
        while (end := self._next_end()) is not None:
            block, self.open = self.open[:end], self.open[end:]
            self._scanned = 0
            if block.strip():
                finished.append(block.rstrip().lstrip("\n"))
        return finished

    def _next_end(self) -> int | None:
        """Scan further lines to the end of the first block."""
        while self._scanned < len(self.open):
            start = self._scanned
            if self._after_blank and not self._fence and not self.open[start].isspace():
                self._after_blank = False
                if start:
                    return start
            newline = self.open.find("\n", start)
            if newline < 0:
                return None
            self._scanned = newline + 1
            line = self.open[start:newline]
            self._after_blank = not line.strip()
            if self._closes_fence(line) and not line.startswith(" "):
                return self._scanned
        return None

    def _closes_fence(self, line: str) -> bool:
        """Track code fences over `line`, and return whether it ends one."""
        found = _FENCE.fullmatch(line.rstrip())
        if found is None:
            return False
        marks, after = found.groups()
        if not self._fence:
            # Backticks after backticks are inline code, not a fence.
            self._fence = "" if marks[0] == "`" and "`" in after else marks
            return False
        if after or not marks.startswith(self._fence):
            return False
        self._fence = ""
        return True
