"""The machine's own limits, measured on all threads: memory read bandwidth and int8 multiply-adds."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter, sleep

import numpy as np

from tinychat.kernels.amx_buffer import HAS_TILE_REGISTERS
from tinychat.kernels.ceilings import (
    MULTIPLY_ADDS,
    READ_FLOATS,
    REGISTER_MULTIPLY_ADDS,
    TILES_OF_X,
    multiply_registers_share,
    multiply_share,
    read_share,
)
from tinychat.kernels.sizes import TILE_FLOATS, TOKENS
from tinychat.kernels.team import PARK_AFTER

# Far beyond any cache, so that every byte comes from memory.
BUFFER_BYTES = 512 << 20
ROUNDS, ROUNDS_OF_REGISTERS = 4_000_000, 600_000
# An engine's workers stay awake after a step; until they sleep they would take part of a core.
SETTLE_SECONDS = 1.5e-9 * PARK_AFTER


class Ceilings:
    """Repeated measurements, since a shared machine drifts; the buffer is allocated once.

    buffer_bytes, rounds : bytes that a measurement reads, and tiles that each thread multiplies.
    """

    def __init__(self, threads: int, buffer_bytes: int = BUFFER_BYTES, rounds: int = ROUNDS) -> None:
        self._threads, self._rounds = threads, rounds
        self._pool = ThreadPoolExecutor(threads)
        # Ones, not zeros: zeros that were never written are all one page.
        self._buffer = np.ones(buffer_bytes // 4 // READ_FLOATS * READ_FLOATS, np.float32)
        self._read = np.zeros((threads, READ_FLOATS), np.float32)
        self._codes = np.full((1, 64), 5, np.uint8)
        self._x = np.ones((TILES_OF_X, len(TOKENS), 4), np.int8)
        self._products = np.zeros((threads, TILE_FLOATS), np.float32)
        # Of numbers that do not change tile registers need less power, and run faster than any linear.
        self._values = np.random.default_rng(1).integers(-127, 128, (2, 1024), np.int8)
        # Compiles both, outside of what is timed.
        read_share(0, 1, self._buffer[:READ_FLOATS], self._read)
        self._multiply(0, 1)

    def bandwidth(self) -> float:
        """Return GB/s (1e9 bytes) of one plain read of the buffer, which takes some 15 ms."""
        seconds = self._timed(lambda thread: read_share(thread, self._threads, self._buffer, self._read))
        return self._buffer.nbytes / seconds / 1e9

    def int8_peak(self) -> float:
        """Return 1e9 int8 multiply-adds in a second, without any memory traffic, over some 15 ms.

        Of the fastest instruction in use: products of tile registers, where there are such.
        """
        rounds, multiply_adds = self._rounds, MULTIPLY_ADDS
        if HAS_TILE_REGISTERS:
            rounds, multiply_adds = max(1, rounds * ROUNDS_OF_REGISTERS // ROUNDS), REGISTER_MULTIPLY_ADDS
        seconds = self._timed(lambda thread: self._multiply(thread, rounds))
        return self._threads * rounds * multiply_adds / seconds / 1e9

    def _multiply(self, thread: int, rounds: int) -> None:
        if HAS_TILE_REGISTERS:
            multiply_registers_share(thread, rounds, self._values, self._products)
        else:
            multiply_share(thread, rounds, self._codes, self._x, self._products)

    def _timed(self, work: Callable[[int], None]) -> float:
        sleep(SETTLE_SECONDS)
        started = perf_counter()
        list(self._pool.map(work, range(self._threads)))
        return perf_counter() - started
