"""What the generation loop needs from a model: ids in, logits out, and a cache that it can rewind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]


class Engine(Protocol):
    """A decoder with its KV cache.

    Attributes
    ----------
    vocab_size : int
        Length of one row of logits.
    context_size : int
        Capacity of the cache in positions.
    chunk_size : int
        Most ids that one `step` takes.
    cached_ids : list of int
        Token ids whose keys and values the cache holds; read-only for callers.
    """

    @property
    def vocab_size(self) -> int: ...  # noqa: D102
    @property
    def context_size(self) -> int: ...  # noqa: D102
    @property
    def chunk_size(self) -> int: ...  # noqa: D102
    @property
    def cached_ids(self) -> list[int]: ...  # noqa: D102

    def reusable_prefix(self, ids: Sequence[int]) -> int:
        """Return how many leading ids of `ids` the cache holds and may use again."""
        ...

    def rewind(self, length: int) -> None:
        """Keep only the first `length` positions of the cache."""
        ...

    def drop(self, start: int, stop: int) -> None:
        """Take positions ``start..stop`` out of the cache; what follows moves down and keeps its keys and values."""
        ...

    def resize(self, context_size: int) -> None:
        """Give the cache another capacity; what it holds stays."""
        ...

    def step(self, ids: Sequence[int], sequence_length: int | None = None) -> Logits:
        """Run `ids` after the cached ones and return the last one's logits.

        `sequence_length` is that of the whole prompt of which `ids` may be a part.

        Returns
        -------
        float32 [vocab_size]
            A view that the next step overwrites.
        """
        ...

    def logits(self, ids: Sequence[int]) -> Logits:
        """Return the logits of all positions, float32 [T, vocab_size], from an empty context."""
        ...
