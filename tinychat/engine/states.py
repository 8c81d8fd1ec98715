"""States of recurrent layers: what they hold of all positions of a sequence so far, in float32.

Keys and values of a position stay when a sequence goes on; a state does not. So snapshots of it are cached with the
block in which their position ends: every 512 positions, and where a message ends. A sequence that is rewound, or that
shares a prefix, goes on from the last snapshot before, and runs at most 512 tokens again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tinychat.kernels.sizes import BLOCK, SNAPSHOT
from tinychat.models.config import ModelConfig

LINE = 64  # bytes
# Snapshots that a pool has room for, at least.
FEWEST = 4
# States of a sequence besides that after its last position: one that a step writes, and one between.
SPARE = 2


class State:
    """The state after some positions; never written again once a step has written it, and others may hold it.

    `numbers` : float32, on a line of the processor's cache; `is_shared` : whether anybody but one sequence may hold it.
    """

    __slots__ = ("is_shared", "numbers")

    def __init__(self, count: int) -> None:
        memory = np.empty(4 * count + LINE, np.uint8)
        start = -memory.ctypes.data % LINE
        self.numbers: NDArray[np.float32] = memory[start : start + 4 * count].view(np.float32)
        self.is_shared: bool = False

    @property
    def address(self) -> int:
        """Address of the numbers."""
        return int(self.numbers.ctypes.data)


def state_bytes(config: ModelConfig) -> int:
    """Return the bytes of one state of a model, 0 if it has none."""
    return config.recurrence.state_bytes if config.recurrence else 0


def sequence_state_bytes(config: ModelConfig, positions: int) -> int:
    """Return the bytes of a sequence's states: three that take turns, and snapshots."""
    return state_bytes(config) * (1 + SPARE + positions // SNAPSHOT)


class Snapshots:
    """Snapshots of states by block and positions in it, 1 to 64; beyond `limit`, the least recently used go first.

    The caller holds the pool's lock.
    """

    def __init__(self, limit: int = FEWEST) -> None:
        self.limit = limit
        self._by_block: dict[int, dict[int, State]] = {}
        self._used: OrderedDict[tuple[int, int], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._used)

    def put(self, table: Sequence[int], length: int, state: State) -> None:
        """Cache the state after the first `length` positions of the blocks of a table."""
        index, filled = divmod(length - 1, BLOCK)
        self._put(table[index], filled + 1, state)

    def find(self, table: Sequence[int], length: int) -> tuple[int, State | None]:
        """Return the last snapshot within the first `length` positions, and its position; 0 and None without any."""
        for index in range((length - 1) // BLOCK, -1, -1):
            states = self._by_block.get(table[index], {})
            fitting = [filled for filled in states if index * BLOCK + filled <= length]
            if fitting:
                self._used.move_to_end((table[index], max(fitting)))
                return index * BLOCK + max(fitting), states[max(fitting)]
        return 0, None

    def of_table(self, table: Sequence[int], length: int) -> Iterator[tuple[int, State]]:
        """Yield position and state of all snapshots within the first `length` positions, in order."""
        for index, block in enumerate(table):
            for filled, state in sorted(self._by_block.get(block, {}).items()):
                if index * BLOCK + filled <= length:
                    yield index * BLOCK + filled, state

    def copy(self, block: int, other: int, filled: int = BLOCK) -> None:
        """Cache the snapshots within the first `filled` positions of a block with another one, too."""
        for position, state in list(self._by_block.get(block, {}).items()):
            if position <= filled:
                self._put(other, position, state)

    def cut(self, block: int, filled: int = 0) -> None:
        """Evict the snapshots of a block behind its first `filled` positions."""
        for position in [position for position in self._by_block.get(block, {}) if position > filled]:
            self._remove(block, position)

    def _put(self, block: int, filled: int, state: State) -> None:
        state.is_shared = True
        self._by_block.setdefault(block, {})[filled] = state
        self._used[block, filled] = None
        self._used.move_to_end((block, filled))
        while len(self._used) > self.limit:
            self._remove(*next(iter(self._used)))

    def _remove(self, block: int, filled: int) -> None:
        del self._used[block, filled]
        del self._by_block[block][filled]
        if not self._by_block[block]:
            del self._by_block[block]


class StateTrack:
    """The states of one sequence: that after its last position, and an earlier one, to which a draft can be taken back.

    A step writes other memory than it reads, so one that fails leaves the state that it began with.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._count = state_bytes(config) // 4
        self.length = 0
        self.last: State | None = None  # None: no position yet
        self._before: tuple[int, State | None] = (0, None)
        self._next: State | None = None
        self._between: tuple[int, State | None] = (0, None)
        self._spare: list[State] = []

    def begin(self, count: int, certain: int) -> tuple[int, int, int, int]:
        """Begin a step of `count` positions, the last of which may be taken back, but not the first `certain`.

        Returns the column of `Batch.states`.
        """
        self._discard(self._before[1])
        self._before = self.length, self.last
        self._next = self._memory_for_one()
        # The next multiple of 512 goes first; a draft ends there at the latest (`Sequence.rows_at_once`).
        wanted = self.length + min(certain, self.until_snapshot)
        self._between = (wanted, self._memory_for_one()) if wanted < self.length + count else (0, None)
        wanted, between = self._between
        last = self.last.address if self.last else 0
        return last, self._next.address, between.address if between else 0, wanted

    def commit(self, count: int, snapshots: Snapshots, table: Sequence[int]) -> None:
        """End a step; cache the snapshot of a multiple of 512 positions, if it reached one."""
        boundary = self.length + self.until_snapshot
        self.length, self.last = self.length + count, self._next
        wanted, between = self._between
        if between is not None:
            self._discard(self._before[1])
            self._before = wanted, between
        reached = between if wanted == boundary else self.last
        if boundary <= self.length and reached is not None:
            snapshots.put(table, boundary, reached)
        self._next, self._between = None, (0, None)

    def nearest(self, length: int, snapshots: Snapshots, table: Sequence[int]) -> tuple[int, State | None]:
        """Return the last state within the first `length` positions that is still there, and its position."""
        if length >= self.length:
            return self.length, self.last
        found = snapshots.find(table, length)
        return self._before if found[0] < self._before[0] <= length else found

    def set(self, length: int, state: State | None) -> None:
        """Go on from another state."""
        last, self.length, self.last, self._before = self.last, length, state, (0, None)
        self._discard(last)

    def share(self) -> State | None:
        """Return the last state, for another holder."""
        if self.last is not None:
            self.last.is_shared = True
        return self.last

    @property
    def until_snapshot(self) -> int:
        """Number of positions up to the next multiple of 512, of which a step reaches one at most."""
        return SNAPSHOT - self.length % SNAPSHOT

    @property
    def memory(self) -> tuple[object, ...]:
        """The arrays that a step works on."""
        return self.last, self._next, self._between[1]

    def _memory_for_one(self) -> State:
        """Return memory for a state: fresh pages cost time."""
        return self._spare.pop() if self._spare else State(self._count)

    def _discard(self, state: State | None) -> None:
        """Let later steps use a state's memory, unless somebody holds it."""
        is_held = state is None or state.is_shared or state is self.last
        if state is not None and not is_held and len(self._spare) < SPARE and state not in self._spare:
            self._spare.append(state)
