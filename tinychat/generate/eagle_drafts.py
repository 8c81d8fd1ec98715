"""Drafts by EAGLE-3, which reads hidden states of several layers of the model: see `tinychat.models.eagle`.

It follows the steps of the model as a draft head does: see `generate.head_drafts`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tinychat.generate.drafter_drafts import DrafterDrafts
from tinychat.generate.head_drafts import HeadText, States, StatesText
from tinychat.models.eagle import STATES_NORM, Eagle

if TYPE_CHECKING:
    from tinychat.engine.cache import KVCache
    from tinychat.engine.engine import Engine
    from tinychat.engine.sequence import Sequence as TokenSequence
    from tinychat.models.folder import ModelFolder

# Positions whose hidden states EAGLE-3's text holds, of several layers: 25 MB of a model of 8 billion weights.
WINDOW = 256


class EagleText(HeadText):
    """The text of one reply, and EAGLE-3's sequence, which holds its ids from `_first` on."""

    def __init__(self, sequence: TokenSequence, eagle: Eagle, gains: States | None) -> None:
        super().__init__(sequence, eagle.states, WINDOW)
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
