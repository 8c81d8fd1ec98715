"""Factors and products of attention in each type of the cache: floats, pairs of bfloat16, and quads of codes.

`item` is an `attention.Item`, and a tile has a vector of keys or channels for each row.
"""

from numba import types

from tinychat.kernels.bfloat16 import round_bf16, scatter_halves, store_halves
from tinychat.kernels.jit import always_inline, always_inline_by_type
from tinychat.kernels.kv import KEY, LARGEST_CODE, PAIRS, QUADS, SHARED, element_of, scale_index
from tinychat.kernels.memory import load_f32, load_f32x64, scatter_f32, store_f32
from tinychat.kernels.quads import (
    LEAST_PEAK,
    add_products_of_keys,
    add_products_of_values,
    add_scaled_sums,
    scaled_sums,
    start_rows,
    store_query,
    store_rounded,
    zero_sums,
)
from tinychat.kernels.simd import (
    ROUNDER,
    coarse_exp2_up_to_127,
    exp2_up_to_127,
    fma,
    max_of_rows,
    max_quarters,
    maximum,
)
from tinychat.kernels.sizes import BLOCK, ITEM_ROWS, LANES
from tinychat.kernels.tile import (
    add_outer,
    add_outer_of_pairs,
    add_stored,
    load_rows,
    load_tokens,
    scale_by_token,
    zero_tile,
)

RUN_OF_PAIRS = 8  # steps: what a product of tile registers adds (`kernels.amx_attention`)


@always_inline_by_type
def as_factor(cache, x):
    """Return numbers rounded to bfloat16 if the cache has pairs: factors of keys or values."""
    return (lambda cache, x: round_bf16(x)) if element_of(cache) == PAIRS else lambda cache, x: x


@always_inline_by_type
def weights_of(cache, x):
    """Return ``2 ** x`` for x <= 0 as factors of values; pairs are rounded 700 times as coarsely as computed."""
    if element_of(cache) == PAIRS:
        return lambda cache, x: round_bf16(coarse_exp2_up_to_127(x))
    return lambda cache, x: exp2_up_to_127(x)


@always_inline_by_type
def per_factor(factors):
    """Return how many numbers share an element of `factors`."""
    count = SHARED.get(factors.dtype, 1)
    return lambda factors: count


@always_inline_by_type
def store_factors(factors, index, x):
    """Store a vector of `as_factor`, from number `index` on."""
    store = store_halves if factors.dtype == PAIRS else store_f32
    return lambda factors, index, x: store(factors, index, x)


@always_inline_by_type
def scatter_factors(factors, index, stride, x):
    """Store 16 numbers of `as_factor` in elements `stride` apart, from element `index` on."""
    store = scatter_halves if factors.dtype == PAIRS else scatter_f32
    return lambda factors, index, stride, x: store(factors, index, stride, x)


@always_inline_by_type
def add_step(sums, stored, first, apart, vectors, factors, index, distance, stride):
    """Return a tile of sums plus vectors of keys or values times one factor for each row, `stride` apart.

    stored, first, apart, vectors : of `load_rows`. Of vectors of pairs both products are added, the odd one first; the
    odd factors are `distance` from the even ones, or share their elements.
    """

    def widened(sums, stored, first, apart, vectors, factors, index, distance, stride):
        return add_outer_of_pairs(sums, stored, first, apart, vectors, factors, index, distance, stride)

    def alike(sums, stored, first, apart, vectors, factors, index, distance, stride):
        return add_outer(sums, load_rows(stored, first, apart, vectors), factors, index, stride)

    return widened if stored.dtype == PAIRS and factors.dtype == types.float32 else alike


@always_inline_by_type
def add_keys(sums, keys, first, apart, vectors, queries, index, distance):
    """Return a tile of sums plus vectors of keys times a channel of each query, or those that share an element."""

    def codes(sums, keys, first, apart, vectors, queries, index, distance):
        return add_products_of_keys(sums, load_rows(keys, first, apart, vectors), queries, index)

    def numbers(sums, keys, first, apart, vectors, queries, index, distance):
        return add_step(sums, keys, first, apart, vectors, queries, index, distance, 1)

    return codes if keys.dtype == QUADS else numbers


@always_inline_by_type
def add_weighted(sums, values, first, vectors, weights, index, stride):
    """Return a tile of sums plus vectors of values times the weight of each row, or those that share an element."""

    def codes(sums, values, first, vectors, weights, index, stride):
        return add_products_of_values(sums, load_rows(values, first, LANES, vectors), weights, index, stride)

    def numbers(sums, values, first, vectors, weights, index, stride):
        return add_step(sums, values, first, LANES, vectors, weights, index, 1, stride)

    return codes if values.dtype == QUADS else numbers


@always_inline_by_type
def first_products(item, cache, row, vectors, rows):
    """Return the tile that products of queries and keys begin with."""
    if element_of(cache) == QUADS:
        return lambda item, cache, row, vectors, rows: start_rows(item.query_starts, row, vectors, rows)
    return lambda item, cache, row, vectors, rows: zero_tile(vectors, rows)


