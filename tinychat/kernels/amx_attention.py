"""Attention's products beside a cache of pairs, on tile registers (AMX), to the bits of `kernels.attention`.

A product of registers is of 16 rows and 16 keys or channels, over 16 pairs of bfloat16. It sums even and odd elements
apart, each in a chain that begins at 0, and adds the sum of both to what is in the register (Intel 64 and IA-32
Architectures Software Developer's Manual, volume 2: TDPBF16PS). Vectors have one chain, odd elements first. So numbers
are widened to floats, which are pairs of 0 and a number: one chain is 0, and the other takes 16 numbers in the order of
vectors. Queries and weights are stored in that order. Keys and values are brought into it once for all rows of an item.
"""

from numba import types

from tinychat.kernels.amx import configure_64, load, multiply_pairs, release_registers, store, zero
from tinychat.kernels.amx_buffer import HAS_TILE_REGISTERS, REGISTERS, TILE
from tinychat.kernels.bfloat16 import even_elements, odd_elements, round_bf16
from tinychat.kernels.intrinsics import ANY, I8, I32X16, I64, INDEX, operation
from tinychat.kernels.jit import always_inline, always_inline_by_type, inline
from tinychat.kernels.kv import PAIRS, element_of
from tinychat.kernels.memory import load_f32, prefetch_far, store_f32
from tinychat.kernels.simd import splat_f32, swapped
from tinychat.kernels.sizes import BLOCK, LANES

LEAST_ROWS = 5  # fewer are as fast on vectors
AWAKE_ROWS = 8  # of a softmax, which takes some 12 ns for each
ROWS, FACTORS = 6, 7  # registers behind those of sums
KEY_VECTORS = BLOCK // LANES
LINE = 64  # bytes
MOST_CHANNELS = REGISTERS // (2 * LANES)  # of heads, of which two vectors of widened keys are in the thread's buffer


@operation(types.void, ANY, INDEX, ANY, INDEX)
def widen(builder, buffer, place, pairs, index):
    """Store 16 odd elements as floats, from float `place` of the buffer on, and behind them the even ones."""
    line = pairs.load(index, I32X16, align=4)
    buffer.store(place, odd_elements(builder, line), align=4)
    buffer.store(builder.add(place, I64(LANES)), even_elements(builder, line), align=4)


def sums_of(count):
    """Make the operations on the sums of `count` times 16 rows."""

    @operation(types.void, ANY)
    def clear_sums(builder, buffer):
        """Clear the registers."""
        for tile in range(count):
            zero(builder, buffer, tile)

    def moved(instruction):
        @operation(types.void, ANY, ANY, INDEX, INDEX)
        def move_sums(builder, buffer, array, index, stride):
            """Load or store rows that are `stride` floats apart, from float `index` of an array on."""
            for tile in range(count):
                row = builder.apart(index, stride, tile * LANES)
                instruction(builder, buffer, tile, array.pointer(row, I8), builder.mul(stride, I64(4)))

        return move_sums

    @operation(types.void, ANY, ANY, INDEX, INDEX, INDEX)
    def add_product(builder, buffer, rows, index, stride, place):
        """Add the products of 16 floats of each row, from float `index` on, and of what is at `place` of the buffer."""
        load(builder, buffer, FACTORS, buffer.pointer(place, I8), I64(LINE))
        for tile in range(count):
            row = builder.apart(index, stride, tile * LANES)
            load(builder, buffer, ROWS, rows.pointer(row, I8), builder.mul(stride, I64(4)))
            multiply_pairs(builder, buffer, tile, ROWS, FACTORS)

    return clear_sums, moved(load), moved(store), add_product


def may_use_tiles(item, cache):
    """Return whether there are tile registers for these types of an item, or of scratch, and of a cache."""
    return HAS_TILE_REGISTERS and element_of(cache) == PAIRS and item.types[0].dtype == types.float32


@always_inline_by_type
def uses_tiles(item, cache, rows):
    """Return whether so many rows are multiplied on tile registers, to whole products of 16 channels."""

    def enough(item, cache, rows):
        d = cache.keys.shape[4] * 2
        return rows >= LEAST_ROWS and d % LANES == 0 and d <= MOST_CHANNELS

    return enough if may_use_tiles(item, cache) else lambda item, cache, rows: False


def where_used(change):
    """Make the function that changes all registers of a thread, if items of up to `rows` rows use them."""

    @always_inline_by_type
    def change_tiles(scratch, cache, thread, rows):
        def changed(scratch, cache, thread, rows):
            if uses_tiles(scratch, cache, rows):
                change(scratch.tiles[thread])

        return changed if may_use_tiles(scratch, cache) else lambda scratch, cache, thread, rows: None

    return change_tiles


begin_tiles, end_tiles = where_used(configure_64), where_used(release_registers)


@operation(types.void, ANY)
def product_in_vain(builder, buffer):
    """Multiply whatever is in the registers."""
    multiply_pairs(builder, buffer, 0, ROWS, FACTORS)


@always_inline_by_type
def stay_awake(item, cache, r):
    """Keep the processor from putting the multiplier of the registers to sleep, at row `r` of many.

    Without a product for some 350 ns it does, and the next ones take twice the time for microseconds (measured on
    Granite Rapids).
    """

    def stay(item, cache, r):
        if r % AWAKE_ROWS == 0 and uses_tiles(item, cache, item.rows - item.row0):
            product_in_vain(item.tiles)

    return stay if may_use_tiles(item, cache) else lambda item, cache, r: None


