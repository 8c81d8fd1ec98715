"""Causal attention over the KV cache, fused: scores, softmax and weighted sum in one pass.

For a query at position p, over keys s with ``max(0, p - window + 1) <= s <= p``,

    out = sum_s 2**(q.k_s - m) v_s / sum_s 2**(q.k_s - m)

with queries already scaled by ``log2(e) / sqrt(d)``. Positions are taken in blocks of 64 with an online softmax
(Milakov and Gimelshein, 2018; Dao et al., 2022) inside chunks of 512; chunks start afresh and are merged by
their maxima, in ascending order. Blocks and chunks stand at fixed positions, so one query alone (chunks spread
over the threads, merged after) and many at once (chunks one after another) sum in the same order, to the same bits.

A *row* is one query head of one token. The heads that share a KV head, of consecutive tokens, are the rows of one
*item* of work, up to 8 tiles of them, so each key and value is read once for all. The state of an item is flat
float32: ``m`` [ITEM_ROWS], ``l`` [ITEM_ROWS], ``acc`` [tile, d/16, rows of a tile, 16].
"""

from typing import NamedTuple

import numpy as np

from tinychat.kernels.attention_block import (
    BLOCK,
    ITEM_ROWS,
    NOTHING,
    ROWS,
    Item,
    as_factor,
    attend_block,
    place_of_tile,
    store_factors,
    tiles_of,
)
from tinychat.kernels.jit import inlined, kernel
from tinychat.kernels.memory import load_f32, store_f32, store_one
from tinychat.kernels.simd import LANES, divide, exp2, fma, maximum, multiply, splat_f32, subtract
from tinychat.kernels.threads import barrier, settle, share, stage, take

CHUNK = 512


class AttentionScratch(NamedTuple):
    """Scratch of attention. What meets keys and values is pairs (uint32) where those are, else float32."""

    queries: np.ndarray  # [threads, ITEM_ROWS * d + 16]; half of it in pairs
    scores: np.ndarray  # float32 [threads, ITEM_ROWS * (BLOCK + 2)]
    weights: np.ndarray  # [threads, ITEM_ROWS * BLOCK]; half of it in pairs
    positions: np.ndarray  # int64 [threads, ITEM_ROWS]
    totals: np.ndarray  # float32 [threads, an item's state]
    partials: np.ndarray  # the same [slots]: one for each thread, and for each (item, chunk) of a single token


