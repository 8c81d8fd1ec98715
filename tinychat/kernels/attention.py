"""Causal attention over the KV cache, fused: scores, softmax and weighted sum in one pass.

For a query at position p, over keys s with ``max(0, p - window + 1) <= s <= p``,

    out = sum_s 2**(q.k_s - m) v_s / sum_s 2**(q.k_s - m)

with queries already scaled by ``log2(e) / sqrt(d)``. Positions are taken in blocks of 64 with an online softmax
(Milakov and Gimelshein, 2018; Dao et al., 2022) inside chunks of 512; chunks start afresh and are merged by
their maxima, in ascending order. Blocks and chunks stand at fixed positions, so one query alone (chunks spread
over the threads, merged after) and many at once (chunks one after another) sum in the same order, to the same bits.

A *row* is one query head of one token. The heads that share a KV head, of consecutive tokens, are the rows of one
*item* of work, up to 8 tiles of them, so each key and value is read once for all. The state of a tile is flat
float32: ``m`` [16], ``l`` [16] (a lane is a row), ``acc`` [d/16, rows, 16].
"""

from typing import NamedTuple

import numpy as np

from tinychat.kernels.memory import load_f32, store_f32
from tinychat.kernels.policy import inlined, kernel
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
    multiply,
    splat_f32,
    subtract,
    sum_lanes,
)
from tinychat.kernels.threads import barrier
from tinychat.kernels.tile import add_outer, load_rows, load_tile, scale_by_token, store_tile, zero_tile

BLOCK = 64
CHUNK = 512
TILES = 8
# Tile shapes, as tuples whose lengths count: 4 x 4 vectors on AVX-512, 2 x 2 where there are 16 registers.
QUERY_ROWS = (0,) * (4 if ISA == "avx512vnni" else 2)
VECTORS = (0,) * (4 if ISA == "avx512vnni" else 2)
ONE_VECTOR = (0,)
ROWS = len(QUERY_ROWS)
ITEM_ROWS = TILES * ROWS
NOTHING = np.float32(-1e30)


class AttentionScratch(NamedTuple):
    """Scratch of attention, float32.

    queries [threads, TILES * d * ROWS], scores [threads, BLOCK * ROWS + 32], totals [threads, TILES * tile state],
    partials [slots, TILES * tile state]: one slot for each thread, and for each (item, chunk) of a single token.
    """

    queries: np.ndarray
    scores: np.ndarray
    totals: np.ndarray
    partials: np.ndarray


@inlined
def tile_floats(padded):
    """Return the floats of one tile's state; `padded` is the head size rounded up to 16."""
    return 2 * LANES + padded * ROWS


