"""The memory of all sequences' keys and values: blocks of 64 positions, shared, cached, freed.

No sequence writes a position that another one or the prefix cache has: it copies the block first, unless it goes on
behind them in the block that it wrote last. Blocks of earlier sequences stay in the prefix cache (`engine.prefixes`)
until their memory is needed. (Kwon et al., 2023, https://arxiv.org/abs/2309.06180.)
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from tinychat.engine.context import largest_step
from tinychat.engine.prefixes import PrefixIndex
from tinychat.engine.states import FEWEST, Snapshots, sequence_state_bytes, state_bytes
from tinychat.engine.unused_memory import give_back
from tinychat.errors import CacheFullError, FieldError, SettingError
from tinychat.kernels.buffers import CacheBuffers, TwoCaches, caches_of, empty_buffers
from tinychat.kernels.pointers import pointers_of
from tinychat.kernels.sizes import BLOCK, PER_LANE, SNAPSHOT, STORAGE
from tinychat.machine import available_memory_bytes
from tinychat.models.config import ModelConfig

# Share of the free memory that a pool may take: it does so only as blocks are written.
DEFAULT_SHARE = 0.25
EVICTED_AT_ONCE = 1 / 16  # of all blocks: to find the oldest takes a look at many


def blocks_for(positions: int) -> int:
    """Return the number of blocks of so many positions."""
    return -(-positions // BLOCK)


def bytes_per_position(config: ModelConfig, kv: str) -> int:
    """Return the bytes of one token in a cache of that type, over all layers."""
    return sum(buffer.nbytes for one in caches_of(_empty_caches(config, kv, 1)) for buffer in one) // BLOCK


def _empty_caches(config: ModelConfig, kv: str, blocks: int) -> CacheBuffers | TwoCaches:
    """Return zeros for so many blocks."""
    caches = [
        empty_buffers(kv, blocks, layers, heads, size, size if config.varied else config.value_dim)
        for layers, heads, size in config.cache_shapes
    ]
    return TwoCaches(*caches) if len(caches) > 1 else caches[0]


def sequence_bytes(config: ModelConfig, kv: str, positions: int) -> int:
    """Return the bytes of a sequence of so many positions: keys and values, and states with their snapshots."""
    return positions * bytes_per_position(config, kv) + sequence_state_bytes(config, positions)


class BlockPool:
    """Blocks of one type for one model, and the snapshots of states at their positions.

    A block has as many owners as tables and prefixes that name it. Whoever changes them holds signals, as the driver
    does: an exception of a handler in the middle would leave a block an owner too many, or too few.

    `memory` is the most bytes; by default a quarter of what is free now, and more where one sequence needs it.
    `buffers`, and `pointers` to them for `kernels.memory.from_pointers`, are replaced when the pool grows. `lock` is
    held while blocks are read or written, or owned by no table yet.
    """

    def __init__(self, config: ModelConfig, kv: str, memory: int | None = None) -> None:
        if kv not in STORAGE:
            raise FieldError("kv", f"must be one of {', '.join(STORAGE)}, not {kv!r}")
        together = PER_LANE.get(kv, 1)
        for _, _, size in config.cache_shapes:
            if size % together:
                raise FieldError("kv", f"{kv} stores {together} channels together, and heads of this model have {size}")
        self.config = config
        self.kv = kv
        self.is_fixed: bool = memory is not None
        self.prefixes: PrefixIndex = PrefixIndex()
        self.buffers: CacheBuffers | TwoCaches = _empty_caches(config, kv, 0)
        self.pointers: NDArray[np.int64] = pointers_of(self.buffers)
        self.position_bytes: int = bytes_per_position(config, kv)
        # Snapshots at every multiple of 512 positions included.
        self._block_bytes = BLOCK * self.position_bytes + state_bytes(config) * BLOCK // SNAPSHOT
        self._reserved = 0  # blocks of the longest sequence
        self.snapshots: Snapshots = Snapshots()
        if memory is None:
            memory = int(DEFAULT_SHARE * (available_memory_bytes() or 0))
        self._set_limit(memory // self._block_bytes)
        self._first_limit = self._limit
        self._owners: Counter[int] = Counter()
        self._free: list[int] = []
        self._tables: list[tuple[ref[object], list[int]]] = []  # with their owners
        self.lock: threading.RLock = threading.RLock()

    @property
    def capacity(self) -> int:
        """Number of blocks that have an owner or may get one; there may be others, which take no memory."""
        return len(self._owners) + len(self._free)

    @property
    def arrays(self) -> list[NDArray[np.generic]]:
        """All arrays, of which the first axis is that of the blocks."""
        return [array for cache in caches_of(self.buffers) for array in cache]

    @property
    def used(self) -> int:
        """Number of blocks that have an owner."""
        self._release_abandoned()
        return len(self._owners)

    @property
    def used_bytes(self) -> int:
        """Bytes of those."""
        return self.used * self._block_bytes

    def reserve(self, positions: int) -> None:
        """Grow until one sequence of so many positions fits; SettingError or MemoryError if it cannot."""
        needed, config = blocks_for(positions), self.config
        if config.learned_positions and positions > config.max_position_embeddings:
            has = f"it has vectors for {config.max_position_embeddings} positions"
            raise SettingError(f"a context of {positions} tokens is too large for this model: {has}")
        if config.bidirectional and positions > (most := largest_step(config)):
            has = f"each token of a text attends to all, of up to {most}"
            raise SettingError(f"a context of {positions} tokens is too large for this model: {has}")
        with self.lock:
            most = self._first_limit
            if self.is_fixed and needed > most:
                has = f"{most * BLOCK} fit into a cache memory of {most * self._block_bytes >> 20} MiB"
                raise SettingError(f"a context of {positions} tokens is too large: {has}")
            self._reserved = max(self._reserved, needed)
            self._set_limit(max(self._limit, needed))
            if self.capacity < needed:
                # All at once: memory that nobody writes to is not taken, and nothing has to be moved later.
                try:
                    self._allow(self._limit)
                except MemoryError:
                    self._allow(needed)
                    self._set_limit(needed)

    def shrink(self) -> None:
        """Evict half of the blocks that no sequence uses, and give their memory back to the system.

        No more are cached until `grow_again`, but one sequence of the longest context fits still.
        """
        with self.lock:
            self._release_abandoned()
            unused = sum(self._owners[block] == 1 for block in self.prefixes.blocks())
            self.release(self.prefixes.evict(-(-unused // 2), lambda block: self._owners[block] == 1))
            limit = min(self._limit, max(len(self._owners), self._reserved))
            if unused or limit < self._limit:
                self._set_limit(limit)
                self._allow(limit)
                self._give_back()

    def grow_again(self) -> None:
        """Let the pool have as much memory as before `shrink`."""
        with self.lock:
            self._set_limit(max(self._limit, self._first_limit))

    def new_table(self, owner: object) -> list[int]:
        """Return an empty list, changed in place: its blocks count as owned while its owner lives.

        They are released when blocks are next taken, since Python may end an owner at any time.
        """
        with self.lock:
            self._release_abandoned()
            self._tables.append((ref(owner), table := list[int]()))
        return table

    def take(self, count: int, beyond_limit: bool = False) -> list[int]:
        """Return free blocks, evicting prefixes that no sequence uses; CacheFullError if there are too few.

        beyond_limit : grow instead, for a rewrite, which frees as many.
        """
        with self.lock:
            self._release_abandoned()
            if len(self._free) < count:
                self._find_free(count, beyond_limit)
            blocks = [self._free.pop() for _ in range(count)]
            self._owners.update(blocks)
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add an owner to each block; negative numbers are no blocks."""
        with self.lock:
            self._owners.update(block for block in blocks if block >= 0)

    def release(self, blocks: Iterable[int]) -> None:
        """Remove an owner from each block; one without any is free. Negative numbers are no blocks."""
        with self.lock:
            for block in blocks:
                if block < 0:
                    continue
                self._owners[block] -= 1
                if self._owners[block] <= 0:
                    del self._owners[block]
                    self.snapshots.cut(block)
                    self._free.append(block)

    def insert_prefix(self, angles: int, ids: Sequence[int], table: list[int]) -> None:
        """Cache the blocks of a sequence's first ids; `table` gets the blocks that are cached for the same ids."""
        with self.lock:
            added, known, replaced = self.prefixes.insert(angles, ids, table[: blocks_for(len(ids))])
            self.share(added)
            for index, block in known:
                self.snapshots.copy(table[index], block, len(ids) - index * BLOCK)
                if len(ids) >= (index + 1) * BLOCK:
                    self.share([block])
                    self.release([table[index]])
                    table[index] = block
            self.release(replaced)

    def match_prefix(self, angles: int, ids: Sequence[int]) -> tuple[list[int], int]:
        """Return the cached blocks of the longest prefix of `ids`, with the caller as an owner, and its length."""
        with self.lock:
            blocks, length = self.prefixes.match(angles, ids)
            self.share(blocks)
        return blocks, length

    def evict_prefix(self, block: int) -> None:
        """Evict the cached prefix that ends in a block."""
        with self.lock:
            self.release(self.prefixes.evict_block(block))

    def evict_branch(self, angles: int, ids: Sequence[int]) -> None:
        """Evict the cached blocks of a sequence that no other one shares."""
        with self.lock:
            self.release(self.prefixes.evict_branch(angles, ids))

    def is_shared(self, block: int) -> bool:
        """Return whether a block has several owners."""
        return self._owners[block] > 1

    def copy(self, block: int, filled: int) -> int:
        """Return a new block of the same first `filled` positions."""
        (new,) = self.take(1)
        for cache in caches_of(self.buffers):
            for array in (cache.keys, cache.values):
                used = -(-filled * array.shape[3] // BLOCK)
                array[new, :, :, :used] = array[block, :, :, :used]
            cache.scales[new] = cache.scales[block]
        return new

    def _set_limit(self, blocks: int) -> None:
        self._limit = blocks
        self.snapshots.limit = max(FEWEST, blocks * BLOCK // SNAPSHOT)

    def _release_abandoned(self) -> None:
        """Release the blocks of owners that are no more."""
        with self.lock:
            owned = []
            for owner, table in self._tables:
                if owner() is None:
                    self.release(table)
                else:
                    owned.append((owner, table))
            self._tables = owned

    def _find_free(self, count: int, beyond_limit: bool) -> None:
        """Grow or evict until `count` blocks are free."""
        if self.capacity < self._limit:
            self._allow(self._limit)
        if len(self._free) < count:
            wanted = max(int(EVICTED_AT_ONCE * self.capacity), count - len(self._free))
            self.release(self.prefixes.evict(wanted, lambda block: self._owners[block] == 1))
        if len(self._free) < count and beyond_limit:
            self._allow(self.capacity + count - len(self._free))
        if len(self._free) < count:
            full = f"the cache memory of {self._limit * self._block_bytes >> 20} MiB is full"
            raise CacheFullError(f"{full}: give more with cache_memory, or run fewer sequences at once")

    def _allow(self, blocks: int) -> None:
        """Let so many blocks be used, in larger buffers where there are fewer."""
        if blocks > len(self.arrays[0]):
            self._move(blocks)
        free = [block for block in range(len(self.arrays[0])) if block not in self._owners]
        self._free = free[: max(0, blocks - len(self._owners))][::-1]

    def _move(self, blocks: int) -> None:
        """Move the blocks in use to larger buffers."""
        old = self.arrays
        self.buffers = _empty_caches(self.config, self.kv, blocks)
        self.pointers = pointers_of(self.buffers)
        for before, after in zip(old, self.arrays):
            for block in self._owners:
                after[block] = before[block]

    def _give_back(self) -> None:
        """Give the memory of blocks without an owner back to the system, until they are written again."""
        first = 0
        for owned in [*sorted(self._owners), len(self.arrays[0])]:
            for array in self.arrays:
                give_back(array[first:owned])
            first = owned + 1
