"""The KV cache of one sequence: its table of blocks of the pool.

Short convolutions store what they need of a token there too, as keys and values that are not rotated.

A step appends in place. A rewrite reads old blocks, fills new ones, and swaps the table in one step: one that is
interrupted leaves the old cache valid.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tinychat.engine.blocks import BlockPool, blocks_for
from tinychat.engine.ids import common_length
from tinychat.errors import CacheFullError, SettingError
from tinychat.held_signals import held_signals
from tinychat.kernels.buffers import Moves
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

    def can_rewind(self, length: int) -> bool:
        """Return whether a token after the first `length` positions sees no freed block."""
        return length == 0 or self.is_whole or self.table[self._first_seen(length)] != GONE

    def rewind(self, length: int) -> None:
        """Cut the cache to `length` positions, as `can_rewind` allows."""
        with self.pool.lock:
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
            if len(self.table) > blocks_for(self.length):
                # What Ctrl-C left behind the ids may be others' blocks.
                self.rewind(self.length)
            index, filled = divmod(self.length, BLOCK)
            if filled and self.pool.is_shared(self.table[index]):
                self._own(index)
            missing = blocks_for(self.length + count) - len(self.table)
            if missing > 0:
                self.table += self.pool.take(missing)

    def _own(self, index: int) -> None:
        """Replace a block of the table that has other owners by a copy."""
        block = self.table[index]
        try:
            own = self.pool.copy(block)
        except CacheFullError:
            # Sooner than this sequence stops, no later one finds the beginning that ends in this block.
            self.pool.evict_prefix(block)
            if self.pool.is_shared(block):
                raise
            return
        self.table[index] = own
        self.pool.release([block])

    def append(self, ids: Sequence[int], angles_of: int | None = None) -> None:
        """Append ids whose keys and values have been written.

        angles_of : tokens of the sequence that their keys were rotated for; as many as there are now when omitted.
        """
        self.angles_of = self.length + len(ids) if angles_of is None else angles_of
        before = self.length
        self.ids += ids
        if self.length // BLOCK > before // BLOCK:
            self.insert_prefix(self.length // BLOCK * BLOCK)
            # One block more is kept, so that the last tokens can be taken back.
            self._free_first(max(0, self._first_seen(self.length) - 1))

    @property
    def lasting(self) -> int:
        """Leading positions that hold what a fresh run would compute; 0 where blocks were freed."""
        return self._unaltered if self.is_whole else 0

    @property
    def _unaltered(self) -> int:
        return self.length if self._altered_from is None else self._altered_from // BLOCK * BLOCK

    def insert_prefix(self, length: int) -> None:
        """Cache the blocks of the first ids for later sequences with the same prefix."""
        angles = angle_set(self.config, self.angles_of)
        length = min(length, self._unaltered)
        if angles is not None and length:
            self.pool.insert_prefix(angles, self.ids[:length], self.table)

    def match_prefix(self, ids: Sequence[int], angles_of: int) -> None:
        """Take over cached blocks of `ids`, of a sequence of `angles_of` tokens, if more than the cache holds."""
        angles = angle_set(self.config, angles_of)
        if angles is None:
            return
        with self.pool.lock:
            blocks, length = self.pool.match_prefix(angles, ids)
            if length <= self.common_prefix(ids):
                self.pool.release(blocks)
                return
            self.rewind(0)
            self.table += blocks
            self.ids, self.angles_of = list(ids[:length]), angles_of

    def drop(self, start: int, stop: int) -> None:
        """Drop positions ``start..stop``; later ones move down, their keys re-rotated to the new positions."""
        kept = [*range(start), *range(stop, self.length)]
        altered = self._altered_from
        if len(kept) > start and (altered is None or start < altered):
            altered = start
        self._rewrite(np.array(kept, np.int64), start // BLOCK * BLOCK, self.pool)
        self._altered_from = altered

    def resize(self, context_size: int) -> None:
        """Set the capacity; SettingError if it is less than the length."""
        with self.pool.lock:  # not while a step runs
            if context_size < self.length:
                raise SettingError(f"context {context_size} is less than the {self.length} tokens in use: clear first")
            self.context_size = context_size

    def move(self, pool: BlockPool) -> None:
        """Move everything to blocks of another pool, whose type may be another."""
        rounded = pool.kv != self.pool.kv and self.length > 0
        self._rewrite(np.arange(self.length), 0, pool)
        self._altered_from = 0 if rounded else self._altered_from

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
            self.pool.share(self.table)
            other.table += self.table
        other.ids = self.ids.copy()
        other.angles_of, other._altered_from = self.angles_of, self._altered_from
        return other

    def clear(self) -> None:
        """Free all blocks; later sequences may still match them."""
        self.insert_prefix(self.length)
        self.rewind(0)

    def evict(self) -> None:
        """Free all blocks, and evict those of this sequence alone."""
        angles = angle_set(self.config, self.angles_of)
        if angles is not None:
            self.pool.evict_branch(angles, self.ids)
        self.rewind(0)

    def _rewrite(self, sources: NDArray[np.int64], first: int, pool: BlockPool) -> None:
        """Fill position j with the key and value at ``sources[j]``, in new blocks from position `first` on.

        Freed blocks stay so: nothing before them may move.
        """
        # Imported here: Numba compiles it, or finds it in its cache, which no conversation needs from the start.
        with held_signals():
            from tinychat.kernels.rope import rewrite

        first = max(first, self.table.count(GONE) * BLOCK)
        kept, moved = self.table[: first // BLOCK], sources[first:]
        moves = Moves(
            first,
            moved,
            self._turns(sources)[:, first:].copy(),
            np.array([self.config.angle_sets[layer] for layer in self.config.cache_layers], np.int64),
            np.array([self.config.rotary_dims[layer] for layer in self.config.cache_layers], np.int64),
        )
        ids, before, old = [self.ids[source] for source in sources], self.pool, self.table
        with before.lock, pool.lock:
            table = kept + pool.take(blocks_for(len(moved)), beyond_limit=True)
            tables = np.zeros((2, max(len(old), len(table))), np.int64)
            tables[0, : len(old)], tables[1, : len(table)] = old, table
            rewrite(before.buffers, pool.buffers, tables, moves, np.empty(self.config.head_dim, np.float32))
            # Python lets nothing come between assignments of one line that call nothing, not even Ctrl-C.
            if pool is before:
                replaced = old[len(kept) :]
                self.table[:], self.ids = table, ids
                pool.release(replaced)
            else:
                own = pool.new_table(self)
                own += table
                self.pool, self.table, self.ids = pool, own, ids
                before.empty(old)

    def _turns(self, sources: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return cosines and sines of the angles from each key's old position to its new one, for each set of them."""
        moves = (np.arange(len(sources)) - sources)[:, None]
        frequencies = [inverse_frequencies(self.config, self.angles_of)]
        if max(self.config.angle_sets):
            frequencies.append(inverse_frequencies(sliding_rope(self.config)))
        return np.stack([np.concatenate(cos_sin(moves * each), axis=1) for each in frequencies]).astype(np.float32)
