"""What the generation loop needs of a sequence: ids in, logits out, and a past that it can rewind."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Ids = abc.Sequence[int]
Logits = npt.NDArray[np.float32]


class Engine(Protocol):
    """What runs rows of several sequences at once.

    Attributes
    ----------
    vocab_size : int
        Length of one row of logits.
    chunk_size : int
        Most ids that run at once.
    trained_length : int
        Positions that the model was trained on: longer sequences run, but their replies lose their sense.
    threads : int
        How many compute together, at most.
    """

    @property
    def vocab_size(self) -> int: ...  # noqa: D102
    @property
    def chunk_size(self) -> int: ...  # noqa: D102
    @property
    def trained_length(self) -> int: ...  # noqa: D102
    @property
    def threads(self) -> int: ...  # noqa: D102

    def sequence(self, context_size: int | None = None) -> Sequence:
        """Return a new sequence."""
        ...

    def new_logits(self, rows: int) -> Logits:
        """Return memory for so many rows of logits, for `run`."""
        ...

    def run(self, spans: abc.Sequence[Any], out: Logits | None = None) -> list[Logits]:
        """Run what `Sequence.span` gave for several sequences; return the logits of each, float32 [outputs, vocab].

        `out` is memory for them, float32 [>= outputs of all, vocab], for callers who are soon done with them.
        """
        ...


class Sequence(Protocol):
    """Token ids that have run, and the cache of their keys and values.

    Attributes
    ----------
    engine : Engine
        What runs it.
    vocab_size : int
        Length of one row of logits.
    context_size : int
        Capacity of the cache in positions.
    kv : str
        Type of the cache.
    chunk_size : int
        Most ids that one `step` takes.
    ids : list of int
        Token ids whose keys and values the cache holds; read-only for callers.
    saved_bytes : int
        About as many as `save` would write.
    """

    @property
    def engine(self) -> Engine: ...  # noqa: D102
    @property
    def vocab_size(self) -> int: ...  # noqa: D102
    @property
    def context_size(self) -> int: ...  # noqa: D102
    @property
    def kv(self) -> str: ...  # noqa: D102
    @property
    def chunk_size(self) -> int: ...  # noqa: D102
    @property
    def ids(self) -> list[int]: ...  # noqa: D102

    def reusable_prefix(self, ids: Ids) -> int:
        """Return how many leading ids of `ids` the cache holds and may use again."""
        ...

    def reuse(self, ids: Ids) -> int:
        """Bring the cache to the longest beginning of `ids` that can be had without the last; return its length."""
        ...

    def remember(self) -> None:
        """Let later sequences that begin alike use what this one holds."""
        ...

    def release(self) -> None:
        """Give all memory back."""
        ...

    @property
    def saved_bytes(self) -> int: ...  # noqa: D102

    def save(self, path: Path) -> bool:
        """Write the cache to a file, for another process with the same model; return whether it held anything."""
        ...

    def recall(self, path: Path) -> int:
        """Let `reuse` find what `save` wrote; return how many tokens that are, 0 if the file is of something else."""
        ...

    def span(self, ids: Ids, sequence_length: int, outputs: int = 1) -> Any:
        """Return ids to run in a step beside those of other sequences: see `Engine.run`."""
        ...

    def rows_at_once(self, most: int) -> int:
        """Return how many of up to `most` ids one `step` may take and give each what it would give it alone."""
        ...

    def on_changed_engine(
        self, *, kv: str = "", threads: int = 0, progress: Callable[[int, int], None] | None = None
    ) -> Sequence:
        """Return a sequence of the same ids with another type of cache or threads; `progress` as kernels compile."""
        ...

    def new_logits(self, rows: int) -> Logits:
        """Return memory for so many rows of logits, for `step`."""
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

    def step(
        self, ids: Ids, sequence_length: int | None = None, *, outputs: int = 1, out: Logits | None = None
    ) -> Logits:
        """Run `ids` after the cached ones and return the logits after the last `outputs` of them.

        `sequence_length` is that of the whole prompt of which `ids` may be a part; `out` as in `Engine.run`.

        Returns
        -------
        float32 [outputs, vocab_size]
        """
        ...


def logits_after(sequence: Sequence, ids: Ids) -> Logits:
    """Return the logits of the token after `ids`, float32 [vocab_size]; what is cached of them does not run again."""
    # At least the last id runs: the cache holds no logits.
    for start in range(sequence.reuse(ids), len(ids), sequence.chunk_size):
        logits = sequence.step(ids[start : start + sequence.chunk_size], len(ids))
    last: Logits = logits[-1]
    return last


def logits_of_all(sequence: Sequence, ids: Ids) -> Logits:
    """Run `ids` from an empty context and return the logits after each of them, float32 [T, vocab_size]."""
    sequence.rewind(0)
    rows = np.empty((len(ids), sequence.vocab_size), np.float32)
    for start in range(0, len(ids), sequence.chunk_size):
        part = ids[start : start + sequence.chunk_size]
        rows[start : start + len(part)] = sequence.step(part, len(ids), outputs=len(part))
    return rows
