"""Tokens that are matched as a whole before the rest of a text is split."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tinychat.text.guard import GUARD_END, GUARD_START, spelling_pattern, unguard

_SPACES = re.compile(r"\s*")


@dataclass(frozen=True)
class AddedToken:
    """One added token; plain text can never spell a `special` one. `lstrip`, `rstrip`: it takes spaces beside it."""

    content: str
    id: int
    special: bool
    lstrip: bool = False
    rstrip: bool = False


class AddedTokenSplitter:
    """Splits rendered text at its added tokens outside of guarded spans."""

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self._by_content = {token.content: token for token in tokens}
        spelled = spelling_pattern(self._by_content).pattern
        self._cut = re.compile(f"{GUARD_START}(?:{spelled}){GUARD_END}|({spelled})")

    def split(self, text: str) -> list[str | AddedToken]:
        """Return the plain texts between added tokens, unmarked and never empty, and the tokens, in order."""
        parts: list[str | AddedToken] = []
        start = 0
        for match in self._cut.finditer(text):
            if match[1] is None:
                continue
            token = self._by_content[match[1]]
            before = unguard(text[start : match.start()])
            parts += [before.rstrip() if token.lstrip else before, token]
            start = match.end()
            if token.rstrip:
                start = _SPACES.match(text, start).end()  # type: ignore[union-attr]
        return [part for part in [*parts, unguard(text[start:])] if part != ""]
