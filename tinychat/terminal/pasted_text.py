"""Long pasted texts, which the prompt shows as a placeholder until the message is sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.document import Document
from prompt_toolkit.history import History

# More would push everything else off the screen.
MAX_LINES = 50


class PastedTexts:
    """The pasted texts of a message by their placeholders."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def fold(self, text: str) -> str:
        """Return the placeholder of a pasted text, or the text itself if it is short."""
        lines = text.removesuffix("\n").count("\n") + 1
        if lines <= MAX_LINES:
            return text
        placeholder = f"[pasted {lines} lines]"
        count = 1
        while self._texts.get(placeholder, text) != text:
            count += 1
            placeholder = f"[pasted {lines} lines, {count}]"
        self._texts[placeholder] = text
        return placeholder

    def clear(self) -> None:
        """Begin another message."""
        self._texts.clear()

    def unfold(self, line: str) -> str:
        """Replace the placeholders of a message by the pasted texts."""
        for placeholder, text in self._texts.items():
            line = line.replace(placeholder, text)
        return line

    def repair(self, before: str, after: Document) -> Document:
        """Return the document behind an edit, in which placeholders of the text before are whole or removed.

        What was typed inside of one stands behind it; where a part of one was removed, the rest is removed too.
        """
        text = after.text
        if text == self.unfold(before):
            return after
        begin = _common_length(before, text)
        behind = _common_length(before[begin:][::-1], text[begin:][::-1])
        end, added = len(before) - behind, text[begin : len(text) - behind]
        broken = [place for place in self._texts if text.count(place) < before.count(place)]
        spans = [match.span() for place in broken for match in re.finditer(re.escape(place), before)]
        touched = [(first, last) for first, last in spans if begin < last and end > first]
        if not touched:
            return after
        last = max(end, *(last for _, last in touched))
        first = last if begin == end else min(begin, *(first for first, _ in touched))
        return Document(before[:first] + added + before[last:], first + len(added))

    def keep_whole(self, session: PromptSession[str]) -> None:
        """Repair placeholders behind each key of the prompt."""
        buffer, processor = session.default_buffer, session.app.key_processor
        before = (0, "")

        def remember(_processor: Any) -> None:
            nonlocal before
            before = buffer.working_index, buffer.text

        def repair(_processor: Any) -> None:
            # Another line of the history is no edit.
            if buffer.working_index == before[0] and buffer.text != before[1]:
                buffer.document = self.repair(before[1], buffer.document)

        processor.before_key_press += remember
        processor.after_key_press += repair


def _common_length(first: str, second: str) -> int:
    """Return the number of characters with which both texts begin."""
    pairs = zip(first, second, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


class UnfoldedHistory(History):
    """A history that stores messages with their pasted texts in `storage`; answers to questions are left out."""

    def __init__(self, storage: History, unfold: Callable[[str], str], is_message: Callable[[], bool]) -> None:
        super().__init__()
        self._storage, self._unfold, self._is_message = storage, unfold, is_message

    def append_string(self, string: str) -> None:
        """Add a message with placeholders."""
        if self._is_message():
            super().append_string(self._unfold(string))

    def load_history_strings(self) -> Iterable[str]:
        """Return the stored messages, the last first."""
        return self._storage.load_history_strings()

    def store_string(self, string: str) -> None:
        """Store a message."""
        self._storage.store_string(string)