@inlined
def load_rows_of(item, qkv, positions, d):
    """Note an item's positions, copy its queries; rows past the last, which fill up its last tile, repeat it."""
    for r in range(ITEM_ROWS):
        row = min(item.row0 + r, item.rows - 1)
        item.positions[r] = positions[row // item.group]
    for r in range(tiles_of(item) * ROWS):
        row = min(item.row0 + r, item.rows - 1)
        start = row // item.group * qkv.shape[1] + (item.g * item.group + row % item.group) * d
        # The last vector may reach beyond the query: into the next, or into keys or the array's slack.
        for i in range(0, d, LANES):
            store_factors(item.queries, r * d + i, as_factor(item.queries, load_f32(qkv, start + i)))


@inlined
def clear(state, tiles, padded):
    """Set a state to that of no keys at all."""
    for r in range(0, ITEM_ROWS, LANES):
        store_f32(state, r, splat_f32(NOTHING))
        store_f32(state, ITEM_ROWS + r, splat_f32(0.0))
    for i in range(2 * ITEM_ROWS, place_of_tile(tiles, padded), LANES):
        store_f32(state, i, splat_f32(0.0))


@inlined
def seen_by(item):
    """Return the range of positions that an item's rows see anything of."""
    return max(0, item.positions[0] + 1 - item.window), item.positions[ITEM_ROWS - 1] + 1


@kernel
def attend_chunk(item, cache, state, chunk):
    """Fill the state of an item's rows with one chunk of positions."""
    clear(state, tiles_of(item), cache.values.shape[2])
    first, last = seen_by(item)
    first, last = max(chunk * CHUNK, first), min((chunk + 1) * CHUNK, last)
    for block in range(first // BLOCK, (last + BLOCK - 1) // BLOCK):
        attend_block(item, cache, state, block)


@inlined
def merge(total, part, tiles, padded):
    """Add the state of a later chunk to the total: both are brought to the larger maximum."""
    for r in range(0, ITEM_ROWS, LANES):
        old, new = load_f32(total, r), load_f32(part, r)
        peak = maximum(old, new)
        keep, add = exp2(subtract(old, peak)), exp2(subtract(new, peak))
        added = multiply(load_f32(part, ITEM_ROWS + r), add)
        store_f32(total, ITEM_ROWS + r, fma(load_f32(total, ITEM_ROWS + r), keep, added))
        store_f32(total, r, peak)
        # The new chunk's m has been read: its place, and l's, serve the factors of each row.
        store_f32(part, r, keep)
        store_f32(part, ITEM_ROWS + r, add)
    for tile in range(tiles):
        for i in range(place_of_tile(tile, padded), place_of_tile(tile + 1, padded), ROWS * LANES):
            for r in range(ROWS):
                place, row = i + r * LANES, tile * ROWS + r
                added = multiply(load_f32(part, place), splat_f32(part[ITEM_ROWS + row]))
                store_f32(total, place, fma(load_f32(total, place), splat_f32(part[row]), added))


@inlined
def finish(item, total, out, d, padded):
    """Divide by the softmax's sum and write the item's rows to out [T, H * d]."""
    for r in range(min(ITEM_ROWS, item.rows - item.row0)):
        row = item.row0 + r
        weight_sum = splat_f32(total[ITEM_ROWS + r])
        first = row // item.group * out.shape[1] + (item.g * item.group + row % item.group) * d
        for v in range(padded // LANES):
            place = place_of_tile(r // ROWS, padded) + (v * ROWS + r % ROWS) * LANES
            value = divide(load_f32(total, place), weight_sum)
            if (v + 1) * LANES <= d:
                store_f32(out, first + v * LANES, value)
            else:
                # A whole vector would reach into the next head, which may be another thread's.
                store_f32(total, place, value)
                for i in range(d - v * LANES):
                    store_one(out, first + v * LANES + i, total[place + i])


@inlined
def item_of(scratch, thread, unit, G, group, rows, window):
    """Return item number `unit` of all: the KV heads of the first rows, then of the next."""
    g, row0 = unit % G, unit // G * ITEM_ROWS
    queries, scores, weights = scratch.queries[thread], scratch.scores[thread], scratch.weights[thread]
    return Item(queries, scores, weights, scratch.positions[thread], g, group, row0, rows, window)


@inlined
def attend_one(team, positions, qkv, group, d, window, cache, scratch, out):
    """Attend from one token: each chunk of each item is a unit of its own; merged when all are done."""
    G, padded = cache.keys.shape[0], cache.values.shape[2]
    items = G * ((group + ITEM_ROWS - 1) // ITEM_ROWS)
    first, last = max(0, positions[0] + 1 - window) // CHUNK, positions[0] // CHUNK + 1
    count = last - first
    unit = take(team)
    while unit < items * count:
        item = item_of(scratch, team.thread, unit // count, G, group, group, window)
        load_rows_of(item, qkv, positions, d)
        attend_chunk(item, cache, scratch.partials[unit], first + unit % count)
        unit = take(team)
    settle(team, items * count)
    first_item, last_item = share(team.thread, barrier(team.queue, team.thread), items)
    total = scratch.totals[team.thread]
    for number in range(first_item, last_item):
        item = item_of(scratch, team.thread, number, G, group, group, window)
        clear(total, tiles_of(item), padded)
        for unit in range(number * count, (number + 1) * count):
            merge(total, scratch.partials[unit], tiles_of(item), padded)
        finish(item, total, out, d, padded)


@inlined
def attend_many(team, T, positions, qkv, group, d, window, cache, scratch, out):
    """Attend from many tokens: an item is a unit, its chunks one after another; the longest items first."""
    G, padded, rows = cache.keys.shape[0], cache.values.shape[2], T * group
    total, part = scratch.totals[team.thread], scratch.partials[team.thread]
    items = G * ((rows + ITEM_ROWS - 1) // ITEM_ROWS)
    unit = take(team)
    while unit < items:
        item = item_of(scratch, team.thread, items - 1 - unit, G, group, rows, window)
        load_rows_of(item, qkv, positions, d)
        clear(total, tiles_of(item), padded)
        first, last = seen_by(item)
        for chunk in range(first // CHUNK, (last + CHUNK - 1) // CHUNK):
            attend_chunk(item, cache, part, chunk)
            merge(total, part, tiles_of(item), padded)
        finish(item, total, out, d, padded)
        unit = take(team)
    settle(team, items)


@stage
def attend(team, T, positions, qkv, sizes, window, cache, scratch, out):
    """Attend from T tokens of one sequence to all that its cache holds up to each of them.

    positions : int64 [>= T], one after the other; qkv : float32 [>= T, >= H d + 15], rotated and scaled queries first;
    window : positions a query sees, itself included; cache : one layer's front buffers, already appended to; out :
    float32 [>= T, >= H d].
    """
    group, d = sizes.num_attention_heads // cache.keys.shape[0], sizes.head_dim
    if T == 1:
        attend_one(team, positions, qkv, group, d, window, cache, scratch, out)
    else:
        attend_many(team, T, positions, qkv, group, d, window, cache, scratch, out)
