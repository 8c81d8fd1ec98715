"""Drafts by a drafter, which reads the hidden states of the model itself: see `models.drafter` and `models.eagle`.

All ids of a draft by one of Gemma 4's drafters are written from the position of the last id that was chosen. So it
computes nothing that stays, and follows any change of the text. EAGLE-3 follows the model as a draft head does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tinychat.generate.drafts import LONGEST, Drafts
from tinychat.generate.head_drafts import HeadDrafts, HeadText, States, StatesText
from tinychat.models.eagle import STATES_NORM, Eagle

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


class EagleText(HeadText):
    """The text of one reply, and EAGLE-3's sequence, which holds its ids from `_first` on."""

    def __init__(self, sequence: TokenSequence, eagle: Eagle, gains: States | None) -> None:
        super().__init__(sequence, eagle.states)
        self._gains = gains

    def follow(self, position: int, states: States, cache: KVCache) -> None:
        """Take the hidden states of a position and those after it, normed as EAGLE-3 reads them."""
        if self._gains is not None:
            parts = states.reshape(len(states), *self._gains.shape)
            epsilon = np.float32(self.sequence.engine.config.rms_norm_eps)
            scales = np.sqrt(np.mean(parts * parts, axis=2, keepdims=True) + epsilon)
            states = (parts / scales * self._gains).reshape(states.shape)
        super().follow(position, states, cache)


class EagleDrafts(DrafterDrafts):
    """Proposes what the text repeats, or what EAGLE-3 would write."""

    def __init__(
        self, sequence: TokenSequence, drafter: ModelFolder, progress: Callable[[int, int], None] | None = None
    ) -> None:
        assert drafter.config.eagle is not None
        gains = drafter.tensors.get(STATES_NORM)
        self._eagle, self._gains = drafter.config.eagle, None if gains is None else np.asarray(gains, np.float32)
        sequence.engine.keep_states(self._eagle.layers)
        super().__init__(sequence, drafter, progress)

    def new_text(self) -> StatesText:
        """Return the text of another reply."""
        return EagleText(self._sequence.another(), self._eagle, self._gains)

    def _warm_text(self) -> StatesText:
        return self.new_text()

    def _states(self, engine: Engine, first: int, stop: int) -> States:
        return engine.kept_states(first, stop)


def _sequence_of(engine: Engine, larger: TokenSequence) -> TokenSequence:
    from tinychat.engine.sequence import new_sequence

    return new_sequence(engine, larger.context_size)
