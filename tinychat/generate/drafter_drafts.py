"""Drafts by a drafter, which reads the hidden states and the cache of the model itself: see `tinychat.models.drafter`.

All ids of a draft are written from the position of the last id that was chosen. So the drafter computes nothing that
stays, and follows any change of the text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tinychat.generate.drafts import LONGEST, Drafts
from tinychat.generate.head_drafts import HeadDrafts, States, StatesText

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tinychat.engine.cache import KVCache
    from tinychat.engine.engine import Engine
    from tinychat.engine.scheduled_chunk import ScheduledChunk
    from tinychat.engine.sequence import Sequence as TokenSequence
    from tinychat.models.folder import ModelFolder


class DrafterText(StatesText):
    """The text of one reply; `sequence` is the drafter's, of the cache in which the model has run the text."""

    def __init__(self, sequence: TokenSequence) -> None:
        drafter = sequence.engine.config.drafter
        assert drafter is not None
        super().__init__(sequence, drafter.hidden_size, LONGEST + 1)

    def follow(self, position: int, states: States, cache: KVCache) -> None:
        """Take the hidden states of a position and those after it, and the cache that they went into."""
        super().follow(position, states, cache)
        self.sequence.cache = cache

    @property
    def can_follow(self) -> bool:
        """Whether the cache has all but the last id, and the state before that is there."""
        return super().can_follow and len(self.sequence.ids) == len(self._text.ids) - 1

    def chunk(self, ids: Sequence[int]) -> ScheduledChunk:
        """Return an id for a step, with the state before it: the model's, or in a draft the drafter's own."""
        state = self.last_state[None] if self.drafted else self.states.read(len(self._text.ids) - 2, 1)
        return super().chunk(ids)._replace(hidden=state)


class DrafterDrafts(HeadDrafts):
    """Proposes what the text repeats, or what a drafter would write.

    sequence : of the model; drafter : its folder, as `open_drafter` gives it.
    """

    def __init__(
        self, sequence: TokenSequence, drafter: ModelFolder, progress: Callable[[int, int], None] | None = None
    ) -> None:
        self._larger, self._folder = sequence, drafter
        engine: Engine = sequence.engine.drafter(drafter)
        engine.compile(progress)
        super().__init__(_sequence_of(engine, sequence), sequence.vocab_size)

    def new_text(self) -> StatesText:
        """Return the text of another reply."""
        return DrafterText(self._sequence.another())

    def beside(self, sequence: TokenSequence) -> Drafts:
        """Return the same drafts where the sequence is of the same engine, else others."""
        is_same = sequence.engine is self._larger.engine
        return self if is_same else type(self)(sequence, self._folder)

    def _warm_text(self) -> StatesText:
        """Return a text of which the model has run an id: a query that sees no key has no result."""
        text, larger = self.new_text(), self._larger.another()
        larger.step([0])
        text.begin([0, 0])
        text.follow(0, larger.engine.last_states(0, 1), larger.cache)
        return text


def _sequence_of(engine: Engine, larger: TokenSequence) -> TokenSequence:
    from tinychat.engine.sequence import new_sequence

    return new_sequence(engine, larger.context_size)
