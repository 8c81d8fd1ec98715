"""Attention of some rows over the KV cache, fused: scores, softmax and weighted sum in one pass.

For a query at position p, over keys s with ``max(0, p - window + 1) <= s <= p``, or, where a window is `BothWays`, with
``s < min(end, p + window)`` in a sequence of `end` positions, or where it is `Before`, with ``s < p``, or where it is
`JointImages`, with ``s < end`` of the image that the query is of,

    out = sum_s 2**(q.k_s - m) v_s / sum_s 2**(q.k_s - m)

with queries already scaled by ``log2(e) / sqrt(d)``, or the model's own factor, and scores as `kernels.scores` finishes
them. Blocks of 64 positions go through an online softmax (Milakov and Gimelshein, 2018; Dao et al., 2022) inside chunks
of 512; each chunk begins with an empty state, and chunks are merged by their maxima, in ascending order. Blocks and
chunks are at fixed positions, so few queries (chunks spread over the threads, merged after) and many (chunks one after
another) sum in the same order, to the same bits, wherever the blocks are in memory and whatever other sequences attend
in the same step.

A *row* is one query head of one token. The heads that share a KV head, of consecutive tokens of a sequence, are the
rows of one *item* of work, up to 48 of them, so each key and value is read once for all. Scores, softmax and weighted
values of a block are each done for all rows before the next: rows do not wait for each other, so the processor finds
work in one while another's chain of operations is under way. One source serves every type of cache: where keys and
values are pairs, a step of a product takes two channels or positions at once, and queries and weights are pairs too if
the processor multiplies those faster, else floats as rounded as pairs would be: the bits are the same. The sums of
eight such steps begin at 0 and are added to the totals, as tile registers do it; where a processor has these, they
multiply most items (`kernels.amx_attention`). Where keys and values are quads of codes, so are queries and weights, and
a step takes four (`kernels.quads`).
"""

from typing import Any, NamedTuple

import numpy as np

from tinychat.kernels.amx_attention import (
    score_rows,
    stay_awake,
    uses_tiles,
    weigh_rows,
    write_query_row,
    write_weights,
)
from tinychat.kernels.buffers import SoftmaxState
from tinychat.kernels.factors import (
    add_keys,
    add_weighted,
    as_scores,
    first_products,
    first_sums,
    per_factor,
    rescale_rows,
    round_factors,
    steps_of_run,
    totals_with,
    weights_of,
    write_factors,
    write_query,
)
from tinychat.kernels.jit import always_inline, always_inline_by_type, inline, is_kind, noinline
from tinychat.kernels.kv import head_of, per_lane, scaled
from tinychat.kernels.memory import load_f32, load_f32x64, load_one, prefetch_far, store_f32, store_one
from tinychat.kernels.scores import changes_scores, final_score, softmax_sum
from tinychat.kernels.setup import ISA
from tinychat.kernels.simd import (
    exp2,
    fill_outside,
    fma,
    max_of_rows,
    max_quarters,
    maximum,
    splat_f32,
    sum_of_rows,
    sum_quarters,
    zero_outside,
)
from tinychat.kernels.sizes import BLOCK, CHUNK, ITEM_ROWS, LANES
from tinychat.kernels.tile import store_tokens
from tinychat.kernels.variants import Before, BothWays, JointImages