@always_inline_by_type
def steps_of_run(cache, steps):
    """Return how many of some steps are summed before their sums are added to the totals: of pairs eight, else all."""
    return (lambda cache, steps: RUN_OF_PAIRS) if element_of(cache) == PAIRS else lambda cache, steps: steps


@always_inline_by_type
def as_scores(item, cache, row, head, v, begin, products, vectors, rows):
    """Return products of queries, from row `row` on, and keys, from vector `v` of a head's block on, as scores.

    begin : the first of their steps; the scores so far are added.
    """

    def codes(item, cache, row, head, v, begin, products, vectors, rows):
        first = scale_index(head, KEY, v * LANES)
        return scaled_sums(products, cache.scales, first, item.query_scales, row, vectors, rows)

    def pairs(item, cache, row, head, v, begin, products, vectors, rows):
        if begin == 0:
            return products
        return add_stored(products, item.scores, row * BLOCK + v * LANES, BLOCK, rows)

    def floats(item, cache, row, head, v, begin, products, vectors, rows):
        return products

    return {QUADS: codes, PAIRS: pairs}.get(element_of(cache), floats)


@always_inline
def rescaled_totals(item, acc, index, row, vectors, rows):
    """Return the sums of earlier blocks by the present maxima."""
    return scale_by_token(load_tokens(acc, index, acc.shape[1], vectors, rows), item.rescale, row, rows)


@always_inline_by_type
def rescale_rows(item, cache, acc, rows):
    """Bring the sums of earlier blocks to the present maxima, where those of a block are added in several runs."""

    def pairs(item, cache, acc, rows):
        width = acc.shape[1]
        for r in range(rows):
            if item.rescale[r] != 1:
                for i in range(r * width, (r + 1) * width, LANES):
                    store_f32(acc, i, load_f32(acc, i) * item.rescale[r])

    return pairs if element_of(cache) == PAIRS else lambda item, cache, acc, rows: None


@always_inline_by_type
def first_sums(item, cache, acc, index, row, vectors, rows):
    """Return the tile that weighted values are added to."""

    def floats(item, cache, acc, index, row, vectors, rows):
        return rescaled_totals(item, acc, index, row, vectors, rows)

    def pairs(item, cache, acc, index, row, vectors, rows):
        return zero_tile(vectors, rows)

    def codes(item, cache, acc, index, row, vectors, rows):
        return zero_sums(vectors, rows)

    return {QUADS: codes, PAIRS: pairs}.get(element_of(cache), floats)


@always_inline_by_type
def totals_with(item, cache, acc, index, row, sums, vectors, rows):
    """Return the totals with the sums of a run, which began as `first_sums`."""

    def codes(item, cache, acc, index, row, sums, vectors, rows):
        totals = rescaled_totals(item, acc, index, row, vectors, rows)
        return add_scaled_sums(totals, sums, item.weight_steps, row, rows)

    def pairs(item, cache, acc, index, row, sums, vectors, rows):
        return add_stored(sums, acc, index, acc.shape[1], rows)

    def floats(item, cache, acc, index, row, sums, vectors, rows):
        return sums

    return {QUADS: codes, PAIRS: pairs}.get(element_of(cache), floats)


@always_inline_by_type
def write_query(item, cache, r, index, stride, qkv, start, d):
    """Write the query of a row, from element `start` of `qkv` on, to elements `stride` apart, from `index` on."""

    def codes(item, cache, r, index, stride, qkv, start, d):
        scale, first = store_query(item.queries, index, stride, qkv, start, d)
        item.query_scales[r], item.query_starts[r] = scale, first

    def numbers(item, cache, r, index, stride, qkv, start, d):
        # The last vector may reach beyond the query: into the next, or into keys or the array's slack.
        for i in range(0, d, LANES):
            element = index + i // per_factor(item.queries) * stride
            scatter_factors(item.queries, element, stride, as_factor(cache, load_f32(qkv, start + i)))

    return codes if element_of(cache) == QUADS else numbers


@always_inline_by_type
def write_factors(item, cache, r, factors):
    """Write the factors of a row's values; of codes, as floats in place of the scores, and the largest of each lane."""

    def codes(item, cache, r, factors):
        store_f32(item.scores, r * BLOCK, factors)
        store_f32(item.lanes, (ITEM_ROWS + r) * LANES, max_quarters(factors))

    def numbers(item, cache, r, factors):
        store_factors(item.weights, r * BLOCK, factors)

    return codes if element_of(cache) == QUADS else numbers


@always_inline_by_type
def round_factors(item, cache, rows):
    """Make codes of factors, where values are codes."""

    def codes(item, cache, rows):
        for r in range(0, rows, LANES):
            peak = max_of_rows(item.lanes, (ITEM_ROWS + r) * LANES)
            store_f32(item.weight_steps, r, peak / LARGEST_CODE)
            store_f32(item.lanes, r, LARGEST_CODE / maximum(peak, LEAST_PEAK))
        for r in range(rows):
            store_rounded(item.weights, r * BLOCK, fma(load_f32x64(item.scores, r * BLOCK), item.lanes[r], ROUNDER))

    return codes if element_of(cache) == QUADS else lambda item, cache, rows: None
