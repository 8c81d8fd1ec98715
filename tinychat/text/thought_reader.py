"""Telling the tokens of a reply that mark thoughts from those that are text."""

from __future__ import annotations

from tinychat.text.think_sections import CLOSING_TEXT, OPEN
from tinychat.text.thought_marks import Mark, ThoughtMarks
from tinychat.text.tokenizer import Tokenizer

# In the header of a message of thoughts.
_THOUGHTS_ON = b"analysis"


class ThoughtReader:
    """Tells the tokens of one reply that mark thoughts from those that are text.

    Thoughts that come after the beginning of the answer are left out: a reply has one think section. With `begun` it
    begins inside of that.
    """

    def __init__(self, marks: ThoughtMarks, tokenizer: Tokenizer, begun: bool) -> None:
        self._marks, self._tokenizer = marks.by_id, tokenizer
        self._is_thinking, self._has_answer = begun, False
        self._header: bytes | None = None
        self._header_is_name = False

    def add(self, token_id: int) -> str | None:
        """Return the text that a mark stands for, empty for what is not to be read; None for text of the reply."""
        mark = self._marks.get(token_id)
        if mark is None and token_id in self._tokenizer.special_ids:
            return None
        if mark is None:
            return self._add_text(self._tokenizer.token_bytes(token_id))
        if mark in (Mark.HEADER, Mark.NAMED):
            self._header, self._header_is_name = b"", mark is Mark.NAMED
            return ""
        return self._begin(mark is Mark.THOUGHTS or (mark is Mark.BODY and _THOUGHTS_ON in (self._header or b"")))

    def end_thoughts(self) -> str:
        """Return the text between thoughts and what is none of them."""
        return self._begin(False)

    def _add_text(self, data: bytes) -> str | None:
        if self._header is None:
            is_left_out = self._is_thinking and self._has_answer
            self._has_answer |= not self._is_thinking and bool(data.strip())
            return "" if is_left_out else None
        self._header += data
        if self._header_is_name and b"\n" in self._header:
            return self._begin(True)
        return ""

    def _begin(self, thoughts: bool) -> str:
        self._header = None
        had_thoughts, self._is_thinking = self._is_thinking, thoughts
        if self._has_answer:
            return ""
        if had_thoughts:
            return "\n\n" if thoughts else CLOSING_TEXT
        return f"{OPEN}\n" if thoughts else ""
