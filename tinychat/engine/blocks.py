"""The memory of all sequences' keys and values: blocks of 64 positions, shared, reused, given back.

A block that several own is never written: who wants to write takes a copy first. Blocks whose tokens an earlier
sequence had stay for later ones with the same beginning (`engine.prefixes`) until their memory is wanted.
(Kwon et al., 2023, https://arxiv.org/abs/2309.06180.)
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from tinychat.engine.prefixes import PrefixIndex
from tinychat.errors import CacheFullError, FieldError, SettingError
from tinychat.kernels.buffers import CacheBuffers, empty_buffers
from tinychat.kernels.pointers import pointers_of
from tinychat.kernels.sizes import BLOCK, STORAGE
from tinychat.machine import available_memory_bytes
from tinychat.models.config import ModelConfig

# Of what is free, where nobody says otherwise: taken only as it is written.
DEFAULT_SHARE = 0.25
FORGOTTEN_AT_ONCE = 1 / 16  # of all blocks: finding the oldest takes a look at many


def blocks_for(positions: int) -> int:
    """Return how many blocks hold so many positions."""
    return -(-positions // BLOCK)


def bytes_per_position(config: ModelConfig, kv: str) -> int:
    """Return the bytes that one token takes in a cache of that type, over all layers."""
    one = empty_buffers(kv, 1, len(config.cache_layers), config.num_key_value_heads, config.head_dim)
    return sum(buffer.nbytes for buffer in one) // BLOCK


class BlockPool:
    """Blocks of one type for one model.

    Each block has as many owners as tables and prefixes name it. Ctrl-C may come between any two operations: then a
    block may keep an owner that it has not; when blocks run out, owners are counted anew. It never lacks one that it
    has: two would write to it.

    Parameters
    ----------
    config : ModelConfig
    kv : {"bf16", "f16", "int8", "f32"}
    memory : int, optional
        Most bytes. When omitted, a quarter of what is free now, and more where one sequence needs it.

    Attributes
    ----------
    buffers : CacheBuffers
        Replaced as a whole when the pool grows.
    position_bytes : int
        What one token takes, over all layers.
    prefixes : PrefixIndex
        Beginnings that later sequences may use.
    lock : RLock
        Whoever reads or writes blocks holds it, and whoever has blocks that no table names yet.
    """

    def __init__(self, config: ModelConfig, kv: str, memory: int | None = None) -> None:
        if kv not in STORAGE:
            raise FieldError("kv", f"must be one of {', '.join(STORAGE)}, not {kv!r}")
        self.config = config
        self.kv = kv
        self.is_fixed: bool = memory is not None
        self.prefixes: PrefixIndex = PrefixIndex()
        self.buffers: CacheBuffers = self._allocate(0)
        self._placed = self.buffers, pointers_of(self.buffers)
        self.position_bytes: int = bytes_per_position(config, kv)
        self._block_bytes = BLOCK * self.position_bytes
        self._limit = (self._default_memory() if memory is None else memory) // self._block_bytes
        self._owners: Counter[int] = Counter()
        self._free: list[int] = []
        # By the `id` of a reference to the owner, which enters the second when the owner is no more.
        self._tables: dict[int, tuple[ref[object], list[int]]] = {}
        self._abandoned: deque[ref[object]] = deque()
        self.lock: threading.RLock = threading.RLock()

    @property
    def capacity(self) -> int:
        """Blocks that there are."""
        return len(self.buffers.keys)

    @property
    def used(self) -> int:
        """Blocks that somebody owns."""
        self._release_abandoned()
        return self.capacity - len(self._free)

    @property
    def places(self) -> NDArray[np.int64]:
        """Where the buffers are, for `kernels.memory.from_pointers`."""
        if self._placed[0] is not self.buffers:
            self._placed = self.buffers, pointers_of(self.buffers)
        return self._placed[1]

    def reserve(self, positions: int) -> None:
        """See to it that one sequence of so many positions fits.

        Raises
        ------
        SettingError
            If it needs more than the pool may have, or the model has positions for.
        MemoryError
            If it needs more than the system gives.
        """
        needed, config = blocks_for(positions), self.config
        if config.learned_positions and positions > config.max_position_embeddings:
            has = f"it has vectors for {config.max_position_embeddings} positions"
            raise SettingError(f"a context of {positions} tokens is too large for this model: {has}")
        with self.lock:
            if self.is_fixed and needed > self._limit:
                has = f"{self._limit * BLOCK} fit into a cache memory of {self._limit * self._block_bytes >> 20} MiB"
                raise SettingError(f"a context of {positions} tokens is too large: {has}")
            self._limit = max(self._limit, needed)
            if self.capacity < needed:
                # All at once: memory that nobody writes to is not taken, and nothing has to be moved later.
                try:
                    self._grow(self._limit)
                except MemoryError:
                    self._grow(needed)
                    self._limit = needed

    def new_table(self, owner: object) -> list[int]:
        """Return an empty list, to be changed in place: blocks that stand in it count as owned while its owner lives.

        They are released later, since Python may end an owner in the middle of anything. No code of ours runs then,
        in which Ctrl-C would be lost.
        """
        reference, table = ref(owner, self._abandoned.append), list[int]()
        self._tables[id(reference)] = reference, table
        return table

    def empty(self, table: list[int]) -> None:
        """Release all blocks of a table."""
        with self.lock:
            while table:
                self.release([table.pop()])

    def take(self, count: int, beyond_limit: bool = False) -> list[int]:
        """Return blocks that nobody owns.

        beyond_limit : for a rewrite, which gives as many back.

        Raises
        ------
        CacheFullError
            If there are not as many, even without the prefixes that no sequence uses now.
        """
        with self.lock:
            self._release_abandoned()
            if len(self._free) < count:
                self._find_free(count, beyond_limit)
            blocks = [self._free.pop() for _ in range(count)]
            self._owners.update(blocks)
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Note one more owner of each block; negative numbers stand for none."""
        with self.lock:
            self._owners.update(block for block in blocks if block >= 0)

    def release(self, blocks: Iterable[int]) -> None:
        """Note one owner less of each block; those without any are free, negative numbers stand for none."""
        with self.lock:
            for block in blocks:
                if block < 0:
                    continue
                self._owners[block] -= 1
                if self._owners[block] <= 0:
                    del self._owners[block]
                    self._free.append(block)

    def remember(self, angles: int, ids: Sequence[int], table: list[int]) -> None:
        """Keep the blocks of a sequence's first ids for later ones; `table` gets those that were kept before."""
        with self.lock:
            with self._changed_prefixes() as prefixes:
                added, known, replaced = prefixes.add(angles, ids, table[: blocks_for(len(ids))])
                self.share(added)
            for place, block in known:
                if len(ids) >= (place + 1) * BLOCK:
                    self.share([block])
                    table[place], own = block, table[place]
                    self.release([own])
            self.release(replaced)

    def recall(self, angles: int, ids: Sequence[int]) -> tuple[list[int], int]:
        """Return the blocks of the longest kept beginning of `ids`, of which the caller is now an owner; its length."""
        with self.lock:
            with self._changed_prefixes() as prefixes:
                blocks, length = prefixes.find(angles, ids)
            self.share(blocks)
        return blocks, length

    def forget(self, block: int) -> None:
        """Let no later sequence find the kept beginning that ends in a block."""
        with self.lock:
            with self._changed_prefixes() as prefixes:
                gone = prefixes.evict_block(block)
            self.release(gone)

    def forget_branch(self, angles: int, ids: Sequence[int]) -> None:
        """Let no later sequence find the kept blocks of `ids` that other texts have no part in."""
        with self.lock:
            with self._changed_prefixes() as prefixes:
                gone = prefixes.evict_branch(angles, ids)
            self.release(gone)

    def is_shared(self, block: int) -> bool:
        """Say whether a block has several owners."""
        return self._owners[block] > 1

    def copy(self, block: int) -> int:
        """Return a new block of the same contents."""
        (new,) = self.take(1)
        for buffer in self.buffers:
            buffer[new] = buffer[block]
        return new

    @contextmanager
    def _changed_prefixes(self) -> Iterator[PrefixIndex]:
        """Forget all beginnings where Ctrl-C comes in the middle of a change: they may name blocks of others."""
        try:
            yield self.prefixes
        except BaseException:
            self.prefixes = PrefixIndex()
            raise

    def _release_abandoned(self) -> None:
        with self.lock:
            while self._abandoned:
                place = id(self._abandoned[0])
                if place in self._tables:
                    self.empty(self._tables[place][1])
                    del self._tables[place]
                self._abandoned.popleft()

    def _find_free(self, count: int, beyond_limit: bool) -> None:
        """Free blocks until there are `count`, or add them."""
        if self.capacity < self._limit:
            self._grow(self._limit)
        if len(self._free) < count:
            wanted = max(int(FORGOTTEN_AT_ONCE * self.capacity), count - len(self._free))
            with self._changed_prefixes() as prefixes:
                unused = prefixes.forget(wanted, lambda block: self._owners[block] == 1)
            self.release(unused)
        if len(self._free) < count:
            self._count_anew()
        if len(self._free) < count and beyond_limit:
            self._grow(self.capacity + count - len(self._free))
        if len(self._free) < count:
            full = f"the cache memory of {self._limit * self._block_bytes >> 20} MiB is full"
            raise CacheFullError(f"{full}: give more with cache_memory, or run fewer sequences at once")

    def _count_anew(self) -> None:
        """Count the owners of all blocks."""
        owners = Counter(self.prefixes.blocks())
        for _, table in list(self._tables.values()):
            owners.update(block for block in table if block >= 0)
        self._owners = owners
        self._free = [block for block in range(self.capacity) if not owners[block]]

    def _grow(self, blocks: int) -> None:
        """Move what is in use to larger buffers; memory of the others is not touched."""
        old, new = self.buffers, self._allocate(blocks)
        for before, after in zip(old, new):
            for block in self._owners:
                after[block] = before[block]
        added = range(len(old.keys), blocks)
        self.buffers = new
        self._free = [*reversed(added), *self._free]

    def _allocate(self, blocks: int) -> CacheBuffers:
        config = self.config
        return empty_buffers(self.kv, blocks, len(config.cache_layers), config.num_key_value_heads, config.head_dim)

    @staticmethod
    def _default_memory() -> int:
        return int(DEFAULT_SHARE * (available_memory_bytes() or 0))