# Tile shapes, rows by vectors of keys or channels, as tuples of these lengths: as many sums as there are registers.
# Vectors of pairs are widened once for all rows of a tile, so a tile of many rows is faster. Where few of them would be
# used, tiles of few are: with 32 registers of four rows, as many models have heads for a KV head, or a multiple.
FEW, MANY = ((0,) * n for n in ((4, 12) if ISA == "avx512vnni" else (3, 6)))
FEW_VECTORS, MANY_VECTORS = ((0,) * n for n in ((4, 2) if ISA == "avx512vnni" else (2, 1)))
HALF_VECTORS = FEW_VECTORS[: len(FEW_VECTORS) // 2]  # for few rows that see few keys of a block: fewer are read
ONE_VECTOR = (0,)
LOWEST = np.float32(-1e30)  # below any score


class Item(NamedTuple):
    """Rows that are attended together, and their working memory."""

    queries: np.ndarray  # [ITEM_ROWS / len(MANY), d, len(MANY)]: those of a tile stay in the first-level cache
    query_scales: np.ndarray  # float32 [ITEM_ROWS]: of codes
    query_starts: np.ndarray  # int32 [ITEM_ROWS]: where sums of their products begin
    scores: np.ndarray  # float32 [ITEM_ROWS, BLOCK]
    weights: np.ndarray  # [ITEM_ROWS, BLOCK]
    weight_steps: np.ndarray  # float32 [ITEM_ROWS]: of codes, the weight of 1
    positions: np.ndarray  # int64 [ITEM_ROWS]
    ends: np.ndarray  # int64 [ITEM_ROWS]: behind what each row sees, where the window is `JointImages`
    lanes: np.ndarray  # float32 [2 ITEM_ROWS * 16]: of each row 16 numbers that are to become one
    rescale: np.ndarray  # float32 [ITEM_ROWS]: factors that bring earlier sums to a larger maximum
    part_rescale: np.ndarray  # float32 [ITEM_ROWS]: the same for the sums that are merged with them
    tiles: np.ndarray  # float32: of `kernels.amx_attention`
    table: np.ndarray  # int32: the blocks of their sequence
    token: int  # its first token in this step
    g: int  # their KV head
    group: int  # how many query heads share it
    row0: int  # the first of them, among
    rows: int  # all rows of this KV head
    end: int  # positions of their sequence, this step's included
    window: Any  # int64, or `BothWays`, `Before` or `JointImages`
    scoring: Any  # of `kernels.scores`


@always_inline
def state_of(states, number):
    """Return one of several states."""
    return SoftmaxState(states.maxima[number], states.sums[number], states.acc[number])


@always_inline
def rows_of(item):
    """Return the number of rows of an item."""
    return min(ITEM_ROWS, item.rows - item.row0)


@always_inline
def rows_in_large_tiles(item):
    """Return the number of rows, the first ones, in tiles of `MANY`; the last of them may lack a tile of `FEW`."""
    return (rows_of(item) + len(FEW) - 1) // len(MANY) * len(MANY)


@always_inline
def prefetches(item, first, size, row, rows):
    """Return the element of a tile's first prefetch, and how many elements they are apart, one for each vector.

    first, size : of the keys or values of the next head; row : the first one of the tile. A tile prefetches a part as
    large as its part of the rows, so that memory is read as long as there are products to compute.
    """
    # Of all tiles: the last one may be filled up.
    total = max(rows_in_large_tiles(item), (rows_of(item) + len(FEW) - 1) // len(FEW) * len(FEW))
    return first + size * row // total, (LANES * len(rows) + total - 1) // total


@always_inline_by_type
def seen_from(window, position):
    """Return the first position that a query sees; what it sees may begin later."""
    if is_kind(window, BothWays, Before, JointImages):
        return lambda window, position: position + 1 - window.window
    return lambda window, position: position + 1 - window


@always_inline_by_type
def seen_to(window, item, row):
    """Return the end of the positions that the query of a row sees."""
    if is_kind(window, BothWays):
        return lambda window, item, row: min(item.end, item.positions[row] + window.window)
    if is_kind(window, Before):
        return lambda window, item, row: item.positions[row]
    if is_kind(window, JointImages):
        return lambda window, item, row: item.ends[row]
    return lambda window, item, row: item.positions[row] + 1


@always_inline_by_type
def note_end(window, item, row, batch, token):
    """Write the end of what the query of a row sees, where that may be an image's."""

    def note(window, item, row, batch, token):
        item.ends[row] = max(item.positions[row] + 1, batch.images[token])

    return note if is_kind(window, JointImages) else lambda window, item, row, batch, token: None


@always_inline
def visible_positions(item):
    """Return the range of positions that an item's rows see."""
    first = seen_from(item.window, item.positions[0])
    return max(0, first), seen_to(item.window, item, ITEM_ROWS - 1)


@always_inline
def visible_chunks(item):
    """Return the range of chunks that an item's rows see."""
    first, last = visible_positions(item)
    return first // CHUNK, (last + CHUNK - 1) // CHUNK


@always_inline
def visible_in_block(item, first, last, block):
    """Return the positions of a block that rows first..last see; none if the first is not the lesser."""
    low = seen_from(item.window, item.positions[first]) - block * BLOCK
    high = seen_to(item.window, item, last) - block * BLOCK
    return max(0, low), min(BLOCK, high)


@always_inline
def query_index(item, row):
    """Return the element at which a row's query begins; its numbers are `len(MANY)` elements apart."""
    tile = row // len(MANY)
    return tile * len(MANY) * item.queries.shape[0] + row - tile * len(MANY)


@always_inline
def score_vectors(item, cache, row, head, v, ahead, apart, rows, vectors):
    """Write the products of the queries of a tile, from row `row` on, with keys of a head's block, from vector `v` on.

    ahead, apart : of `prefetches`.
    """
    keys, steps = cache.keys, cache.keys.shape[4]
    first, run = head * BLOCK * steps, steps_of_run(cache, steps)
    query, step = query_index(item, row), per_lane(cache) // per_factor(item.queries) * len(MANY)
    for begin in range(0, steps, run):
        products = first_products(item, cache, row, vectors, rows)
        for i in range(begin, min(begin + run, steps)):
            for w in range(len(vectors)):
                prefetch_far(keys, ahead + (v * steps + i * len(vectors) + w) * apart)
            key = first + (v * steps + i) * LANES
            products = add_keys(products, keys, key, steps * LANES, vectors, item.queries, query + i * step, len(MANY))
        scores = as_scores(item, cache, row, head, v, begin, products, vectors, rows)
        store_tokens(item.scores, row * BLOCK + v * LANES, BLOCK, scores, rows)


@inline
def score_tile(item, cache, row, block, head, next_head, rows, vectors):
    """Write the products of a tile's queries with at least the visible keys of a head's block."""
    low, high = visible_in_block(item, row, row + len(rows) - 1, block)
    if low < high:
        size = cache.keys.shape[3] * cache.keys.shape[4] * LANES
        ahead, apart = prefetches(item, next_head * size, size, row, rows)
        for v in range(0, (high + LANES - 1) // LANES, len(vectors)):
            score_vectors(item, cache, row, head, v, ahead, apart, rows, vectors)


@always_inline
def finish_scores(item, r, block):
    """Finish the scores of a row, of masked positions the lowest; write the largest of each lane."""
    low, high = visible_in_block(item, r, r, block)
    partly = low > 0 or high < BLOCK
    score = final_score(item.scoring, item, r, block * BLOCK, load_f32x64(item.scores, r * BLOCK))
    if partly:
        score = fill_outside(score, low, high, LOWEST)
    if partly or changes_scores(item.scoring):
        store_f32(item.scores, r * BLOCK, score)
    store_f32(item.lanes, r * LANES, max_quarters(score))


@always_inline
def raise_maxima(item, state):
    """Update the maxima, and write the factors that rescale `acc`."""
    for r in range(0, rows_of(item), LANES):
        old = load_f32(state.maxima, r)
        largest = maximum(max_of_rows(item.lanes, r * LANES), old)
        store_f32(item.rescale, r, exp2(old - largest))
        store_f32(state.maxima, r, largest)


@always_inline
def weigh(item, cache, state, r, block, head):
    """Make weights ``2**(score - max)`` of a row's scores, 0 where masked; write the sum of each lane."""
    low, high = visible_in_block(item, r, r, block)
    weight = weights_of(cache, load_f32x64(item.scores, r * BLOCK) - state.maxima[r])
    factor = scaled(cache, head, weight)
    if low > 0 or high < BLOCK:
        weight, factor = zero_outside(weight, low, high), zero_outside(factor, low, high)
    if uses_tiles(item, cache, rows_of(item)):
        write_weights(item, cache, r, factor)
    else:
        write_factors(item, cache, r, factor)
    store_f32(item.lanes, r * LANES, sum_quarters(weight))


@always_inline
def add_weights(item, state):
    """Update the sums of weights."""
    for r in range(0, rows_of(item), LANES):
        more = sum_of_rows(item.lanes, r * LANES)
        store_f32(state.sums, r, fma(load_f32(state.sums, r), load_f32(item.rescale, r), more))


@inline
def softmax(item, cache, state, block, head):
    """Make weights of all scores; update maxima and sums, and write the factors that rescale `acc`."""
    for r in range(rows_of(item)):
        finish_scores(item, r, block)
    raise_maxima(item, state)
    for r in range(rows_of(item)):
        stay_awake(item, cache, r)
        weigh(item, cache, state, r, block, head)
    add_weights(item, state)
    round_factors(item, cache, rows_of(item))


@always_inline
def add_vectors(item, cache, acc, row, v, first, low, high, ahead, apart, rows, vectors):
    """Add weighted rows low..high of a block's values to a tile, from row `row` and vector `v` of channels on.

    first : the element at which the values begin; ahead, apart : of `prefetches`.
    """
    values, padded, width = cache.values, cache.values.shape[4], acc.shape[1]
    stride, step = BLOCK // per_factor(item.weights), per_lane(cache) // per_factor(item.weights)
    index, run = row * width + v * LANES, steps_of_run(cache, high)
    for begin in range(low - low % run, high, run):
        sums = first_sums(item, cache, acc, index, row, vectors, rows)
        for s in range(max(low, begin), min(begin + run, high)):
            for w in range(len(vectors)):
                prefetch_far(values, ahead + (v * values.shape[3] + s * len(vectors) + w) * apart)
            value = first + s * padded + v * LANES
            sums = add_weighted(sums, values, value, vectors, item.weights, row * stride + s * step, stride)
        store_tokens(acc, index, width, totals_with(item, cache, acc, index, row, sums, vectors, rows), rows)


@inline
def add_values(item, cache, acc, row, block, head, next_head, rows, vectors):
    """Add the weighted values of a head's block to the sums of a tile's rows."""
    low, high = visible_in_block(item, row, row + len(rows) - 1, block)
    if low < high:
        values, shared = cache.values, per_lane(cache)
        size, count = values.shape[3] * values.shape[4], values.shape[4] // LANES
        first = head * size
        ahead, apart = prefetches(item, next_head * size, size, row, rows)
        wide = count - count % len(vectors)
        low, high = low // shared, (high + shared - 1) // shared
        for v in range(0, wide, len(vectors)):
            add_vectors(item, cache, acc, row, v, first, low, high, ahead, apart, rows, vectors)
        for v in range(wide, count):
            for r in range(row, row + len(rows), len(FEW)):
                add_vectors(item, cache, acc, r, v, first, low, high, ahead, apart, FEW, ONE_VECTOR)


@inline
def score_block(item, cache, block, head, next_head):
    """Write the products of all queries with the keys of a head's block, on vectors."""
    rows, many = rows_of(item), rows_in_large_tiles(item)
    for row in range(0, many, len(MANY)):
        score_tile(item, cache, row, block, head, next_head, MANY, MANY_VECTORS)
    _, high = visible_in_block(item, rows - 1, rows - 1, block)
    for row in range(many, rows, len(FEW)):
        if high <= len(HALF_VECTORS) * LANES:
            score_tile(item, cache, row, block, head, next_head, FEW, HALF_VECTORS)
        else:
            score_tile(item, cache, row, block, head, next_head, FEW, FEW_VECTORS)


@inline
def weigh_block(item, cache, acc, block, head, next_head):
    """Add the weighted values of a head's block to the sums of all rows, on vectors."""
    rows, many = rows_of(item), rows_in_large_tiles(item)
    for row in range(0, many, len(MANY)):
        add_values(item, cache, acc, row, block, head, next_head, MANY, MANY_VECTORS)
    for row in range(many, rows, len(FEW)):
        add_values(item, cache, acc, row, block, head, next_head, FEW, FEW_VECTORS)


@inline
def attend_block(item, cache, state, block, next_head):
    """Add one block of positions to the state of an item's rows; prefetch the next head's."""
    rows, head = rows_of(item), head_of(cache, item.table[block], item.g)
    low, high = visible_in_block(item, 0, rows - 1, block)
    on_tiles = uses_tiles(item, cache, rows)
    if on_tiles:
        score_rows(item, cache, rows, high, head, next_head)
    else:
        score_block(item, cache, block, head, next_head)
    softmax(item, cache, state, block, head)
    rescale_rows(item, cache, state.acc, rows)
    if on_tiles:
        weigh_rows(item, cache, state.acc, rows, low, high, head, next_head)
    else:
        weigh_block(item, cache, state.acc, block, head, next_head)


@noinline
def load_queries(item, cache, qkv, d):
    """Copy the queries of an item's rows."""
    for r in range(rows_of(item)):
        row = item.row0 + r
        token = item.token + row // item.group
        start = token * qkv.shape[1] + (item.g * item.group + row % item.group) * d
        stay_awake(item, cache, r)
        if uses_tiles(item, cache, rows_of(item)):
            write_query_row(item, cache, r, qkv, start, d)
        else:
            write_query(item, cache, r, query_index(item, r), len(MANY), qkv, start, d)


@always_inline
def clear(state, rows):
    """Reset a state to that of no keys."""
    for r in range(0, ITEM_ROWS, LANES):
        store_f32(state.maxima, r, splat_f32(LOWEST))
        store_f32(state.sums, r, splat_f32(0.0))
    for i in range(0, rows * state.acc.shape[1], LANES):
        store_f32(state.acc, i, splat_f32(0.0))


@noinline
def attend_chunk(item, cache, state, chunk, next_head):
    """Fill the state of an item's rows with one chunk of positions.

    next_head : the head whose block this thread will probably read after the chunk.
    """
    clear(state, rows_of(item))
    first, last = visible_positions(item)
    first, last = max(chunk * CHUNK, first) // BLOCK, (min((chunk + 1) * CHUNK, last) - 1) // BLOCK
    for block in range(first, last + 1):
        head = next_head
        if block < last:
            head = head_of(cache, item.table[block + 1], item.g)
        attend_block(item, cache, state, block, head)


@noinline
def merge(item, cache, total, part):
    """Add the state of a later chunk to the total, both rescaled to the larger maximum."""
    for r in range(0, ITEM_ROWS, LANES):
        old, new = load_f32(total.maxima, r), load_f32(part.maxima, r)
        largest = maximum(old, new)
        rescale, part_rescale = exp2(old - largest), exp2(new - largest)
        more = load_f32(part.sums, r) * part_rescale
        store_f32(total.sums, r, fma(load_f32(total.sums, r), rescale, more))
        store_f32(total.maxima, r, largest)
        store_f32(item.rescale, r, rescale)
        store_f32(item.part_rescale, r, part_rescale)
    padded = total.acc.shape[1]
    for row in range(rows_of(item)):
        stay_awake(item, cache, row)
        for i in range(row * padded, (row + 1) * padded, LANES):
            more = load_f32(part.acc, i) * item.part_rescale[row]
            store_f32(total.acc, i, fma(load_f32(total.acc, i), item.rescale[row], more))


@noinline
def finish(item, cache, total, out, d):
    """Divide by the softmax's sum and write the item's rows to out [T, H * d]."""
    acc, padded = total.acc, total.acc.shape[1]
    for r in range(rows_of(item)):
        stay_awake(item, cache, r)
        row = item.row0 + r
        # Multiplied, not divided: the processor divides a vector in the time of a product with 16 keys.
        share = 1.0 / softmax_sum(item.scoring, item, row, total.maxima[r], total.sums[r])
        token = item.token + row // item.group
        first = token * out.shape[1] + (item.g * item.group + row % item.group) * d
        for i in range(0, d, LANES):
            value = load_f32(acc, r * padded + i) * share
            if i + LANES <= d:
                store_f32(out, first + i, value)
            else:
                # A whole vector would reach into the next head, which may be another thread's.
                store_f32(acc, r * padded + i, value)
                for c in range(i, d):
                    store_one(out, first + c, load_one(acc, r * padded + c))
