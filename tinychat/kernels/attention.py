"""Causal attention of some rows over the KV cache, fused: scores, softmax and weighted sum in one pass.

For a query at position p, over keys s with ``max(0, p - window + 1) <= s <= p``,

    out = sum_s 2**(q.k_s - m) v_s / sum_s 2**(q.k_s - m)

with queries already scaled by ``log2(e) / sqrt(d)``, or what the model has instead, and scores as
`kernels.scores` finishes them. Positions are taken in blocks of 64 with an online softmax (Milakov and Gimelshein,
2018; Dao et al., 2022) inside chunks of 512; chunks start afresh and are merged by their maxima, in ascending order.
Blocks and chunks stand at fixed positions, so few queries (chunks spread over the threads, merged after) and many
(chunks one after another) sum in the same order, to the same bits, wherever the blocks are in memory and whatever
other sequences attend in the same step.

A *row* is one query head of one token. The heads that share a KV head, of consecutive tokens of a sequence, are the
rows of one *item* of work, up to 8 tiles of them, so each key and value is read once for all. Of a block, scores,
softmax and weighted values are each done for all rows before the next: rows do not wait for each other, so the
processor finds work in one while another's chain of operations is under way. One source serves every type of cache:
where keys and values are pairs, so are queries and weights, and a step of a product takes two channels or positions at
once.
"""

from typing import Any, NamedTuple

import numpy as np

from tinychat.kernels.bfloat16 import round_bf16, store_halves
from tinychat.kernels.jit import inlined, inlined_by_type, subroutine, written_in
from tinychat.kernels.kv import BLOCK, KEY, PAIRS, PER_LANE, VALUE, head_of, per_lane, scaled
from tinychat.kernels.memory import load_f32, load_f32x64, load_one, prefetch_far, store_f32, store_one
from tinychat.kernels.scores import final_score, softmax_sum
from tinychat.kernels.setup import ISA
from tinychat.kernels.simd import (
    LANES,
    divide,
    exp2,
    exp2_up_to_127,
    fill_outside,
    fma,
    keep_lanes,
    like,
    max_lanes,
    maximum,
    multiply,
    splat_f32,
    subtract,
    sum_lanes,
)
from tinychat.kernels.tile import add_outer, load_rows, load_tile, scale_by_token, store_tile, store_tokens, zero_tile

CHUNK = 512
# Tile shapes, as tuples whose lengths count: 4 x 4 vectors on AVX-512, 2 x 2 where there are 16 registers.
QUERY_ROWS = (0,) * (4 if ISA == "avx512vnni" else 2)
VECTORS = (0,) * (4 if ISA == "avx512vnni" else 2)
ONE_VECTOR = (0,)
ROWS = len(QUERY_ROWS)
TILES = 8
ITEM_ROWS = TILES * ROWS
LOWEST = np.float32(-1e30)  # below any score


class State(NamedTuple):
    """What has been summed for the rows of an item, over the positions so far; of many items, one axis more in front.

    Rows have room for one vector more: no two threads write to one cache line.
    """

    maxima: np.ndarray  # float32 [ITEM_ROWS + 16]: m, the largest score
    sums: np.ndarray  # float32 [ITEM_ROWS + 16]: of 2**(score - m)
    acc: np.ndarray  # float32 [TILES, d/16, ROWS, 16]: of 2**(score - m) v


class AttentionScratch(NamedTuple):
    """Scratch of attention. What meets keys and values is pairs (uint32) where those are, else float32."""

    queries: np.ndarray  # [threads, ITEM_ROWS * d + 16]; half of it in pairs
    scores: np.ndarray  # float32 [threads, ITEM_ROWS, BLOCK]
    weights: np.ndarray  # [threads, ITEM_ROWS, BLOCK]; half of it in pairs
    positions: np.ndarray  # int64 [threads, ITEM_ROWS]
    maxima: np.ndarray  # float32 [threads, ITEM_ROWS + 16], and so are the next three
    sums: np.ndarray
    kept: np.ndarray
    added: np.ndarray
    totals: State  # [threads]
    partials: State  # [slots], and one for each thread at least


