"""One block of 64 positions, for all tiles of an item: scores, online softmax, weighted values.

The inner part of `attention`, which says what it is for. Each of the three is done for all rows before the next: rows
do not wait for each other, so the processor finds work in one while another's chain of operations is under way. One
source serves every type of cache: where keys and values are pairs, so are queries and weights, and a step of a product
takes two channels or positions at once.
"""

from typing import NamedTuple

import numpy as np

from tinychat.kernels.bfloat16 import round_bf16, store_halves
from tinychat.kernels.jit import inlined, inlined_by_type
from tinychat.kernels.kv import CODES, KEY, PAIRS, VALUE, element_of, per_lane
from tinychat.kernels.memory import load_f32, load_f32x64, prefetch_far, store_f32
from tinychat.kernels.setup import ISA
from tinychat.kernels.simd import (
    LANES,
    exp2,
    exp2_up_to_127,
    fill_outside,
    fma,
    keep_lanes,
    like,
    max_lanes,
    multiply,
    subtract,
    sum_lanes,
)
from tinychat.kernels.tile import (
    add_outer,
    load_rows,
    load_tile,
    scale_by_token,
    store_tile,
    store_tokens,
    zero_tile,
)

BLOCK = 64
# Tile shapes, as tuples whose lengths count: 4 x 4 vectors on AVX-512, 2 x 2 where there are 16 registers.
QUERY_ROWS = (0,) * (4 if ISA == "avx512vnni" else 2)
VECTORS = (0,) * (4 if ISA == "avx512vnni" else 2)
ONE_VECTOR = (0,)
ROWS = len(QUERY_ROWS)
TILES = 8
ITEM_ROWS = TILES * ROWS
NOTHING = np.float32(-1e30)  # a maximum below any score
# Places in `scores` after the scores: each row's maximum and sum of this block.
PEAKS = ITEM_ROWS * BLOCK
SUMS = PEAKS + ITEM_ROWS


class Item(NamedTuple):
    """Rows that are attended together, and the working memory for it."""

    queries: np.ndarray  # [ITEM_ROWS, d]
    scores: np.ndarray  # float32 [ITEM_ROWS, BLOCK], then peaks and sums [ITEM_ROWS]
    weights: np.ndarray  # [ITEM_ROWS, BLOCK]: what values are multiplied by
    positions: np.ndarray  # int64 [ITEM_ROWS]
    g: int  # their KV head
    group: int  # how many query heads share it
    row0: int  # the first of them, among
    rows: int  # all rows of this KV head
    window: int


@inlined
def tiles_of(item):
    """Return how many tiles the item has."""
    return (min(ITEM_ROWS, item.rows - item.row0) + ROWS - 1) // ROWS


@inlined
def span_of(item, first, last, block):
    """Return which positions of a block its rows first..last see anything of: none if the first is not the lesser."""
    low = item.positions[first] + 1 - item.window - block * BLOCK
    high = item.positions[last] + 1 - block * BLOCK
    return max(0, low), min(BLOCK, high)


@inlined
def span_of_tile(item, tile, block):
    """Return which positions of a block a tile sees anything of."""
    return span_of(item, tile * ROWS, tile * ROWS + ROWS - 1, block)


@inlined
def place_of_tile(tile, padded):
    """Return where a tile's ``acc`` stands in the state."""
    return 2 * ITEM_ROWS + tile * padded * ROWS


@inlined_by_type
def as_factor(factors, x):
    """Return numbers as rounded as `factors`, which keys or values are multiplied by, can hold them.

    Those are pairs where the cache has pairs, else float32.
    """
    return (lambda factors, x: round_bf16(x)) if factors.dtype == PAIRS else lambda factors, x: x


@inlined_by_type
def store_factors(factors, index, x):
    """Store numbers that `as_factor` has rounded, from number `index` on."""
    store = store_halves if factors.dtype == PAIRS else store_f32
    return lambda factors, index, x: store(factors, index, x)


@inlined_by_type
def scaled(cache, kind, g, position, x):
    """Return 64 scores or weights times the scales of the keys or values of 64 positions, where they have any."""

    def codes(cache, kind, g, position, x):
        first = (g * 2 + kind) * cache.scales.shape[2] + position
        return multiply(x, load_f32x64(cache.scales, first))

    return codes if element_of(cache) == CODES else lambda cache, kind, g, position, x: x


@inlined
def score_vectors(item, keys, tile, first, v, ahead, vectors):
    """Write the products of a tile's queries with `vectors` x 16 keys from vector `v` of the block on."""
    steps = keys.shape[2]
    queries, wanted = tile * ROWS * steps, first + (v + ahead) * steps * LANES
    products = zero_tile(vectors, QUERY_ROWS)
    for i in range(steps):
        for w in range(len(vectors)):
            prefetch_far(keys, wanted + (i * len(vectors) + w) * LANES)
        key = load_rows(keys, first + (v * steps + i) * LANES, steps * LANES, vectors)
        products = add_outer(products, key, item.queries, queries + i, steps)
    store_tokens(item.scores, tile * ROWS * BLOCK + v * LANES, BLOCK, products, QUERY_ROWS)