@always_inline_by_type
def write_query_row(item, cache, r, qkv, start, d):
    """Write the query of a row, from element `start` of `qkv` on."""

    def write(item, cache, r, qkv, start, d):
        for i in range(0, d, LANES):
            store_f32(item.queries, r * d + i, swapped(round_bf16(load_f32(qkv, start + i))))

    return write if may_use_tiles(item, cache) else lambda item, cache, r, qkv, start, d: None


@always_inline_by_type
def write_weights(item, cache, r, weights):
    """Write the weights of a row, which are rounded."""

    def write(item, cache, r, weights):
        store_f32(item.weights, r * BLOCK, swapped(weights))

    return write if may_use_tiles(item, cache) else lambda item, cache, r, weights: None


@always_inline
def widen_keys(item, cache, v, head, next_head, place):
    """Widen vector `v` of a head's keys; prefetch that of the next head."""
    steps = cache.keys.shape[4]
    first, ahead = (head * KEY_VECTORS + v) * steps * LANES, (next_head * KEY_VECTORS + v) * steps * LANES
    for i in range(steps):
        prefetch_far(cache.keys, ahead + i * LANES)
        widen(item.tiles, place + i * 2 * LANES, cache.keys, first + i * LANES)


@always_inline
def clear_values(item, first, last, place):
    """Write 0 where values at positions first..last are widened; place : of position 0."""
    for position in range(first, last):
        store_f32(item.tiles, place + (position ^ 1) * LANES, splat_f32(0.0))


@always_inline
def widen_values(item, cache, v, low, high, head, next_head, place):
    """Widen vector `v` of channels of a head's values at positions low..high, with 0 around them up to whole tiles."""
    padded, pairs = cache.values.shape[4], cache.values.shape[3]
    first, ahead = head * pairs * padded + v * LANES, next_head * pairs * padded + v * LANES
    begin, end = low // LANES * LANES, (high + LANES - 1) // LANES * LANES
    for s in range(begin // 2, end // 2):
        prefetch_far(cache.values, ahead + s * padded)
        widen(item.tiles, place + (2 * s - begin) * LANES, cache.values, first + s * padded)
    clear_values(item, begin, low, place - begin * LANES)
    clear_values(item, high, end, place - begin * LANES)


def products_of(count):
    """Make the functions that score, and that weigh, `count` times 16 rows."""
    clear_sums, load_sums, store_sums, add_product = sums_of(count)

    @inline
    def score(item, cache, vectors, head, next_head):
        d = cache.keys.shape[4] * 2
        widen_keys(item, cache, 0, head, next_head, 0)
        for v in range(vectors):
            place, other = v % 2 * LANES * d, (v + 1) % 2 * LANES * d
            if v + 1 < vectors:
                widen_keys(item, cache, v + 1, head, next_head, other)
            clear_sums(item.tiles)
            for i in range(d // LANES):
                add_product(item.tiles, item.queries, i * LANES, d, place + i * TILE)
            store_sums(item.tiles, item.scores, v * LANES, BLOCK)

    @inline
    def weigh(item, cache, acc, low, high, head, next_head):
        first, end, vectors = low // LANES, (high + LANES - 1) // LANES, cache.values.shape[4] // LANES
        widen_values(item, cache, 0, low, high, head, next_head, 0)
        for v in range(vectors):
            place, other = v % 2 * LANES * BLOCK, (v + 1) % 2 * LANES * BLOCK
            if v + 1 < vectors:
                widen_values(item, cache, v + 1, low, high, head, next_head, other)
            load_sums(item.tiles, acc, v * LANES, acc.shape[1])
            for i in range(first, end):
                add_product(item.tiles, item.weights, i * LANES, BLOCK, place + (i - first) * TILE)
            store_sums(item.tiles, acc, v * LANES, acc.shape[1])

    return score, weigh


(score_16, weigh_16), (score_32, weigh_32), (score_48, weigh_48) = map(products_of, (1, 2, 3))


@always_inline_by_type
def score_rows(item, cache, rows, high, head, next_head):
    """Write the products of all queries with the keys of a head's block below `high`, by vectors of keys."""

    def score(item, cache, rows, high, head, next_head):
        vectors = (high + LANES - 1) // LANES
        if rows > 2 * LANES:
            score_48(item, cache, vectors, head, next_head)
        elif rows > LANES:
            score_32(item, cache, vectors, head, next_head)
        else:
            score_16(item, cache, vectors, head, next_head)

    return score if may_use_tiles(item, cache) else lambda item, cache, rows, high, head, next_head: None


@always_inline_by_type
def weigh_rows(item, cache, acc, rows, low, high, head, next_head):
    """Add the weighted values of a head's block at positions low..high to the sums of all rows, by vectors."""

    def weigh(item, cache, acc, rows, low, high, head, next_head):
        if rows > 2 * LANES:
            weigh_48(item, cache, acc, low, high, head, next_head)
        elif rows > LANES:
            weigh_32(item, cache, acc, low, high, head, next_head)
        else:
            weigh_16(item, cache, acc, low, high, head, next_head)

    return weigh if may_use_tiles(item, cache) else lambda item, cache, acc, rows, low, high, head, next_head: None
