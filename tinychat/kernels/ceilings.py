"""The roofline of this machine: rates of bytes read from memory and of int8 multiply-adds.

The kernels compute nothing of use: `tinychat bench` compares the decoder's rates with theirs.
"""

import numpy as np

from tinychat.kernels.dot import dot
from tinychat.kernels.jit import allocating_kernel
from tinychat.kernels.sizes import LANES, ONE_ROW, TILE_FLOATS, TOKENS
from tinychat.kernels.sums import ROUNDER_BITS, add_scaled, start_tile
from tinychat.kernels.team import share
from tinychat.kernels.tile import add_outer, load_lines, load_rows, store_tile, zero_tile

# Neighbouring lines read at once, each into a sum of its own. On a Zen 4 core 4 read 35 GB/s, like 1 and 8, prefetched
# or not; lines that are far apart, as several streams, read 15 to 25.
LINES = (0,) * 4
ONE = (0,)
READ_FLOATS = len(LINES) * LANES
MULTIPLY_ADDS = TILE_FLOATS * 4
TILES_OF_X = 8


@allocating_kernel
def read_share(thread, threads, values, out):
    """Read a thread's share of `values` once: float32 [n], n a multiple of ``READ_FLOATS``.

    out : float32 [threads, READ_FLOATS], sums, without which the compiler would leave the reads out.
    """
    first, last = share(thread, threads, values.shape[0] // READ_FLOATS)
    one = np.ones(1, np.float32)
    total = zero_tile(LINES, ONE)
    for i in range(first * READ_FLOATS, last * READ_FLOATS, READ_FLOATS):
        total = add_outer(total, load_rows(values, i, LANES, LINES), one, 0, 0)
    store_tile(out, thread * READ_FLOATS, total)


@allocating_kernel
def multiply_share(thread, rounds, codes, x, out):
    """Do `rounds` times the ``MULTIPLY_ADDS`` of a linear's tile, all from registers and the first-level cache.

    codes : uint8 [1, 64]; x : int8 [TILES_OF_X, tokens of a tile, 4]; out : float32 [threads, TILE_FLOATS], sums.
    """
    # Beyond 2**22, which only ``rounds`` of a test stay below, the floats mean nothing.
    starts, ones = np.full(len(TOKENS), ROUNDER_BITS), np.ones(LANES, np.float32)
    sums = start_tile(starts, 0, TOKENS)
    lines = load_lines(codes, 0, 64, ONE_ROW)
    for i in range(rounds):
        sums = dot(sums, lines, x, i % TILES_OF_X * 4 * len(TOKENS))
    tile = add_scaled(zero_tile(ONE_ROW, TOKENS), sums, load_rows(ones, 0, LANES, ONE_ROW), ones, 0)
    store_tile(out, thread * TILE_FLOATS, tile)
