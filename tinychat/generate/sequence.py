"""Logits of a sequence: after the last of its ids, or after each of them."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tinychat.engine.sequence import Sequence

Ids = abc.Sequence[int]
Logits = npt.NDArray[np.float32]


def logits_after(sequence: Sequence, ids: Ids, before_step: Callable[[], None] = lambda: None) -> Logits:
    """Return the logits of the token after `ids`, float32 [vocab_size], computing only what is not cached."""
    # At least the last id runs: the cache holds no logits.
    for part in sequence.step_ids(ids, sequence.reuse(ids)):
        before_step()
        logits = sequence.step(part, len(ids))
    last: Logits = logits[-1]
    return last


def logits_of_all(sequence: Sequence, ids: Ids, before_step: Callable[[], None] = lambda: None) -> Logits:
    """Run `ids` from an empty context and return the logits after each of them, float32 [T, vocab_size]."""
    sequence.rewind(0)
    rows, start = np.empty((len(ids), sequence.vocab_size), np.float32), 0
    for part in sequence.step_ids(ids):
        before_step()
        rows[start : start + len(part)] = sequence.step(part, len(ids), outputs=len(part))
        start += len(part)
    return rows
