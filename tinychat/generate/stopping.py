"""Cutting a streamed text at the first stop string."""

from __future__ import annotations

from collections.abc import Iterable


class StopStringFilter:
    """Passes text through up to the first stop string (`found`), wherever it is cut.

    Text that may be the beginning of a stop string is held back until it is clear. The string that
    is complete first wins, so the result does not depend on how the text arrives.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        self._strings = tuple(strings)
        self._pending = ""
        self.found: str | None = None

    def add(self, text: str) -> str:
        """Return the text that is surely before any stop string."""
        if self.found is not None:
            return ""
        if not self._strings:
            return text
        pending = self._pending + text
        match = self._first_match(pending)
        if match is not None:
            end, self.found = match
            self._pending = ""
            return pending[: end - len(self.found)]
        passed = len(pending) - self._undecided(pending)
        self._pending = pending[passed:]
        return pending[:passed]

    def finish(self) -> str:
        """Return the text held back: no more comes, so it is not a stop string."""
        pending, self._pending = self._pending, ""
        return pending

    def _first_match(self, text: str) -> tuple[int, str] | None:
        """Return (end, string) of the match that is complete first, the longest of several."""
        starts = ((text.find(string), string) for string in self._strings)
        ends = ((start + len(string), string) for start, string in starts if start >= 0)
        return min(ends, key=lambda match: (match[0], -len(match[1])), default=None)

    def _undecided(self, text: str) -> int:
        """Return the length of the longest end of `text` that begins a stop string."""
        longest = max((len(string) for string in self._strings), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(string.startswith(text[-length:]) for string in self._strings):
                return length
        return 0
