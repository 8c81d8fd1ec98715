"""The time of a step by kind of stage: each as it runs, on all threads, from barrier to barrier."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from tinychat.engine.counting import Cost
from tinychat.engine.sequence import Sequence
from tinychat.errors import SettingError

ROUNDS = 5


def profile(sequence: Sequence, T: int, start: int) -> list[dict[str, object]]:
    """Time each kind of stage for `T` tokens after `start` others, most expensive first; the sequence is emptied.

    Rows have `kernel`, `seconds` over all layers, their `share`, `bytes` that are read, `multiply_adds`. `SettingError`
    if the tokens do not fit into a step or the context.
    """
    if T > sequence.chunk_size or start + T > sequence.context_size:
        raise SettingError(f"{T} tokens after {start} do not fit into a context of {sequence.context_size}")
    ids = np.random.default_rng(1).integers(0, sequence.vocab_size, start + T).tolist()
    sequence.rewind(0)
    for first in range(0, start, sequence.chunk_size):
        sequence.step(ids[first : min(first + sequence.chunk_size, start)])
    seconds = np.median([seconds_of_stages(sequence, ids[start:]) for _ in range(ROUNDS)], axis=0)
    sequence.rewind(0)
    by_kind: dict[str, list[tuple[float, Cost]]] = defaultdict(list)
    for cost, taken in zip(sequence.engine.costs(T, start), seconds.tolist(), strict=True):
        by_kind[cost.kind].append((taken, cost))
    rows = []
    for kind, found in sorted(by_kind.items(), key=lambda item: -sum(taken for taken, _ in item[1])):
        taken = sum(taken for taken, _ in found)
        work = {name: sum(getattr(cost, name) for _, cost in found) for name in ("bytes", "multiply_adds")}
        rows.append({"kernel": kind, "seconds": taken, "share": taken / float(seconds.sum()), **work})
    return rows


def seconds_of_stages(sequence: Sequence, ids: list[int]) -> np.ndarray:
    """Return the seconds of each stage of a step; the sequence is afterwards as it was."""
    start = len(sequence.ids)
    found = sequence.engine.stage_seconds(lambda: sequence.step(ids))
    sequence.rewind(start)
    return found
