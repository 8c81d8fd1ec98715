"""Noticing that a reply has begun to repeat itself."""

from __future__ import annotations

from collections.abc import Iterable
from operator import eq

# That long has the reply said the same over and over, and so long at most is what it repeats.
TOKENS, LONGEST = 200, 66
# Of the tokens, how many must come again: a list whose numbers go on repeats itself too, a table does not.
_SHARE = 0.85
# Looking costs little, but not with every token.
_TOKENS_BETWEEN_LOOKS = 20

NOTICE = "the reply repeats itself"


class Repetition:
    """Follows the tokens of one reply.

    Attributes
    ----------
    found : bool
        Whether it has repeated itself for `TOKENS` tokens.
    """

    def __init__(self) -> None:
        self.found = False
        self._ids: list[int] = []
        self._unseen = 0

    def add(self, ids: Iterable[int]) -> bool:
        """Take the next tokens; return True once, when the reply is found to repeat itself."""
        before = len(self._ids)
        self._ids.extend(ids)
        self._unseen += len(self._ids) - before
        if self.found or self._unseen < _TOKENS_BETWEEN_LOOKS:
            return False
        self._unseen = 0
        self._ids = self._ids[-TOKENS:]
        self.found = len(self._ids) == TOKENS and is_periodic(self._ids, LONGEST)
        return self.found


def is_periodic(ids: list[int], longest: int) -> bool:
    """Return whether `ids` are a run of at most `longest` of them, over and over, but for a few that change."""
    return any(sum(map(eq, ids[period:], ids)) >= _SHARE * (len(ids) - period) for period in range(1, longest + 1))
