"""Long pastes, which stand in the prompt as a few words in brackets until the message is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prompt_toolkit.history import History

# More than that would push everything else off the screen.
MOST_LINES = 50


class PastedTexts:
    """Keeps what was pasted, by the words that stand for it."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def fold(self, text: str) -> str:
        """Return what stands in the prompt for a pasted text: itself, if it is short."""
        lines = text.removesuffix("\n").count("\n") + 1
        if lines <= MOST_LINES:
            return text
        words = f"[pasted {lines} lines]"
        count = 1
        while self._texts.get(words, text) != text:
            count += 1
            words = f"[pasted {lines} lines, {count}]"
        self._texts[words] = text
        return words

    def forget(self) -> None:
        """Begin another message."""
        self._texts.clear()

    def unfold(self, line: str) -> str:
        """Return a message with the pasted texts in their places."""
        for words, text in self._texts.items():
            line = line.replace(words, text)
        return line


class UnfoldedHistory(History):
    """A history of messages with the texts that were pasted into them.

    Parameters
    ----------
    kept : History
        Where they are kept.
    unfold : callable
        See `PastedTexts.unfold`.
    is_message : callable
        Whether what is typed now is one; anything else is not kept.
    """

    def __init__(self, kept: History, unfold: Callable[[str], str], is_message: Callable[[], bool]) -> None:
        super().__init__()
        self._kept, self._unfold, self._is_message = kept, unfold, is_message

    def append_string(self, string: str) -> None:
        """Take a message as it stands in the prompt."""
        if self._is_message():
            super().append_string(self._unfold(string))

    def load_history_strings(self) -> Iterable[str]:
        """Return what was kept, the last first."""
        return self._kept.load_history_strings()

    def store_string(self, string: str) -> None:
        """Keep a message."""
        self._kept.store_string(string)
