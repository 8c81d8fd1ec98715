"""The KV cache of one sequence: its table of blocks of the pool.

Short convolutions store what they need of a token there too, as keys and values that are not rotated. Layers with a
state have it in `states`, and what is cached of it in the pool (`engine.states`).

A step appends in place. A rewrite reads old blocks and fills new ones, which then replace them: one that fails leaves
the old cache valid.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tinychat.engine.blocks import BlockPool, blocks_for
from tinychat.engine.ids import common_length
from tinychat.engine.image_ids import ImageIds
from tinychat.engine.image_positions import ImagePositions
from tinychat.engine.states import State, StateTrack
from tinychat.errors import CacheFullError, SettingError
from tinychat.held_signals import held_signals
from tinychat.kernels.buffers import Moves, caches_of
from tinychat.kernels.sizes import BLOCK
from tinychat.models.config import ModelConfig
from tinychat.models.portable_math import cos_sin
from tinychat.models.rope import angle_set, inverse_frequencies, sliding_rope

GONE = -1


class KVCache:
    """Keys and values of the tokens in context.

    Invariant: ``0 <= len(ids) <= context_size``, and the blocks of `table` hold the positions of `ids`, in order;
    whatever they hold beyond has no effect. `ids` grows only after the compiled call that wrote the positions has
    returned. The keys' angles are those of a sequence of `angles_of` tokens. Where every layer has a window, blocks
    that no later token sees are freed, and `GONE` in the table.
    """

    def __init__(self, pool: BlockPool, context_size: int) -> None:
        self.pool: BlockPool = pool
        self.config: ModelConfig = pool.config
        self.context_size: int = context_size
        self.ids: list[int] = []
        self.table: list[int] = pool.new_table(self)
        self.angles_of: int = 0
        self.states: StateTrack | None = StateTrack(self.config) if self.config.state_layers else None
        self.images: ImagePositions | None = ImagePositions(self.config) if self.config.rotary_axes else None
        # The block in which this sequence appends: others that share it own only positions before its end.
        self._written: int | None = None
        # From where on keys and values are not those of a fresh run of the ids, since tokens before were dropped.
        self._altered_from: int | None = None
        windows = self.config.sliding_windows
        self._seen = max(windows) if all(windows) else None

    @property
    def kv(self) -> str:
        """Type of the pool."""
        return self.pool.kv

    @property
    def length(self) -> int:
        """Positions stored."""
        return len(self.ids)

    def common_prefix(self, ids: Sequence[int]) -> int:
        """Return how many leading ids are those in the cache."""
        return common_length(self.ids, ids)

    @property
    def is_whole(self) -> bool:
        """Whether no block was freed."""
        return not self.table or self.table[0] != GONE

    @property
    def can_move(self) -> bool:
        """Whether positions can move to others, or to another pool: no block was freed, and there is no state."""
        return self.is_whole and self.states is None

    def resumable(self, length: int) -> int:
        """Return the most positions up to `length` that the cache can be cut to: 0, or all unless it has a state.

        A token after them sees no freed block, and a state that was cached.
        """
        if self.states is not None and length:
            with self.pool.lock:
                return self.states.nearest(length, self.pool.snapshots, self.table)[0]
        return length if self.is_whole or self.table[self._first_seen(length)] != GONE else 0

    def rewind(self, length: int) -> None:
        """Cut the cache to `length` positions, which are `resumable`."""
        with self.pool.lock:
            if self.states is not None and length < self.length:
                self.states.set(*self.states.nearest(length, self.pool.snapshots, self.table) if length else (0, None))
            self._written = None
            del self.ids[length:]
            if self._altered_from is not None and self.length <= self._altered_from:
                self._altered_from = None
            needed = blocks_for(self.length)
            surplus = self.table[needed:]
            del self.table[needed:]
            self.pool.release(surplus)

    def make_room(self, count: int) -> None:
        """Own blocks for `count` more positions; CacheFullError if the pool has no more."""
        with self.pool.lock:
            index, filled = divmod(self.length, BLOCK)
            if filled and self.table[index] != self._written and self.pool.is_shared(self.table[index]):
                self._own(index, filled)
            if filled:
                self.pool.snapshots.cut(self.table[index], filled)
            missing = blocks_for(self.length + count) - len(self.table)
            if missing > 0:
                self.table += self.pool.take(missing)
            self._written = self.table[-1]

    def _own(self, index: int, filled: int) -> None:
        """Replace a block of the table that has other owners by a copy of its first `filled` positions."""
        block = self.table[index]
        try:
            own = self.pool.copy(block, filled)
        except CacheFullError:
            # Sooner than this sequence stops, no later one finds the beginning that ends in this block.
            self.pool.evict_prefix(block)
            if self.pool.is_shared(block):
                raise
            return
        self.table[index] = own
        self.pool.snapshots.copy(block, own, filled)
        self.pool.release([block])

    def append(self, ids: Sequence[int], angles_of: int | None = None) -> None:
        """Append ids whose keys and values have been written.

        angles_of : tokens of the sequence that their keys were rotated for; as many as there are now when omitted.
        """
        self.angles_of = self.length + len(ids) if angles_of is None else angles_of
        before = self.length
        self.ids += ids
        if self.states is not None:
            self.states.commit(len(ids), self.pool.snapshots, self.table)
        if self.length // BLOCK > before // BLOCK:
            self.insert_prefix(self.length // BLOCK * BLOCK)
            # One block more is kept, so that the last tokens can be taken back.
            self._free_first(max(0, self._first_seen(self.length) - 1))

    @property
    def lasting(self) -> int:
        """Leading positions that hold what a fresh run would compute; 0 where blocks were freed."""
        return self._unaltered if self.is_whole else 0

    @property
    def snapshots(self) -> list[tuple[int, State]]:
        """Position and state of the snapshots of the `lasting` positions."""
        return list(self.pool.snapshots.of_table(self.table, self.lasting))

    @property
    def _unaltered(self) -> int:
        return self.length if self._altered_from is None else self._altered_from // BLOCK * BLOCK

    def insert_prefix(self, length: int) -> None:
        """Cache the blocks of the first ids for later sequences with the same prefix."""
        angles = angle_set(self.config, self.angles_of)
        length = min(length, self._unaltered)
        if angles is not None and length:
            self.pool.insert_prefix(angles, self.ids[:length], self.table)

    def match_prefix(self, ids: Sequence[int], angles_of: int, images: ImageIds | None = None) -> None:
        """Take over cached blocks of `ids`, of a sequence of `angles_of` tokens, if more than the cache holds.

        images : those that are there; with positions of three axes, ids from one that is gone on are not looked for.
        """
        angles = angle_set(self.config, angles_of)
        if angles is None:
            return
        positions = None
        if self.images is not None:
            positions = ImagePositions(self.config)
            ids = ids[: positions.extend(0, ids, images.find if images else lambda token_id: None)]
        with self.pool.lock:
            blocks, length = self.pool.match_prefix(angles, ids)
            state = None
            if self.states is not None:
                length, state = self.pool.snapshots.find(blocks, length)
            if length <= self.common_prefix(ids):
                self.pool.release(blocks)
                return
            self.rewind(0)
            self.table += blocks[: blocks_for(length)]
            self.pool.release(blocks[blocks_for(length) :])
            self.ids, self.angles_of, self.images = list(ids[:length]), angles_of, positions
            if self.states is not None:
                self.states.set(length, state)

    def insert_snapshot(self) -> None:
        """Cache the state after the last position."""
        if self.states is None:
            return
        with self.pool.lock:
            if (state := self.states.share()) is not None:
                self.pool.snapshots.put(self.table, self.length, state)

    def drop(self, start: int, stop: int) -> None:
        """Drop positions ``start..stop``; later ones move down, their keys re-rotated to the new positions."""
        sources, first = np.r_[:start, stop : self.length], start // BLOCK
        images = self.images and self.images.of([*self.ids[:start], *self.ids[stop:]])
        with self.pool.lock:
            self._written = None
            replaced, self.table[first:] = self.table[first:], self._rewritten(sources, first, self.pool, images)
            self.images = images
            self.pool.release(replaced)
            del self.ids[start:stop]
        if self.length > start and (self._altered_from is None or start < self._altered_from):
            self._altered_from = start

    def resize(self, context_size: int) -> None:
        """Set the capacity; SettingError if it is less than the length."""
        with self.pool.lock:  # not while a step runs
            if context_size < self.length:
                raise SettingError(f"context {context_size} is less than the {self.length} tokens in use: clear first")
            self.context_size = context_size

    def copy(self, pool: BlockPool) -> KVCache:
        """Return a cache of the same keys and values in blocks of another pool, whose type may be another."""
        other = KVCache(pool, self.context_size)
        other.table += self._rewritten(np.arange(self.length), 0, pool, self.images)
        other.ids, other.angles_of, other.images = self.ids.copy(), self.angles_of, self.images and self.images.copy()
        is_rounded = pool.kv != self.pool.kv and self.length > 0
        other._altered_from = 0 if is_rounded else self._altered_from
        return other

    def _first_seen(self, length: int) -> int:
        """Return the index of the first block that a token after `length` positions sees anything of."""
        return 0 if self._seen is None else max(0, length + 1 - self._seen) // BLOCK

    def _free_first(self, count: int) -> None:
        """Free the first `count` blocks, as far as that has not been done."""
        with self.pool.lock:
            unseen = [block for block in self.table[:count] if block != GONE]
            self.table[:count] = [GONE] * count
            self.pool.release(unseen)

    def fork(self) -> KVCache:
        """Return a cache of the same blocks, until one of the two writes."""
        other = KVCache(self.pool, self.context_size)
        with self.pool.lock:
            # No more of it: both will write behind their ids.
            other.table += self.table[: blocks_for(self.length)]
            self.pool.share(other.table)
        other.ids, other.images = self.ids.copy(), self.images and self.images.copy()
        other.angles_of, other._altered_from = self.angles_of, self._altered_from
        if self.states is not None and other.states is not None:
            other.states.set(self.length, self.states.share())
        return other

    def clear(self) -> None:
        """Free all blocks; later sequences may still match them."""
        self.insert_snapshot()
        self.insert_prefix(self.length)
        self.rewind(0)

    def evict(self) -> None:
        """Free all blocks, and evict those of this sequence alone."""
        angles = angle_set(self.config, self.angles_of)
        if angles is not None:
            self.pool.evict_branch(angles, self.ids)
        self.rewind(0)

    def _rewritten(
        self, sources: NDArray[np.int64], first: int, pool: BlockPool, images: ImagePositions | None
    ) -> list[int]:
        """Return new blocks for a table from index `first` on: position j has the key and value at ``sources[j]``.

        No block may have been freed; images : those of the new table.
        """
        # Imported here: Numba compiles it, or finds it in its cache, which no conversation needs from the start.
        with held_signals():
            from tinychat.kernels.rope import rewrite

        start, needed = first * BLOCK, blocks_for(len(sources))
        config, turns = self.config, self._turns(sources, images)[:, start:].copy()
        layers = np.split(np.array(config.cache_layers), np.cumsum([count for count, *_ in config.cache_shapes])[:-1])
        moves = [
            Moves(start, sources[start:], turns, np.array(config.angle_sets)[of], np.array(config.rotary_dims)[of])
            for of in layers
        ]
        tables = np.zeros((2, max(len(self.table), needed)), np.int64)
        tables[0, : len(self.table)] = self.table
        with self.pool.lock, pool.lock:
            new = pool.take(needed - first, beyond_limit=True)
            tables[1, first:needed] = new
            try:
                for old, other, move, (*_, size) in zip(
                    caches_of(self.pool.buffers), caches_of(pool.buffers), moves, config.cache_shapes
                ):
                    rewrite(old, other, tables, move, np.empty(size, np.float32))
            except BaseException:
                pool.release(new)
                raise
        return new

    def _turns(self, sources: NDArray[np.int64], images: ImagePositions | None) -> NDArray[np.float32]:
        """Return cosines and sines of the angles from each key's old position to its new one, for each set of them."""
        moves = (np.arange(len(sources)) - sources)[:, None]
        if images is not None and self.images is not None:
            # As far on all axes.
            moves = (images.positions(0, len(sources)) - self.images.positions(0, self.length)[sources])[:, :1]
        frequencies = [inverse_frequencies(self.config, self.angles_of)]
        if max(self.config.angle_sets):
            frequencies.append(inverse_frequencies(sliding_rope(self.config)))
        turns = np.zeros((len(frequencies), len(sources), max(self.config.rotary_dims)), np.float32)
        for set_of_turns, each in zip(turns, frequencies):
            set_of_turns[:, : 2 * len(each)] = np.concatenate(cos_sin(moves * each), axis=1)
        return turns
