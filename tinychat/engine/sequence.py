"""A sequence of tokens on an engine: the ids that have run, and their KV cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from operator import index
from pathlib import Path

from tinychat.engine.cache import KVCache
from tinychat.engine.cache_file import read_cache, write_cache
from tinychat.engine.context import DEFAULT_CONTEXT, check_context
from tinychat.engine.engine import Engine, Logits
from tinychat.engine.ids import exact_ids
from tinychat.engine.scheduled_chunk import ScheduledChunk
from tinychat.engine.states import state_bytes
from tinychat.errors import SettingError
from tinychat.machine import available_cores
from tinychat.models.rope import angle_set


class Sequence:
    """Token ids that have run on an engine, with their keys and values; `new_sequence` makes one.

    One thread at a time may use it. Sequences of one engine may be used by different threads: their steps take turns.
    """

    def __init__(self, engine: Engine, cache: KVCache) -> None:
        self.engine = engine
        self.cache = cache

    @property
    def vocab_size(self) -> int:
        """Length of one row of logits."""
        return self.engine.vocab_size

    def new_logits(self, rows: int) -> Logits:
        """Return memory for rows of logits: see `Engine.new_logits`."""
        return self.engine.new_logits(rows)

    @property
    def chunk_size(self) -> int:
        """Most ids that one step takes, but for the end of an image: see `step_ids`."""
        return self.engine.chunk_size

    @property
    def context_size(self) -> int:
        """Capacity of the cache in positions."""
        return self.cache.context_size

    @property
    def kv(self) -> str:
        """Type of the cache."""
        return self.cache.kv

    @property
    def ids(self) -> list[int]:
        """Token ids whose keys and values the cache holds; read-only for callers."""
        return self.cache.ids

    def reusable_prefix(self, ids: SequenceOf[int]) -> int:
        """Return how many leading ids the cache holds, with keys rotated as in the whole (`rope.angle_set`)."""
        wanted, found = self._angle_sets(len(ids))
        return self.cache.common_prefix(ids) if wanted is not None and wanted == found else 0

    def reuse(self, ids: SequenceOf[int]) -> int:
        """Bring the cache to the longest prefix of `ids` that this or another sequence has run; return its length.

        The last id is not part of it: the cache holds keys and values, not logits.
        """
        ids = exact_ids(ids)
        length = min(self.reusable_prefix(ids), len(ids) - 1)
        # Here a message ends, to which the conversation may come back.
        self.cache.insert_snapshot()
        self.cache.rewind(self.cache.resumable(length))
        self.cache.match_prefix(ids[:-1], len(ids), self.engine.images)
        return self.cache.length

    def insert_prefix(self) -> None:
        """Let later sequences with the same prefix use the cached blocks."""
        self.cache.insert_snapshot()
        self.cache.insert_prefix(self.cache.length)

    def insert_snapshot(self) -> None:
        """Cache the states of the layers that have one, so that `cut` can come back to here."""
        self.cache.insert_snapshot()

    def release(self) -> None:
        """Free all blocks; later sequences can use them until their memory is needed."""
        self.cache.clear()

    def evict(self) -> None:
        """Free all blocks, and evict those that no other sequence shares."""
        self.cache.evict()

    def rows_at_once(self, most: int) -> int:
        """Return how many of up to `most` ids one step may take with the result of as many steps.

        Fewer than a step holds where the angles of keys depend on how many follow: rows that turn out wrong would cost
        the others a second run. A state can be taken back to the next snapshot's position at most.
        """
        length = self.cache.length
        if self.cache.states is not None:
            most = min(most, self.cache.states.until_snapshot)
        most = min(most, self.context_size - length, self.chunk_size)
        first = angle_set(self.engine.config, length + 1)
        if first is None:
            return min(most, 1)
        return next((n for n in range(most, 1, -1) if angle_set(self.engine.config, length + n) == first), min(most, 1))

    @property
    def cache_bytes(self) -> int:
        """Memory of keys and values."""
        return self.cache.length * self.engine.pool.position_bytes

    @property
    def state_bytes(self) -> int:
        """Memory of the states that go with them, 0 for models without any."""
        snapshots = self.cache.snapshots
        last = self.cache.states is not None and self.cache.length > max([0, *(position for position, _ in snapshots)])
        return sum(state.numbers.nbytes for _, state in snapshots) + last * state_bytes(self.engine.config)

    @property
    def saved_bytes(self) -> int:
        """Size of the file that `save` would write, about."""
        states = sum(state.numbers.nbytes for _, state in self.cache.snapshots)
        return self.cache.lasting * self.engine.pool.position_bytes + states

    def save(self, path: Path) -> bool:
        """Write keys and values to a file; return whether there are any (SessionError if it cannot be written)."""
        return write_cache(path, self.cache, self.engine.origin)

    def load(self, path: Path) -> int:
        """Insert the keys and values of a file as a prefix for later prompts; return its length."""
        return read_cache(path, self.engine.pool, self.engine.origin)

    def rewind(self, length: int) -> None:
        """Cut the cache to `length` positions, and compute again what was freed of them, or is no longer cached."""
        ids = self.ids[:length]
        resumable = self.cache.resumable(len(ids))
        if resumable == len(ids):
            self.cache.rewind(resumable)
        else:
            self._run_again(ids, self.cache.angles_of, resumable)

    def cut(self, length: int) -> None:
        """Cut the cache to `length` positions, or to fewer where a state cannot be taken back so far."""
        self.cache.rewind(self.cache.resumable(length))

    @property
    def has_state(self) -> bool:
        """Whether layers have a state: what is left of a draft is run again together with the next token."""
        return self.cache.states is not None

    def drop(self, start: int, stop: int) -> None:
        """Drop positions ``start..stop``: later keys are re-rotated.

        Where blocks were freed, all from `start` on leaves the cache, or all, and may be run again; with a state, all
        from a snapshot before `start` on.
        """
        start, stop = index(start), index(stop)
        if not 0 <= start <= stop <= self.cache.length:
            raise SettingError(f"positions {start} to {stop} cannot be dropped: there are {self.cache.length}")
        if self.cache.can_move:
            self.cache.drop(start, stop)
        else:
            self.cache.rewind(self.cache.resumable(start))

    def resize(self, context_size: int) -> None:
        """Set the capacity; SettingError if it is less than the length, or more than this machine's memory."""
        context_size = index(context_size)
        _reserve(self.engine, context_size)
        self.cache.resize(context_size)

    def on_changed_engine(
        self, *, kv: str = "", threads: int = 0, progress: Callable[[int, int], None] | None = None
    ) -> Sequence:
        """Return a sequence of the same ids on an engine with another type of caches, or another number of threads.

        Keys and values are taken over: what was rounded to the old type is not what a fresh run computes.
        """
        engine = self.engine.changed(kv or self.kv, min(threads or self.engine.threads, available_cores()))
        engine.compile(progress)
        other = new_sequence(engine, self.context_size)
        if self.cache.can_move:
            other.cache = self.cache.copy(engine.pool)
        else:
            other._run_again(self.ids, self.cache.angles_of)
        return other

    def another(self) -> Sequence:
        """Return a sequence of the same engine and capacity, without tokens."""
        return new_sequence(self.engine, self.context_size)

    def fork(self) -> Sequence:
        """Return another sequence of the same ids and capacity, which shares the blocks."""
        return Sequence(self.engine, self.cache.fork())

    def chunk(
        self, ids: SequenceOf[int], sequence_length: int, outputs: int = 1, second: int | None = None
    ) -> ScheduledChunk:
        """Return ids of this sequence for a batch: see `Engine.run`."""
        return ScheduledChunk(self.cache, ids, sequence_length, outputs, second=second)

    def step_ids(self, ids: SequenceOf[int], first: int = 0, count: int | None = None) -> Iterator[SequenceOf[int]]:
        """Yield the ids of each step, about `count` of `chunk_size` by default, from index `first` on."""
        images, most = self.engine.images, self.engine.most_rows
        while first < len(ids):
            length = count or self.chunk_size
            if images is not None:
                length = images.step_length(ids[first : first + most + 1], length, most)
            yield ids[first : first + length]
            first += length

    def step(
        self, ids: SequenceOf[int], sequence_length: int | None = None, *, outputs: int = 1, out: Logits | None = None
    ) -> Logits:
        """Run ids, as `step_ids` gives them, after the others; return the logits, float32 [outputs, vocab_size].

        Parameters
        ----------
        ids : sequence of int
        sequence_length : int, optional
            Positions that the whole prompt will take, of which `ids` may be a part: the rotary angles of some models
            depend on it.
        outputs : int
            Number of the last ids after which to return logits.
        out : float32 [>= outputs, vocab_size], optional
            Memory for them, of `new_logits`: see `Engine.run`, which also lists the errors.
        """
        if not 1 <= outputs <= len(ids):
            raise SettingError(f"logits after {outputs} of {len(ids)} tokens: give 1 to {len(ids)}")
        sequence_length = max(self.cache.length + len(ids), sequence_length or 0)
        chunk = self.chunk(ids, sequence_length, outputs)
        chunk.check()
        if self._needs_other_angles(sequence_length):
            self._run_again(self.ids, sequence_length)
        return self.engine.run([chunk], out)[0]

    def _angle_sets(self, sequence_length: int) -> tuple[int | None, int | None]:
        """Return the set of angles of a sequence of so many tokens, and that of the keys in the cache."""
        config = self.engine.config
        return angle_set(config, sequence_length), angle_set(config, self.cache.angles_of)

    def _needs_other_angles(self, sequence_length: int) -> bool:
        """Return whether growth to so many tokens changes the set of angles, as longrope's do once."""
        wanted, found = self._angle_sets(sequence_length)
        return self.cache.length > 0 and None not in (wanted, found) and wanted != found

    def _run_again(self, ids: SequenceOf[int], sequence_length: int, first: int = 0) -> None:
        """Compute keys and values of `ids` again from index `first` on, with the angles of so many tokens.

        Those from an image on that is gone are left out.
        """
        ids = list(ids)
        if self.engine.images is not None:
            ids = ids[: self.engine.images.known_prefix(ids)]
        self.cache.rewind(first)
        for part in self.step_ids(ids, first):
            self.engine.run([self.chunk(part, sequence_length)])


def new_sequence(engine: Engine, context_size: int | None = None) -> Sequence:
    """Return a sequence without tokens.

    context_size : capacity of its cache; the model's own when omitted, at most 8192. SettingError if it is out of
    range, or needs more than this machine's memory.
    """
    if context_size is None:
        context_size = min(engine.config.max_position_embeddings, DEFAULT_CONTEXT)
    context_size = index(context_size)
    _reserve(engine, context_size)
    return Sequence(engine, KVCache(engine.pool, context_size))


def _reserve(engine: Engine, context_size: int) -> None:
    """Let a sequence of so many positions fit; SettingError if it cannot."""
    check_context(context_size)
    try:
        engine.pool.reserve(context_size)
    except MemoryError:
        raise SettingError(f"a context of {context_size} tokens needs more memory than there is") from None