@inlined
def load_queries(qkv, queries, g, group, row0, rows, d):
    """Copy an item's queries to [tile, channel, row]; rows past the last repeat it."""
    for r in range((min(ITEM_ROWS, rows - row0) + ROWS - 1) // ROWS * ROWS):
        row = min(row0 + r, rows - 1)
        start = (g * group + row % group) * d
        for i in range(d):
            queries[((r // ROWS) * d + i) * ROWS + r % ROWS] = qkv[row // group, start + i]


@inlined
def clear(state, tiles, padded):
    """Set a state to that of no keys at all."""
    size = tile_floats(padded)
    for tile in range(tiles):
        store_f32(state, tile * size, splat_f32(NOTHING))
        for i in range(tile * size + LANES, (tile + 1) * size, LANES):
            store_f32(state, i, splat_f32(0.0))


@inlined
def score_block(queries, tile, keys, g, block, scores, d):
    """Write the products of a tile's queries with 64 keys to `scores` [4, rows, 16]."""
    first = (g * keys.shape[1] + block * (BLOCK // LANES)) * d * LANES
    for v in range(0, BLOCK // LANES, len(VECTORS)):
        products = zero_tile(VECTORS, QUERY_ROWS)
        for i in range(d):
            key = load_rows(keys, first + (v * d + i) * LANES, d * LANES, VECTORS)
            products = add_outer(products, key, queries, (tile * d + i) * ROWS, 1)
        store_tile(scores, v * ROWS * LANES, products)


@inlined
def soften_row(scores, r, low, high, peak):
    """Turn a row's scores into ``2**(score - max)``, zero outside low..high; return (the new max, their sum)."""
    partly = low > 0 or high < BLOCK
    largest = splat_f32(peak)
    for v in range(BLOCK // LANES):
        place = (v * ROWS + r) * LANES
        score = load_f32(scores, place)
        if partly:
            score = fill_outside(score, low - v * LANES, high - v * LANES, NOTHING)
            store_f32(scores, place, score)
        largest = maximum(largest, score)
    new_peak = max_lanes(largest)
    shift = splat_f32(new_peak)
    total = splat_f32(0.0)
    for v in range(BLOCK // LANES):
        place = (v * ROWS + r) * LANES
        weight = exp2(subtract(load_f32(scores, place), shift))
        if partly:
            weight = keep_lanes(weight, low - v * LANES, high - v * LANES)
        store_f32(scores, place, weight)
        total = add(total, weight)
    return new_peak, sum_lanes(total)


@inlined
def soften_block(scores, state, base, row, rows, group, start, window, block):
    """Turn a tile's scores into weights, bring its m and l up to date; leave the factors for acc in `scores`."""
    peaks, sums = BLOCK * ROWS, BLOCK * ROWS + LANES
    for r in range(ROWS):
        position = start + min(row + r, rows - 1) // group
        low = max(0, position + 1 - window) - block * BLOCK
        high = position + 1 - block * BLOCK
        scores[peaks + r], scores[sums + r] = soften_row(scores, r, low, high, state[base + r])
    new_peaks = load_f32(scores, peaks)
    factors = exp2(subtract(load_f32(state, base), new_peaks))
    store_f32(state, base, new_peaks)
    store_f32(state, base + LANES, fma(load_f32(state, base + LANES), factors, load_f32(scores, sums)))
    store_f32(scores, peaks, factors)


@inlined
def add_values(scores, state, place, values, first, padded, low, high, vectors):
    """Add 64 weighted values to `vectors` x 16 channels of a tile's acc; rows low..high of the block exist."""
    acc = load_tile(state, place, vectors, QUERY_ROWS)
    acc = scale_by_token(acc, scores, BLOCK * ROWS, QUERY_ROWS)
    for v in range(BLOCK // LANES):
        for s in range(max(low, v * LANES), min(high, (v + 1) * LANES)):
            value = load_rows(values, first + s * padded, LANES, vectors)
            acc = add_outer(acc, value, scores, v * ROWS * LANES + s % LANES, LANES)
    store_tile(state, place, acc)


@inlined
def weigh_block(scores, state, base, values, g, block, low, high):
    """Add 64 weighted values to all channels of a tile's acc."""
    padded = values.shape[2]
    wide = padded - padded % (len(VECTORS) * LANES)
    first = (g * values.shape[1] + block * BLOCK) * padded
    acc = base + 2 * LANES
    for i in range(0, wide, len(VECTORS) * LANES):
        add_values(scores, state, acc + i * ROWS, values, first + i, padded, low, high, VECTORS)
    for i in range(wide, padded, LANES):
        add_values(scores, state, acc + i * ROWS, values, first + i, padded, low, high, ONE_VECTOR)


@inlined
def attend_chunk(queries, scores, state, keys, values, g, group, row0, rows, start, window, chunk):
    """Fill the state of an item's rows with one chunk of positions."""
    d, padded = keys.shape[2], values.shape[2]
    tiles = (min(ITEM_ROWS, rows - row0) + ROWS - 1) // ROWS
    clear(state, tiles, padded)
    oldest = max(0, start + row0 // group + 1 - window)
    newest = start + min(row0 + ITEM_ROWS, rows) // group
    per_chunk = CHUNK // BLOCK
    for block in range(max(chunk * per_chunk, oldest // BLOCK), min((chunk + 1) * per_chunk, newest // BLOCK + 1)):
        for tile in range(tiles):
            row = row0 + tile * ROWS
            low = max(0, start + row // group + 1 - window) - block * BLOCK
            high = start + min(row + ROWS - 1, rows - 1) // group + 1 - block * BLOCK
            if high > 0 and low < BLOCK:
                base = tile * tile_floats(padded)
                score_block(queries, tile, keys, g, block, scores, d)
                soften_block(scores, state, base, row, rows, group, start, window, block)
                weigh_block(scores, state, base, values, g, block, max(0, low), min(BLOCK, high))


@inlined
def merge(total, part, tiles, padded):
    """Add the state of a later chunk to the total: both are brought to the larger maximum."""
    size = tile_floats(padded)
    for base in range(0, tiles * size, size):
        old, new = load_f32(total, base), load_f32(part, base)
        peak = maximum(old, new)
        keep, take = exp2(subtract(old, peak)), exp2(subtract(new, peak))
        taken = multiply(load_f32(part, base + LANES), take)
        store_f32(total, base + LANES, fma(load_f32(total, base + LANES), keep, taken))
        store_f32(total, base, peak)
        # The new chunk's m has been read: its place, and l's, serve the factors of each row.
        store_f32(part, base, keep)
        store_f32(part, base + LANES, take)
        for i in range(base + 2 * LANES, base + size, ROWS * LANES):
            for r in range(ROWS):
                place = i + r * LANES
                taken = multiply(load_f32(part, place), splat_f32(part[base + LANES + r]))
                store_f32(total, place, fma(load_f32(total, place), splat_f32(part[base + r]), taken))


@inlined
def finish(total, out, g, group, row0, rows, d, padded):
    """Divide by the softmax's sum and write the item's rows to out [T, H * d]."""
    for r in range(min(ITEM_ROWS, rows - row0)):
        row = row0 + r
        base = (r // ROWS) * tile_floats(padded)
        weight_sum = total[base + LANES + r % ROWS]
        acc, column = base + 2 * LANES + r % ROWS * LANES, (g * group + row % group) * d
        for i in range(d):
            out[row // group, column + i] = total[acc + i // LANES * ROWS * LANES + i % LANES] / weight_sum


@kernel
def attend(thread, threads, mailbox, T, qkv, heads, start, window, keys, values, scratch, out):
    """Attend from positions ``start..start + T`` to all that the cache holds up to each of them.

    qkv : float32 [>= T, >= H d], rotated and scaled queries first; heads : H; window : positions a query sees,
    itself included; keys, values : one layer's front buffers, already appended to; out : float32 [>= T, >= H d].
    """
    G, d, padded = keys.shape[0], keys.shape[2], values.shape[2]
    group = heads // G
    rows = T * group
    per_head = (rows + ITEM_ROWS - 1) // ITEM_ROWS
    items = G * per_head
    queries, scores, total = scratch.queries[thread], scratch.scores[thread], scratch.totals[thread]
    first_chunk, chunks = max(0, start + 1 - window) // CHUNK, (start + T - 1) // CHUNK + 1
    if T == 1:
        count = chunks - first_chunk
        for unit in range(thread, items * count, threads):
            item, chunk = unit // count, first_chunk + unit % count
            g, row0 = item // per_head, item % per_head * ITEM_ROWS
            load_queries(qkv, queries, g, group, row0, rows, d)
            part = scratch.partials[unit]
            attend_chunk(queries, scores, part, keys, values, g, group, row0, rows, start, window, chunk)
        barrier(mailbox, threads)
    for item in range(thread, items, threads):
        g, row0 = item // per_head, item % per_head * ITEM_ROWS
        tiles = (min(ITEM_ROWS, rows - row0) + ROWS - 1) // ROWS
        clear(total, tiles, padded)
        if T > 1:
            load_queries(qkv, queries, g, group, row0, rows, d)
        newest = start + (min(row0 + ITEM_ROWS, rows) - 1) // group
        oldest = max(0, start + row0 // group + 1 - window)
        for chunk in range(oldest // CHUNK, newest // CHUNK + 1):
            part = scratch.partials[item * (chunks - first_chunk) + chunk - first_chunk if T == 1 else thread]
            if T > 1:
                attend_chunk(queries, scores, part, keys, values, g, group, row0, rows, start, window, chunk)
            merge(total, part, tiles, padded)
        finish(total, out, g, group, row0, rows, d, padded)
