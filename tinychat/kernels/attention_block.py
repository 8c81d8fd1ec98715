"""One tile of query rows against one block of 64 positions: scores, online softmax, weighted values.

The inner part of `attention`, which says what it is for. `scores` float32 [64/16 * rows * 16 + 32] holds a block's
scores, then its weights, then each row's maximum and sum; `state` is a tile's, flat: ``m`` [16], ``l`` [16],
``acc`` [d/16, rows, 16].
"""

import numpy as np

from tinychat.kernels.memory import load_f32, prefetch_far, store_f32
from tinychat.kernels.policy import inlined
from tinychat.kernels.setup import ISA
from tinychat.kernels.simd import (
    LANES,
    add,
    exp2,
    fill_outside,
    fma,
    keep_lanes,
    max_lanes,
    maximum,
    splat_f32,
    subtract,
    sum_lanes,
)
from tinychat.kernels.tile import add_outer, load_rows, load_tile, scale_by_token, store_tile, zero_tile

BLOCK = 64
# Tile shapes, as tuples whose lengths count: 4 x 4 vectors on AVX-512, 2 x 2 where there are 16 registers.
QUERY_ROWS = (0,) * (4 if ISA == "avx512vnni" else 2)
VECTORS = (0,) * (4 if ISA == "avx512vnni" else 2)
ONE_VECTOR = (0,)
ROWS = len(QUERY_ROWS)
NOTHING = np.float32(-1e30)  # a maximum below any score


@inlined
def score_vectors(queries, tile, keys, first, scores, v, d, ahead, vectors):
    """Write the products of a tile's queries with `vectors` x 16 keys from vector `v` of the block on."""
    products = zero_tile(vectors, QUERY_ROWS)
    for i in range(d):
        place = first + (v * d + i) * LANES
        for w in range(len(vectors)):
            prefetch_far(keys, place + (w + ahead) * d * LANES)
        key = load_rows(keys, place, d * LANES, vectors)
        products = add_outer(products, key, queries, tile * ROWS * d + i, d)
    store_tile(scores, v * ROWS * LANES, products)


@inlined
def score_block(queries, tile, keys, g, block, scores, d, seen, ahead):
    """Write the products of a tile's queries with the first `seen` vectors of 64 keys to `scores` [4, rows, 16].

    ahead : how many vectors of 16 positions further to ask memory for keys.
    """
    first = (g * keys.shape[1] + block * (BLOCK // LANES)) * d * LANES
    wide = seen - seen % len(VECTORS)
    for v in range(0, wide, len(VECTORS)):
        score_vectors(queries, tile, keys, first, scores, v, d, ahead, VECTORS)
    for v in range(wide, seen):
        score_vectors(queries, tile, keys, first, scores, v, d, ahead, ONE_VECTOR)


@inlined
def soften_row(scores, r, low, high, peak, seen):
    """Turn a row's scores into ``2**(score - max)``, zero outside low..high; return (the new max, their sum)."""
    partly = low > 0 or high < seen * LANES
    largest = splat_f32(peak)
    for v in range(seen):
        place = (v * ROWS + r) * LANES
        score = load_f32(scores, place)
        if partly:
            score = fill_outside(score, low - v * LANES, high - v * LANES, NOTHING)
            store_f32(scores, place, score)
        largest = maximum(largest, score)
    new_peak = max_lanes(largest)
    shift = splat_f32(new_peak)
    total = splat_f32(0.0)
    for v in range(seen):
        place = (v * ROWS + r) * LANES
        weight = exp2(subtract(load_f32(scores, place), shift))
        if partly:
            weight = keep_lanes(weight, low - v * LANES, high - v * LANES)
        store_f32(scores, place, weight)
        total = add(total, weight)
    return new_peak, sum_lanes(total)


@inlined
def soften_block(scores, state, base, row, rows, group, start, window, block, seen):
    """Turn a tile's scores into weights, bring its m and l up to date; leave the factors for acc in `scores`."""
    peaks, sums = BLOCK * ROWS, BLOCK * ROWS + LANES
    position, head = start + row // group, row % group
    for r in range(ROWS):
        low = max(0, position + 1 - window) - block * BLOCK
        high = position + 1 - block * BLOCK
        scores[peaks + r], scores[sums + r] = soften_row(scores, r, low, high, state[base + r], seen)
        head += 1
        if head == group and row + r < rows - 1:
            position, head = position + 1, 0
    new_peaks = load_f32(scores, peaks)
    factors = exp2(subtract(load_f32(state, base), new_peaks))
    store_f32(state, base, new_peaks)
    store_f32(state, base + LANES, fma(load_f32(state, base + LANES), factors, load_f32(scores, sums)))
    store_f32(scores, peaks, factors)


@inlined
def add_values(scores, state, place, values, first, padded, low, high, ahead, vectors):
    """Add 64 weighted values to `vectors` x 16 channels of a tile's acc; rows low..high of the block exist."""
    acc = load_tile(state, place, vectors, QUERY_ROWS)
    acc = scale_by_token(acc, scores, BLOCK * ROWS, QUERY_ROWS)
    for v in range(BLOCK // LANES):
        for s in range(max(low, v * LANES), min(high, (v + 1) * LANES)):
            for w in range(0, len(vectors), 2):
                prefetch_far(values, first + (s + ahead * LANES) * padded + w * LANES)
            value = load_rows(values, first + s * padded, LANES, vectors)
            acc = add_outer(acc, value, scores, v * ROWS * LANES + s % LANES, LANES)
    store_tile(state, place, acc)


@inlined
def weigh_block(scores, state, base, values, g, block, low, high, ahead):
    """Add 64 weighted values to all channels of a tile's acc; `ahead` is that of `score_block`."""
    padded = values.shape[2]
    wide = padded - padded % (len(VECTORS) * LANES)
    first = (g * values.shape[1] + block * BLOCK) * padded
    acc = base + 2 * LANES
    for i in range(0, wide, len(VECTORS) * LANES):
        add_values(scores, state, acc + i * ROWS, values, first + i, padded, low, high, ahead, VECTORS)
    for i in range(wide, padded, LANES):
        add_values(scores, state, acc + i * ROWS, values, first + i, padded, low, high, ahead, ONE_VECTOR)
