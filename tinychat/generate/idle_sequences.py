"""Idle sequences, cached for the next prompt with a common prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinychat.generate.drafts import DraftText
from tinychat.generate.sequence import Ids

if TYPE_CHECKING:
    from tinychat.engine.sequence import Sequence

MOST = 4
# A run takes a sequence that has so many more tokens than it can use only where it is alone.
LOST = 64


class IdleSequences:
    """The sequences that no run uses, each with the text of its drafts; the last used is last."""

    def __init__(self) -> None:
        self._idle: list[tuple[Sequence, DraftText | None]] = []

    def __len__(self) -> int:
        return len(self._idle)

    @property
    def sequences(self) -> list[Sequence]:
        """All of them, the least recently used first."""
        return [sequence for sequence, _ in self._idle]

    @property
    def last(self) -> Sequence:
        """The most recently used sequence."""
        return self._idle[-1][0]

    def put(self, sequence: Sequence, text: DraftText | None = None) -> None:
        """Insert a sequence, and evict the least recently used one of too many."""
        self._idle.append((sequence, text))
        if len(self._idle) > MOST:
            self.release_oldest()

    def take(self, ids: Ids, beside_others: bool) -> tuple[Sequence, DraftText | None] | None:
        """Return the sequence with the longest common prefix.

        None if there is none, or if others run and the conversation of the best one would lose much of its cache.
        """
        shared = [sequence.reusable_prefix(ids) for sequence, _ in self._idle]
        if not shared:
            return None
        best = max(range(len(shared)), key=lambda i: (shared[i], i))
        if beside_others and len(self._idle) < MOST and len(self._idle[best][0].ids) - shared[best] > LOST:
            return None
        return self._idle.pop(best)

    def drop_texts(self) -> None:
        """Drop the texts of drafts: those to come are of another kind."""
        self._idle = [(sequence, None) for sequence, _ in self._idle]

    def release_all_but(self, count: int) -> None:
        """Evict all but the `count` most recently used sequences."""
        while len(self._idle) > count:
            self.release_oldest()

    def release_oldest(self) -> bool:
        """Evict the least recently used sequence; False if there is none."""
        if not self._idle:
            return False
        self._idle.pop(0)[0].release()
        return True


def cut_cache(sequence: Sequence, ids: Ids, removed: int) -> None:
    """Remove `removed` positions from a cache where it first differs from `ids`, if the rest continues them."""
    start = sequence.reusable_prefix(ids)
    stop, cached = start + removed, sequence.ids
    if start < len(ids) and stop < len(cached) and cached[stop] == ids[start]:
        sequence.drop(start, stop)
