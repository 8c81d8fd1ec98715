"""The roofline of this machine: rates of bytes read from memory and of int8 multiply-adds.

The kernels compute nothing of use: `tinychat bench` compares the decoder's rates with theirs.
"""

import numpy as np

from tinychat.kernels.amx import configure_64, load_of, product_of, release_registers, store_of, zero_of
from tinychat.kernels.amx_buffer import BUFFER_FLOATS, RING, TILE
from tinychat.kernels.dot import dot
from tinychat.kernels.jit import allocating_kernel
from tinychat.kernels.memory import load_f32, load_line, prefetch_far
from tinychat.kernels.sizes import FAR_BYTES, LANES, ONE_ROW, TILE_FLOATS, TOKENS
from tinychat.kernels.sums import ROUNDER_BITS, add_scaled, start_tile
from tinychat.kernels.team import share
from tinychat.kernels.tile import add_outer, load_rows, store_tile, zero_tile

# Neighbouring lines read at once, each into a sum of its own. On a Zen 4 core 4 read 35 GB/s, like 1 and 8, prefetched
# or not; lines that are far apart, as several streams, read 15 to 25.
LINES = (0,) * 4
ONE = (0,)
READ_FLOATS = len(LINES) * LANES
# The distance of prefetches: two cores of a Xeon read 33 GB/s with some, 30 without, in turns (`bandwidth`).
FAR_FLOATS = FAR_BYTES // 4
MULTIPLY_ADDS = TILE_FLOATS * 4
TILES_OF_X = 8
# Of four products of full tile registers.
REGISTER_MULTIPLY_ADDS = 4 * 16 * 16 * 64
load_x, load_w, store_sums = load_of(4), load_of(6), store_of(0)
zero_0, zero_1, zero_2, zero_3 = (zero_of(c) for c in range(4))
product_0, product_1, product_2, product_3 = (product_of(c, 4, 6) for c in range(4))


@allocating_kernel
def read_share(thread, threads, values, out):
    """Read a thread's share of `values` once: float32 [n], n a multiple of ``READ_FLOATS``.

    out : float32 [threads, READ_FLOATS], sums, without which the compiler would leave the reads out.
    """
    first, last = share(thread, threads, values.shape[0] // READ_FLOATS)
    one = np.ones(1, np.float32)
    total = zero_tile(LINES, ONE)
    for i in range(first * READ_FLOATS, last * READ_FLOATS, READ_FLOATS):
        for line in range(i, i + READ_FLOATS, LANES):
            prefetch_far(values, line + FAR_FLOATS)
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
    line = load_line(codes, 0)
    for i in range(rounds):
        sums = dot(sums, line, x, i % TILES_OF_X * 4 * len(TOKENS))
    tile = add_scaled(zero_tile(ONE_ROW, TOKENS), sums, load_f32(ones, 0), ones, 0)
    store_tile(out, thread * TILE_FLOATS, tile)


@allocating_kernel
def multiply_registers_share(thread, rounds, values, out):
    """Do `rounds` times the ``REGISTER_MULTIPLY_ADDS`` of tile registers.

    values : int8 [2, 1024], a register of activations and one of weights; out : float32 [threads, 256], of which the
    bits take the sums of one product, int32.
    """
    buffer = np.empty(BUFFER_FLOATS, np.float32)
    configure_64(buffer)
    load_x(buffer, values, 0, 64)
    load_w(buffer, values, 4 * TILE, 64)
    zero_0(buffer)
    zero_1(buffer)
    zero_2(buffer)
    zero_3(buffer)
    for _ in range(rounds):
        product_0(buffer)
        product_1(buffer)
        product_2(buffer)
        product_3(buffer)
    store_sums(buffer, RING)
    for i in range(TILE):
        out[thread, i] = buffer[RING + i]
    release_registers(buffer)
