"""Telling the tokens of a reply that mark thoughts from those that are text."""

from __future__ import annotations

from collections.abc import Sequence

from tinychat.text.think_sections import CLOSING_TEXT, OPEN
from tinychat.text.thought_marks import Mark, ThoughtMarks
from tinychat.text.tokenizer import Tokenizer

_LONGEST_NAME = 32
_BETWEEN_MESSAGES = "\n\n"


class ThoughtReader:
    """Reads the tokens of one reply.

    A reply has one think section: messages of thoughts before the answer are joined, and those that come later are left
    out. With `begun` it begins inside of its thoughts; `ids` are tokens of it that were read before.
    """

    def __init__(self, marks: ThoughtMarks, tokenizer: Tokenizer, begun: bool, ids: Sequence[int] = ()) -> None:
        self.marks = marks
        self.had_thoughts = begun  # whether marks have begun thoughts, here or in the prompt
        self._by_id, self._tokenizer = marks.by_id, tokenizer
        self._has_thoughts, self._has_answer = begun, False
        self._header: bytes | None = b"" if marks.first_header and not begun else None
        self._header_is_first, self._header_is_name = self._header is not None, False
        self._owed = ""
        for token_id in ids:
            if self.add(token_id) is None:
                self.take_tag()

    @property
    def is_thinking(self) -> bool:
        """Whether the next token is one of thoughts, not of a header behind them."""
        return self._has_thoughts and self._header is None

    def add(self, token_id: int) -> str | None:
        """Return the text that a mark stands for, empty for what is not to be read; None for text of the reply."""
        mark, is_special = self._by_id.get(token_id), token_id in self._tokenizer.special_ids
        # A text about marks may spell those that are no control tokens.
        if mark is None or (self._has_answer and not is_special):
            return None if is_special else self._add_text(self._tokenizer.token_bytes(token_id))
        if mark in (Mark.HEADER, Mark.NAMED):
            self._header, self._header_is_first, self._header_is_name = b"", False, mark is Mark.NAMED
            return ""
        thoughts = mark is Mark.THOUGHTS or (mark is Mark.BODY and self.marks.thoughts_on in (self._header or b""))
        return self._begin(thoughts)

    def end_thoughts(self) -> None:
        """End thoughts where something begins that is none, without a mark."""
        self._begin(False)

    def take_tag(self) -> str:
        """Return the tag before the text that comes now, once."""
        owed, self._owed = self._owed, ""
        return owed

    def _add_text(self, data: bytes) -> str | None:
        if self._header is None:
            is_space = not data.strip()
            self._has_answer |= not self._has_thoughts and not is_space
            return "" if (self._has_thoughts and self._has_answer) or (self._owed and is_space) else None
        self._header += data
        if self._header_is_name and b"\n" in self._header:
            return self._begin(True)
        if self._is_no_header(self._header):
            text, self._header, self._has_answer = self._header.decode("utf-8", "replace"), None, True
            return text
        return ""

    def _is_no_header(self, text: bytes) -> bool:
        """Return whether what might have been a name, or the first header, is text of the reply."""
        first = self.marks.first_header[: len(text)]
        return (self._header_is_name and len(text) > _LONGEST_NAME) or (
            self._header_is_first and not text.startswith(first)
        )

    def _begin(self, thoughts: bool) -> str:
        """Begin thoughts or an answer; return the tag before thoughts, that before an answer waits for its text."""
        is_message = self._header is not None
        self._header = None
        had_thoughts, self._has_thoughts = self._has_thoughts, thoughts
        if self._has_answer:
            self._owed = _BETWEEN_MESSAGES if is_message and not thoughts else self._owed
            return ""
        if not thoughts:
            self._owed = CLOSING_TEXT if had_thoughts else self._owed
            return ""
        self._owed = ""
        if self.had_thoughts:
            return _BETWEEN_MESSAGES
        self.had_thoughts = True
        return f"{OPEN}\n"