@inlined
def score_tile(item, keys, tile, block, high, blocks_ahead):
    """Write the products of a tile's queries with the first `high` keys of a block, or up to 15 more.

    blocks_ahead : how many blocks further to ask memory for keys.
    """
    first = (item.g * keys.shape[1] + block * (BLOCK // LANES)) * keys.shape[2] * LANES
    seen, ahead = (high + LANES - 1) // LANES, blocks_ahead * (BLOCK // LANES)
    wide = seen - seen % len(VECTORS)
    for v in range(0, wide, len(VECTORS)):
        score_vectors(item, keys, tile, first, v, ahead, VECTORS)
    for v in range(wide, seen):
        score_vectors(item, keys, tile, first, v, ahead, ONE_VECTOR)


@inlined
def soften_row(item, cache, r, block, peak):
    """Make weights ``2**(score - max)`` of a row's scores, 0 for what it does not see; return (new max, their sum)."""
    low, high = span_of(item, r, r, block)
    partly = low > 0 or high < BLOCK
    score = scaled(cache, KEY, item.g, block * BLOCK, load_f32x64(item.scores, r * BLOCK))
    if partly:
        score = fill_outside(score, low, high, NOTHING)
    peak = max(peak, max_lanes(score))
    weight = as_factor(item.weights, exp2_up_to_127(subtract(score, like(score, peak))))
    factor = scaled(cache, VALUE, item.g, block * BLOCK, weight)
    if partly:
        weight, factor = keep_lanes(weight, low, high), keep_lanes(factor, low, high)
    store_factors(item.weights, r * BLOCK, factor)
    return peak, sum_lanes(weight)


@inlined
def soften(item, cache, state, tiles, block):
    """Make weights of all scores, bring m and l up to date, and leave the factors for acc where the peaks were."""
    scores = item.scores
    for tile in range(tiles):
        low, high = span_of_tile(item, tile, block)
        for r in range(tile * ROWS, (tile + 1) * ROWS):
            peak, total = state[r], np.float32(0)
            if low < high:
                peak, total = soften_row(item, cache, r, block, peak)
            scores[PEAKS + r], scores[SUMS + r] = peak, total
    for r in range(0, tiles * ROWS, LANES):
        peaks = load_f32(scores, PEAKS + r)
        factors = exp2(subtract(load_f32(state, r), peaks))
        store_f32(state, r, peaks)
        total = fma(load_f32(state, ITEM_ROWS + r), factors, load_f32(scores, SUMS + r))
        store_f32(state, ITEM_ROWS + r, total)
        store_f32(scores, PEAKS + r, factors)


@inlined
def add_values(item, state, place, tile, values, first, low, high, rows, ahead, vectors):
    """Add weighted rows low..high of a block's `rows` of values to `vectors` x 16 channels of a tile's acc."""
    padded = values.shape[2]
    acc = load_tile(state, place, vectors, QUERY_ROWS)
    acc = scale_by_token(acc, item.scores, PEAKS + tile * ROWS, QUERY_ROWS)
    for s in range(low, high):
        for w in range(len(vectors)):
            prefetch_far(values, first + (s + ahead) * padded + w * LANES)
        value = load_rows(values, first + s * padded, LANES, vectors)
        acc = add_outer(acc, value, item.weights, tile * ROWS * rows + s, rows)
    store_tile(state, place, acc)


@inlined
def weigh_tile(item, cache, state, tile, block, low, high, blocks_ahead):
    """Add the weighted values of positions low..high of a block to a tile's acc."""
    values, shared = cache.values, per_lane(cache)
    padded, rows = values.shape[2], BLOCK // shared
    wide = padded - padded % (len(VECTORS) * LANES)
    first = (item.g * values.shape[1] + block * rows) * padded
    low, high, ahead = low // shared, (high + shared - 1) // shared, blocks_ahead * rows
    place = place_of_tile(tile, padded)
    for i in range(0, wide, len(VECTORS) * LANES):
        add_values(item, state, place + i * ROWS, tile, values, first + i, low, high, rows, ahead, VECTORS)
    for i in range(wide, padded, LANES):
        add_values(item, state, place + i * ROWS, tile, values, first + i, low, high, rows, ahead, ONE_VECTOR)


@inlined
def attend_block(item, cache, state, block):
    """Add one block of positions to the state of an item's rows."""
    tiles = tiles_of(item)
    # One token alone would wait for memory; of many tokens, the first tiles have fetched it for the rest.
    alone = item.rows == item.group
    for tile in range(tiles):
        low, high = span_of_tile(item, tile, block)
        if low < high:
            score_tile(item, cache.keys, tile, block, high, 1 if alone and tile == 0 else 0)
    soften(item, cache, state, tiles, block)
    for tile in range(tiles):
        low, high = span_of_tile(item, tile, block)
        if low < high:
            weigh_tile(item, cache, state, tile, block, low, high, 1 if alone and tile == 0 else 0)
