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

from tinychat.kernels.attention_block import BLOCK, NOTHING, ROWS, score_block, soften_block, weigh_block
from tinychat.kernels.memory import load_f32, store_f32, store_one
from tinychat.kernels.policy import inlined, kernel
from tinychat.kernels.simd import (
    LANES,
    divide,
    exp2,
    fma,
    maximum,
    multiply,
    splat_f32,
    subtract,
)
from tinychat.kernels.threads import barrier, settle, take

CHUNK = 512
TILES = 8
ITEM_ROWS = TILES * ROWS


class AttentionScratch(NamedTuple):
    """Scratch of attention, float32.

    queries [threads, TILES * ROWS * d + 16], scores [threads, BLOCK * ROWS + 32], totals [threads, TILES * tile state],
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
def tiles_of(row0, rows):
    """Return how many tiles the item of rows from `row0` on has."""
    return (min(ITEM_ROWS, rows - row0) + ROWS - 1) // ROWS


@inlined
def load_queries(qkv, queries, g, group, row0, rows, d):
    """Copy an item's queries to [row, channel]; rows past the last, which fill up its last tile, repeat it."""
    for r in range(tiles_of(row0, rows) * ROWS):
        row = min(row0 + r, rows - 1)
        start = row // group * qkv.shape[1] + (g * group + row % group) * d
        # The last vector may reach into the next query, which comes after it.
        for i in range(0, d, LANES):
            store_f32(queries, r * d + i, load_f32(qkv, start + i))


@inlined
def clear(state, tiles, padded):
    """Set a state to that of no keys at all."""
    size = tile_floats(padded)
    for tile in range(tiles):
        store_f32(state, tile * size, splat_f32(NOTHING))
        for i in range(tile * size + LANES, (tile + 1) * size, LANES):
            store_f32(state, i, splat_f32(0.0))


@kernel
def attend_chunk(queries, scores, state, keys, values, g, group, row0, rows, start, window, chunk):
    """Fill the state of an item's rows with one chunk of positions."""
    d, padded = keys.shape[2], values.shape[2]
    tiles = tiles_of(row0, rows)
    clear(state, tiles, padded)
    oldest = max(0, start + row0 // group + 1 - window)
    newest = start + min(row0 + ITEM_ROWS, rows) // group
    for block in range(
        max(chunk * CHUNK // BLOCK, oldest // BLOCK), min((chunk + 1) * CHUNK // BLOCK, newest // BLOCK + 1)
    ):
        for tile in range(tiles):
            row = row0 + tile * ROWS
            low = max(0, start + row // group + 1 - window) - block * BLOCK
            high = start + min(row + ROWS - 1, rows - 1) // group + 1 - block * BLOCK
            if high > 0 and low < BLOCK:
                base = tile * tile_floats(padded)
                seen = min(BLOCK, high + LANES - 1) // LANES
                # One token alone would wait for memory; of many tokens, the first tiles have fetched it for the rest.
                ahead = BLOCK // LANES if rows == group and tile == 0 else 0
                score_block(queries, tile, keys, g, block, scores, d, seen, ahead)
                soften_block(scores, state, base, row, rows, group, start, window, block, seen)
                weigh_block(scores, state, base, values, g, block, max(0, low), min(BLOCK, high), ahead)


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
        weight_sum = splat_f32(total[base + LANES + r % ROWS])
        first = row // group * out.shape[1] + (g * group + row % group) * d
        for v in range(padded // LANES):
            place = base + 2 * LANES + (v * ROWS + r % ROWS) * LANES
            value = divide(load_f32(total, place), weight_sum)
            if (v + 1) * LANES <= d:
                store_f32(out, first + v * LANES, value)
            else:
                # A whole vector would reach into the next head, which may be another thread's.
                store_f32(total, place, value)
                for i in range(d - v * LANES):
                    store_one(out, first + v * LANES + i, total[place + i])


@inlined
def chunks_of(row0, rows, group, start, window):
    """Return the range of chunks that an item's rows see anything of."""
    oldest = max(0, start + row0 // group + 1 - window)
    newest = start + (min(row0 + ITEM_ROWS, rows) - 1) // group
    return oldest // CHUNK, newest // CHUNK + 1


@inlined
def attend_one(thread, threads, mailbox, qkv, group, start, window, keys, values, scratch, out):
    """Attend from one token: each chunk of each item is a unit of its own; merged when all are done."""
    G, d, padded = keys.shape[0], keys.shape[2], values.shape[2]
    queries, scores, total = scratch.queries[thread], scratch.scores[thread], scratch.totals[thread]
    per_head = (group + ITEM_ROWS - 1) // ITEM_ROWS
    first, last = chunks_of(0, group, group, start, window)
    count = last - first
    units = G * per_head * count
    unit = take(mailbox, thread)
    while unit < units:
        item, chunk = unit // count, first + unit % count
        g, row0 = item // per_head, item % per_head * ITEM_ROWS
        load_queries(qkv, queries, g, group, row0, group, d)
        part = scratch.partials[unit]
        attend_chunk(queries, scores, part, keys, values, g, group, row0, group, start, window, chunk)
        unit = take(mailbox, thread)
    settle(mailbox, thread, threads, units)
    barrier(mailbox, threads)
    for item in range(thread, G * per_head, threads):
        g, row0 = item // per_head, item % per_head * ITEM_ROWS
        tiles = tiles_of(row0, group)
        clear(total, tiles, padded)
        for unit in range(item * count, (item + 1) * count):
            merge(total, scratch.partials[unit], tiles, padded)
        finish(total, out, g, group, row0, group, d, padded)


@inlined
def attend_many(thread, threads, mailbox, T, qkv, group, start, window, keys, values, scratch, out):
    """Attend from many tokens: an item is a unit, its chunks one after another; the longest items first."""
    G, d, padded = keys.shape[0], keys.shape[2], values.shape[2]
    queries, scores, total = scratch.queries[thread], scratch.scores[thread], scratch.totals[thread]
    part, rows = scratch.partials[thread], T * group
    per_head = (rows + ITEM_ROWS - 1) // ITEM_ROWS
    units = G * per_head
    unit = take(mailbox, thread)
    while unit < units:
        item = units - 1 - unit
        g, row0 = item % G, item // G * ITEM_ROWS
        tiles = tiles_of(row0, rows)
        load_queries(qkv, queries, g, group, row0, rows, d)
        clear(total, tiles, padded)
        first, last = chunks_of(row0, rows, group, start, window)
        for chunk in range(first, last):
            attend_chunk(queries, scores, part, keys, values, g, group, row0, rows, start, window, chunk)
            merge(total, part, tiles, padded)
        finish(total, out, g, group, row0, rows, d, padded)
        unit = take(mailbox, thread)
    settle(mailbox, thread, threads, units)


@kernel
def attend(thread, threads, mailbox, T, qkv, heads, start, window, keys, values, scratch, out):
    """Attend from positions ``start..start + T`` to all that the cache holds up to each of them.

    qkv : float32 [>= T, >= H d], rotated and scaled queries first; heads : H; window : positions a query sees,
    itself included; keys, values : one layer's front buffers, already appended to; out : float32 [>= T, >= H d].
    """
    group = heads // keys.shape[0]
    if T == 1:
        attend_one(thread, threads, mailbox, qkv, group, start, window, keys, values, scratch, out)
    else:
        attend_many(thread, threads, mailbox, T, qkv, group, start, window, keys, values, scratch, out)
