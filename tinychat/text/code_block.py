"""The first fenced code block of a reply, found while the reply is written."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tinychat.errors import TextError
from tinychat.text.think_sections import SectionDelta, ThinkSections

_OPENING = re.compile(r"([ \t]*)(`{3,}[^`\n]*|~{3,}.*)\n?")


class CodeBlock:
    """Filter for the lines between the first fence of the answer and the one that closes it.

    A reply with `thinking` begins inside its think section, whose drafts are not an answer. `closed` is True once the
    closing fence has come; nothing passes after it.
    """

    def __init__(self, thinking: bool = False) -> None:
        self.closed = False
        self._sections = ThinkSections(thinking)
        self._line = ""
        self._indent = ""
        self._closing: re.Pattern[str] | None = None

    def add(self, text: str) -> str:
        """Return the code lines that the next text completes."""
        return self._lines(self._sections.feed(text))

    def finish(self) -> str:
        """Return the rest of the code at the end of the reply, which may close the block."""
        code = self._lines(self._sections.finish())
        line, self._line = self._line, ""
        return code + (self._code(line) if line else "")

    @property
    def opened(self) -> bool:
        """Whether a code block has begun."""
        return self._closing is not None

    def check(self) -> None:
        """Raise a TextError if no block was opened, or the one that was has not been closed."""
        if not self.opened:
            raise TextError("the reply holds no code block: ask for one, or leave out --code")
        if not self.closed:
            raise TextError("the reply ends inside its code block: raise --max-tokens")

    def _lines(self, parts: Iterable[SectionDelta]) -> str:
        answer = "".join(part.text for part in parts if not part.thinking)
        *whole, self._line = (self._line + answer).split("\n")
        return "".join(self._code(line + "\n") for line in whole)

    def _code(self, line: str) -> str:
        if self.closed:
            return ""
        if self._closing is None:
            self._open(line)
            return ""
        if self._closing.fullmatch(line.strip()):
            self.closed = True
            return ""
        return line.removeprefix(self._indent)

    def _open(self, line: str) -> None:
        opening = _OPENING.fullmatch(line)
        if opening is not None:
            self._indent, fence = opening.groups()
            length = len(fence) - len(fence.lstrip(fence[0]))
            self._closing = re.compile(f"{fence[0]}{{{length},}}")


def first_code_block(text: str, thinking: bool = False) -> str | None:
    """Return the first code block of a whole reply, None if it has none or does not close it; see `CodeBlock`."""
    block = CodeBlock(thinking)
    code = block.add(text) + block.finish()
    return code if block.closed else None