class Item(NamedTuple):
    """Rows that are attended together, and the working memory for it."""

    queries: np.ndarray  # [ITEM_ROWS, d]
    scores: np.ndarray  # float32 [ITEM_ROWS, BLOCK]
    weights: np.ndarray  # [ITEM_ROWS, BLOCK]: what values are multiplied by
    positions: np.ndarray  # int64 [ITEM_ROWS]
    maxima: np.ndarray  # float32 [ITEM_ROWS]: the largest score up to this block
    sums: np.ndarray  # float32 [ITEM_ROWS]: of this block's weights
    kept: np.ndarray  # float32 [ITEM_ROWS]: factors that bring earlier sums to a larger maximum
    added: np.ndarray  # float32 [ITEM_ROWS]: the same for the sums that they are merged with
    table: np.ndarray  # int32: the blocks of their sequence
    token: int  # its first token in this step
    g: int  # their KV head
    group: int  # how many query heads share it
    row0: int  # the first of them, among
    rows: int  # all rows of this KV head
    window: int
    scoring: Any  # what is done to scores


def new_state(count: int, d: int) -> State:
    """Return the state of so many items."""
    rows = (count, ITEM_ROWS + LANES)
    acc = (count, TILES, -(-d // LANES), ROWS, LANES)
    return State(np.zeros(rows, np.float32), np.zeros(rows, np.float32), np.zeros(acc, np.float32))


def new_scratch(kv: str, d: int, threads: int, slots: int) -> AttentionScratch:
    """Return scratch for a cache of that type, with room for that many parts that are merged later."""
    shared = PER_LANE.get(kv, 1)
    factors = np.uint32 if shared > 1 else np.float32
    maxima, sums, kept, added = np.zeros((4, threads, ITEM_ROWS + LANES), np.float32)
    return AttentionScratch(
        queries=np.zeros((threads, (ITEM_ROWS * d + LANES) // shared), factors),
        scores=np.zeros((threads, ITEM_ROWS, BLOCK), np.float32),
        weights=np.zeros((threads, ITEM_ROWS, BLOCK // shared), factors),
        positions=np.zeros((threads, ITEM_ROWS), np.int64),
        maxima=maxima,
        sums=sums,
        kept=kept,
        added=added,
        totals=new_state(threads, d),
        partials=new_state(max(threads, slots), d),
    )


@inlined
def state_of(states, number):
    """Return one of the states."""
    return State(states.maxima[number], states.sums[number], states.acc[number])


@inlined
def tiles_of(item):
    """Return how many tiles the item has."""
    return (min(ITEM_ROWS, item.rows - item.row0) + ROWS - 1) // ROWS


@inlined
def seen_by(item):
    """Return the range of positions that an item's rows see anything of."""
    return max(0, item.positions[0] + 1 - item.window), item.positions[ITEM_ROWS - 1] + 1


@inlined
def chunks_seen_by(item):
    """Return the range of chunks that an item's rows see anything of."""
    first, last = seen_by(item)
    return first // CHUNK, (last + CHUNK - 1) // CHUNK


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
def place_in(acc, tile, v):
    """Return where vector `v` of the rows of a tile begins, as a flat element."""
    return (tile * acc.shape[1] + v) * ROWS * LANES


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


@inlined
def block_ahead(item, block, cache, is_wanted):
    """Return the number of the head whose memory to ask for beside that of a block: the next one's, or its own."""
    return head_of(cache, item.table[block + 1 if is_wanted else block], item.g)


@inlined
def score_vectors(item, keys, tile, first, v, wanted, vectors):
    """Write the products of a tile's queries with `vectors` x 16 keys from vector `v` of a block on.

    first : where the keys of the block begin; wanted : where those begin that will be wanted next.
    """
    steps = keys.shape[4]
    queries = tile * ROWS * steps
    products = zero_tile(vectors, QUERY_ROWS)
    for i in range(steps):
        for w in range(len(vectors)):
            prefetch_far(keys, wanted + (v * steps + i * len(vectors) + w) * LANES)
        key = load_rows(keys, first + (v * steps + i) * LANES, steps * LANES, vectors)
        products = add_outer(products, key, item.queries, queries + i, steps)
    store_tokens(item.scores, tile * ROWS * BLOCK + v * LANES, BLOCK, products, QUERY_ROWS)


@written_in
def score_tile(item, keys, tile, head, high, head_ahead):
    """Write the products of a tile's queries with the first `high` keys of a head's block, or up to 15 more."""
    size = keys.shape[3] * keys.shape[4] * LANES
    seen = (high + LANES - 1) // LANES
    wide = seen - seen % len(VECTORS)
    for v in range(0, wide, len(VECTORS)):
        score_vectors(item, keys, tile, head * size, v, head_ahead * size, VECTORS)
    for v in range(wide, seen):
        score_vectors(item, keys, tile, head * size, v, head_ahead * size, ONE_VECTOR)


@written_in
def softmax_row(item, cache, r, block, head, largest):
    """Make weights ``2**(score - max)`` of a row's scores, 0 for what it does not see; return (new max, their sum)."""
    low, high = span_of(item, r, r, block)
    partly = low > 0 or high < BLOCK
    score = scaled(cache, KEY, head, load_f32x64(item.scores, r * BLOCK))
    score = final_score(item.scoring, item, r, block * BLOCK, score)
    if partly:
        score = fill_outside(score, low, high, LOWEST)
    largest = max(largest, max_lanes(score))
    weight = as_factor(item.weights, exp2_up_to_127(subtract(score, like(score, largest))))
    factor = scaled(cache, VALUE, head, weight)
    if partly:
        weight, factor = keep_lanes(weight, low, high), keep_lanes(factor, low, high)
    store_factors(item.weights, r * BLOCK, factor)
    return largest, sum_lanes(weight)


@written_in
def softmax(item, cache, state, tiles, block, head):
    """Make weights of all scores, bring maxima and sums up to date, and note by which factors acc must follow."""
    for tile in range(tiles):
        low, high = span_of_tile(item, tile, block)
        for r in range(tile * ROWS, (tile + 1) * ROWS):
            largest, total = state.maxima[r], np.float32(0)
            if low < high:
                largest, total = softmax_row(item, cache, r, block, head, largest)
            item.maxima[r], item.sums[r] = largest, total
    for r in range(0, tiles * ROWS, LANES):
        largest = load_f32(item.maxima, r)
        kept = exp2(subtract(load_f32(state.maxima, r), largest))
        store_f32(state.maxima, r, largest)
        store_f32(state.sums, r, fma(load_f32(state.sums, r), kept, load_f32(item.sums, r)))
        store_f32(item.kept, r, kept)


@inlined
def add_vectors(item, acc, tile, v, values, first, low, high, wanted, vectors):
    """Add weighted rows low..high of a block's values to `vectors` x 16 channels of a tile, from vector `v` on.

    first : where the values of the block begin; wanted : where those begin that will be wanted next.
    """
    place, rows, padded = place_in(acc, tile, v), values.shape[3], values.shape[4]
    sums = load_tile(acc, place, vectors, QUERY_ROWS)
    sums = scale_by_token(sums, item.kept, tile * ROWS, QUERY_ROWS)
    for s in range(low, high):
        for w in range(len(vectors)):
            prefetch_far(values, wanted + s * padded + (v + w) * LANES)
        value = load_rows(values, first + s * padded + v * LANES, LANES, vectors)
        sums = add_outer(sums, value, item.weights, tile * ROWS * rows + s, rows)
    store_tile(acc, place, sums)


@written_in
def add_values(item, cache, acc, tile, head, low, high, head_ahead):
    """Add the weighted values of positions low..high of a head's block to a tile's sums."""
    values, shared = cache.values, per_lane(cache)
    size, count = values.shape[3] * values.shape[4], values.shape[4] // LANES
    wide = count - count % len(VECTORS)
    low, high = low // shared, (high + shared - 1) // shared
    for v in range(0, wide, len(VECTORS)):
        add_vectors(item, acc, tile, v, values, head * size, low, high, head_ahead * size, VECTORS)
    for v in range(wide, count):
        add_vectors(item, acc, tile, v, values, head * size, low, high, head_ahead * size, ONE_VECTOR)


@written_in
def attend_block(item, cache, state, block):
    """Add one block of positions to the state of an item's rows."""
    tiles = tiles_of(item)
    head = head_of(cache, item.table[block], item.g)
    # One token would wait for memory; of many tokens, the first tiles have fetched it for the rest.
    is_one_token = item.rows == item.group
    for tile in range(tiles):
        low, high = span_of_tile(item, tile, block)
        if low < high:
            score_tile(item, cache.keys, tile, head, high, block_ahead(item, block, cache, is_one_token and tile == 0))
    softmax(item, cache, state, tiles, block, head)
    for tile in range(tiles):
        low, high = span_of_tile(item, tile, block)
        if low < high:
            ahead = block_ahead(item, block, cache, is_one_token and tile == 0)
            add_values(item, cache, state.acc, tile, head, low, high, ahead)


@inlined
def load_queries(item, qkv, d):
    """Copy the queries of an item's rows."""
    for r in range(tiles_of(item) * ROWS):
        row = min(item.row0 + r, item.rows - 1)
        token = item.token + row // item.group
        start = token * qkv.shape[1] + (item.g * item.group + row % item.group) * d
        # The last vector may reach beyond the query: into the next, or into keys or the array's slack.
        for i in range(0, d, LANES):
            store_factors(item.queries, r * d + i, as_factor(item.queries, load_f32(qkv, start + i)))


@inlined
def clear(state, tiles):
    """Set a state to that of no keys at all."""
    for r in range(0, ITEM_ROWS, LANES):
        store_f32(state.maxima, r, splat_f32(LOWEST))
        store_f32(state.sums, r, splat_f32(0.0))
    for i in range(0, place_in(state.acc, tiles, 0), LANES):
        store_f32(state.acc, i, splat_f32(0.0))


@subroutine
def attend_chunk(item, cache, state, chunk):
    """Fill the state of an item's rows with one chunk of positions."""
    clear(state, tiles_of(item))
    first, last = seen_by(item)
    first, last = max(chunk * CHUNK, first), min((chunk + 1) * CHUNK, last)
    for block in range(first // BLOCK, (last + BLOCK - 1) // BLOCK):
        attend_block(item, cache, state, block)


@inlined
def merge(item, total, part):
    """Add the state of a later chunk to the total: both are brought to the larger maximum."""
    for r in range(0, ITEM_ROWS, LANES):
        old, new = load_f32(total.maxima, r), load_f32(part.maxima, r)
        largest = maximum(old, new)
        kept, added = exp2(subtract(old, largest)), exp2(subtract(new, largest))
        more = multiply(load_f32(part.sums, r), added)
        store_f32(total.sums, r, fma(load_f32(total.sums, r), kept, more))
        store_f32(total.maxima, r, largest)
        store_f32(item.kept, r, kept)
        store_f32(item.added, r, added)
    for tile in range(tiles_of(item)):
        for v in range(total.acc.shape[1]):
            for r in range(ROWS):
                place, row = place_in(total.acc, tile, v) + r * LANES, tile * ROWS + r
                more = multiply(load_f32(part.acc, place), splat_f32(item.added[row]))
                store_f32(total.acc, place, fma(load_f32(total.acc, place), splat_f32(item.kept[row]), more))


@inlined
def finish(item, total, out, d):
    """Divide by the softmax's sum and write the item's rows to out [T, H * d]."""
    acc = total.acc
    for r in range(min(ITEM_ROWS, item.rows - item.row0)):
        row = item.row0 + r
        weight_sum = softmax_sum(item.scoring, item, row, total.maxima[r], total.sums[r])
        token = item.token + row // item.group
        first = token * out.shape[1] + (item.g * item.group + row % item.group) * d
        for v in range(acc.shape[1]):
            place = place_in(acc, r // ROWS, v) + r % ROWS * LANES
            value = divide(load_f32(acc, place), weight_sum)
            if (v + 1) * LANES <= d:
                store_f32(out, first + v * LANES, value)
            else:
                # A whole vector would reach into the next head, which may be another thread's.
                store_f32(acc, place, value)
                for i in range(d - v * LANES):
                    store_one(out, first + v * LANES + i, load_one(acc, place + i))
