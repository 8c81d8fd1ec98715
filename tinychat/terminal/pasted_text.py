"""Long pasted texts, which the prompt shows as a placeholder until the message is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable

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
