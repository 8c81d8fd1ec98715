"""Detection of replies that repeat themselves in a loop.

Each token is predicted: the one that followed when the four tokens before it last occurred. A correct prediction counts
for a loop and a wrong one against it, the more the newer the token is: so a loop may vary, and may have any length. A
number that begins a line, as in a list, is predicted whatever it is; any other number shows counting,
unless it followed the same token before. In a structure that a grammar describes, such as the arguments of a call, a
loop must have gone round once, too: a text may be copied there.

The bounds are those of `scripts/measure_loops.py`: of 185 replies of SmolLM2-135M-Instruct that ran into the limit of
1500 tokens, 183 end by them, half of them within 121 tokens of the loop's beginning, and the two others count days.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from tinychat.generate.constraint_state import Region
from tinychat.generate.text_shape import TextShape

# Loops are found by so many tokens that were said before.
_KNOWN_BY = 4
# So many right guesses are a loop: in prose; in code, tables and numbers, word for word; there, but for a few changes.
PROSE, LITERAL, STRUCTURED = 120, 196, 600
# What wrong guesses cost: of a token that was said before, of a word that was not, of a number that counts.
_WRONG, _NEW, _COUNTED = 1, 12, 20
# Signs and spaces that go on for longer say nothing by themselves.
_WORDLESS = 8
# Stands for each number that begins a line.
_ANY_NUMBER = -1
# How many tokens are looked at once only, as long as they come again soon.
_RECENT = 4096
# What follows the number of an item.
_MARKS = (b".", b")", b":")


class _Kind(IntEnum):
    SIGN, NUMBER, WORD = range(3)


class _Token(NamedTuple):
    kind: _Kind
    text: bytes


class LoopDetector:
    """Follows the tokens of one reply."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._shape = TextShape()
        # Whether the last token was in prose, not in a structure that a grammar describes.
        self._is_prose = True
        self._spelled: dict[int, _Token] = {}
        self._ids: list[int] = []
        self._entries: list[int] = []
        # Where the text went on when the last four entries came before.
        self._positions: dict[tuple[int, ...], int] = {}
        # Which entry followed which.
        self._pairs: set[tuple[int, ...]] = set()
        # Where the token stands that is guessed to come next.
        self._source: int | None = None
        # Right guesses word for word in a row, what speaks for a loop, and tokens since the last word.
        self._literal = self._score = self._wordless = 0
        self._awaits_mark = False

    def add(self, token_id: int, region: Region = Region.PROSE) -> bool:
        """Add the next token; return whether the reply is in a loop."""
        is_new, is_prose = token_id not in self._spelled, region is Region.PROSE
        token = self._token(token_id)
        begins_line = token.kind is _Kind.NUMBER and is_prose and self._shape.is_at_beginning
        entry = _ANY_NUMBER if begins_line else token_id
        self._wordless = 0 if token.kind is _Kind.WORD else self._wordless + 1
        self._check_mark(token)
        is_known = (*self._entries[-1:], entry) in self._pairs
        counts = token.kind is _Kind.NUMBER and not begins_line and not is_known
        cost = _COUNTED if counts else _NEW if is_new and token.kind is _Kind.WORD else _WRONG
        is_alike = self._judge(token_id, entry, cost)
        self._go_on(token_id, entry, is_alike)
        was_prose, self._is_prose = self._is_prose, is_prose
        if not is_prose:
            return self._is_loop_of_structure()
        return self._is_loop(self._shape.is_structured or not was_prose, self._shape.add(token.text))

    def _is_loop_of_structure(self) -> bool:
        """Return whether a structure repeats itself: it may say a text twice, such as a passage and its change."""
        period = 0 if self._source is None else len(self._ids) - self._source
        return self._literal >= max(LITERAL, period) or self._score >= max(STRUCTURED, period)

    def _is_loop(self, was_structured: bool, is_structured: bool) -> bool:
        if was_structured and not is_structured:
            # What a table says again and again is not held against the text below it.
            self._literal = self._score = 0
        literally = PROSE if not is_structured and self._wordless <= _WORDLESS else LITERAL
        return self._literal >= literally or self._score >= (STRUCTURED if is_structured else PROSE)

    def _token(self, token_id: int) -> _Token:
        if token_id not in self._spelled:
            self._spelled[token_id] = _token(self._token_bytes(token_id))
        return self._spelled[token_id]

    def _check_mark(self, token: _Token) -> None:
        """Take back that a number began an item, unless the mark of one follows: "12 bottles" counts, "12. A" lists."""
        if self._awaits_mark and token.kind is not _Kind.NUMBER:
            self._awaits_mark = False
            if token.text.strip()[:1] not in _MARKS:
                self._score = max(0, self._score - _COUNTED)

    def _judge(self, token_id: int, entry: int, cost: int) -> bool:
        """Count the token for or against a loop; return whether it was predicted."""
        source = self._source
        is_alike = source is not None and self._entries[source] == entry
        if source is not None and self._ids[source] == token_id:
            self._literal += 1
            self._score += self._wordless <= _WORDLESS
            return is_alike
        self._literal = 0
        if is_alike:
            self._awaits_mark = True
        else:
            self._score = max(0, self._score - cost)
        return is_alike

    def _go_on(self, token_id: int, entry: int, is_alike: bool) -> None:
        """Append the token, and choose the source of the next prediction."""
        self._ids.append(token_id)
        self._entries.append(entry)
        self._pairs.add((*self._entries[-2:],))
        if self._source is not None:
            # Also behind a wrong guess: a loop may differ in a word.
            self._source += 1
        if len(self._entries) >= _KNOWN_BY:
            key = tuple(self._entries[-_KNOWN_BY:])
            position = self._positions.get(key)
            if position is not None and not is_alike:
                self._source = position
            self._positions[key] = len(self._entries)


@lru_cache(_RECENT)
def _token(text: bytes) -> _Token:
    plain = text.strip()
    if plain.isdigit():
        return _Token(_Kind.NUMBER, text)
    # Bytes beyond ASCII are letters of other languages, but for a few signs.
    return _Token(_Kind.WORD if any(byte > 127 or chr(byte).isalpha() for byte in plain) else _Kind.SIGN, text)
