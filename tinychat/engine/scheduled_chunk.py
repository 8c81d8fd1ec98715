"""Ids of one sequence that run in a step of the engine, beside those of others."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from operator import index
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tinychat.engine.cache import KVCache
from tinychat.engine.ids import exact_ids
from tinychat.errors import ContextError, SettingError


class ScheduledChunk(NamedTuple):
    """Consecutive ids of one sequence that run in a step."""

    cache: KVCache  # of the engine's pool
    ids: SequenceOf[int]
    sequence_length: int  # positions that the whole prompt will take, of which the ids may be a part
    outputs: int = 1  # after how many of the last ids to give logits
    # For a draft head or a drafter, the larger model's hidden states before the ids, or, of one id, its own: float32
    # [ids, D]. EAGLE-3's chunks of a step have all the former, or all the latter.
    # For a vision tower with a `position_grid`, the vectors of the patches' positions.
    hidden: NDArray[np.float32] | None = None
    second: int | None = None  # position from which on tokens are of the second kind: see `ModelConfig.token_kinds`
    # For a vision tower, the patches of a tile, float32 [ids, patch_columns]; the ids say only how many there are.
    rows: NDArray[np.float32] | None = None
    # For a vision tower that rotates, cosines, then sines of each patch's angles: float32 [ids, rotary_dim].
    turns: NDArray[np.float32] | None = None

    def exact(self) -> ScheduledChunk:
        """Return the chunk with plain integers: see `exact_ids`."""
        ids, length, outputs = exact_ids(self.ids), index(self.sequence_length), index(self.outputs)
        return ScheduledChunk(self.cache, ids, length, outputs, self.hidden, self.second, self.rows, self.turns)

    def check(self) -> None:
        """Refuse ids that do not fit into the cache, with a ContextError, and outputs after more ids than there are."""
        count, context_size = len(self.ids), self.cache.context_size
        if not 0 <= self.outputs <= count:
            raise SettingError(f"logits after {self.outputs} of {count} tokens: give 0 to {count}")
        stop = self.cache.length + count
        if stop > context_size:
            raise ContextError(
                f"{stop} tokens do not fit into a context of {context_size}: shorten the text, or use a larger context"
            )
