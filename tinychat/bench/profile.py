"""Where a token's time goes: each stage of the forward pass as it runs, on all threads, from barrier to barrier."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tinychat.engine.counting import Cost
from tinychat.errors import SettingError

if TYPE_CHECKING:
    from tinychat.engine.sequence import Sequence

ROUNDS = 5


@dataclass(frozen=True)
class Share:
    """The share of one kind of stage in a step of T tokens: seconds over all layers, bytes read, multiply-adds."""

    kernel: str
    seconds: float
    share: float
    bytes: int
    multiply_adds: int


def profile(sequence: Sequence, T: int, start: int) -> list[dict[str, object]]:
    """Time each kind of stage for `T` tokens after `start`, most expensive first.

    Parameters
    ----------
    sequence : Sequence
        It is emptied.
    T : int
        At most the sequence's chunk size.
    start : int
        Positions before them.

    Raises
    ------
    SettingError
        If they do not fit.
    """
    if T > sequence.chunk_size or start + T > sequence.context_size:
        raise SettingError(f"{T} tokens after {start} do not fit into a context of {sequence.context_size}")
    ids = np.random.default_rng(1).integers(0, sequence.vocab_size, start + T).tolist()
    sequence.rewind(0)
    for first in range(0, start, sequence.chunk_size):
        sequence.step(ids[first : min(first + sequence.chunk_size, start)])
    seconds = np.median([seconds_of_stages(sequence, ids[start:]) for _ in range(ROUNDS)], axis=0)
    sequence.rewind(0)
    total = float(seconds.sum())
    by_kind: dict[str, list[tuple[float, Cost]]] = defaultdict(list)
    for cost, taken in zip(sequence.engine.costs(T, start), seconds.tolist(), strict=True):
        by_kind[cost.kind].append((taken, cost))
    shares = [
        Share(
            kind,
            sum(taken for taken, _ in found),
            sum(taken for taken, _ in found) / total,
            sum(cost.bytes for _, cost in found),
            sum(cost.multiply_adds for _, cost in found),
        )
        for kind, found in by_kind.items()
    ]
    return [asdict(share) for share in sorted(shares, key=lambda share: -share.seconds)]


def seconds_of_stages(sequence: Sequence, ids: list[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the time and work of each stage of a step; the sequence is afterwards as it was."""
    start = len(sequence.ids)
    found = sequence.engine.stage_seconds(lambda: sequence.step(ids))
    sequence.rewind(start)
    return found
