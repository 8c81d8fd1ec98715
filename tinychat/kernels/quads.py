"""Integer products of attention, beside a cache of int8: codes from -127 to 127, four to a lane of int32, a *quad*.

A query becomes codes of its own, with one scale. So do a row's weights over a block of positions, from 0 to 127, of
which the largest is 127 (after SageAttention, which does so with queries and keys: Zhang et al., 2024,
https://arxiv.org/abs/2410.02367). Sums of products are exact, in any order. Floats begin with the whole sums: over the
channels of a score, and over the positions of a block.
"""

import numpy as np
from llvmlite import ir
from numba import types

from tinychat.kernels.codes import as_dot_takes
from tinychat.kernels.dot import ABOVE_DOT_ZERO, dot4, dot4_small
from tinychat.kernels.intrinsics import (
    ANY,
    F32,
    F32X16,
    I8,
    I32,
    I64,
    INDEX,
    SAME,
    U8X64,
    constant,
    f32x16,
    i32x16,
    operation,
)
from tinychat.kernels.jit import always_inline
from tinychat.kernels.kv import LARGEST_CODE
from tinychat.kernels.memory import load_f32
from tinychat.kernels.simd import (
    absolute,
    max_lanes,
    maximum,
    nearest,
    splat_f32,
    splat_i32,
    sum_lanes_i32,
    to_i32,
    zero_outside,
)
from tinychat.kernels.sizes import LANES
from tinychat.kernels.tile import added, tile_type

# The least peak that numbers are divided by.
LEAST_PEAK = np.float32(1e-30)


@operation(types.void, ANY, INDEX, INDEX, i32x16)
def scatter_quads(builder, quads, index, stride, codes):
    """Store 16 codes as quads, `stride` elements apart, from element `index` on."""
    words = builder.bitcast(builder.trunc(codes, ir.VectorType(I8, LANES)), ir.VectorType(I32, LANES // 4))
    for i in range(LANES // 4):
        quads.store(builder.apart(index, stride, i), builder.extract_element(words, I32(i)), align=4)


@operation(types.void, ANY, INDEX, ANY)
def store_rounded(builder, quads, index, numbers):
    """Store whole numbers plus `ROUNDER` as consecutive codes, from code `index` on."""
    count = numbers.type.count
    whole = builder.bitcast(numbers, ir.VectorType(I32, count))
    quads.store(index, builder.trunc(whole, ir.VectorType(I8, count)), align=4, unit=I8)


@operation(lambda starts, index, vectors, rows: tile_type(i32x16, vectors, rows), ANY, INDEX, ANY, ANY)
def start_rows(builder, starts, index, vectors, rows):
    """Return an integer tile whose sums begin at ``starts[index + t]``."""
    return [starts.splat(builder.add(index, I64(t)), I32) for _ in range(len(vectors)) for t in range(len(rows))]


@operation(lambda vectors, rows: tile_type(i32x16, vectors, rows), ANY, ANY)
def zero_sums(builder, vectors, rows):
    """Return an integer tile of zeros."""
    return [constant(0, I32)] * (len(vectors) * len(rows))


@operation(SAME, ANY, ANY, ANY, INDEX)
def add_products_of_keys(builder, tile, keys, queries, index):
    """Return a tile plus the products of quads of keys and of one quad of each row, from element `index` on."""
    lines = [as_dot_takes(builder, builder.bitcast(each, U8X64)) for each in keys]
    return added(builder, tile, lines, queries, index, I64(1), I32, dot4)


@operation(SAME, ANY, ANY, ANY, INDEX, INDEX)
def add_products_of_values(builder, tile, values, weights, index, stride):
    """Return a tile plus the products of quads of values and of one quad of each row, `stride` elements apart."""

    def weighted(builder, sums, line, quad):
        return dot4_small(builder, sums, builder.bitcast(quad, U8X64), line)

    return added(builder, tile, values, weights, index, stride, I32, weighted)


@operation(
    lambda tile, key_scales, first, scales, index, vectors, rows: tile_type(f32x16, vectors, rows),
    *(ANY, ANY, INDEX, ANY, INDEX, ANY, ANY),
)
def scaled_sums(builder, tile, key_scales, first, scales, index, vectors, rows):
    """Return ``tile * key_scales[first + 16 r + lane] * scales[index + t]`` of an integer tile, as floats."""
    of_keys = [key_scales.load(builder.add(first, I64(r * LANES)), F32X16, align=4) for r in range(len(vectors))]
    of_rows = scales.splats(index, len(rows), F32)
    factors = [(key, row) for key in of_keys for row in of_rows]
    return [builder.fmul(builder.fmul(builder.sitofp(n, F32X16), key), row) for n, (key, row) in zip(tile, factors)]


@operation(SAME, ANY, ANY, ANY, INDEX, ANY)
def add_scaled_sums(builder, tile, sums, scales, index, rows):
    """Return ``tile + sums * scales[index + t]`` of a float and an integer tile, rounded once."""
    factors = scales.splats(index, len(rows), F32)
    return [
        builder.fused(builder.sitofp(n, F32X16), factors[i % len(rows)], total)
        for i, (total, n) in enumerate(zip(tile, sums))
    ]


@always_inline
def store_query(quads, index, stride, qkv, start, d):
    """Store d numbers as quads, `stride` elements apart; return their scale, and where sums of products begin."""
    largest = splat_f32(0.0)
    for i in range(0, d, LANES):
        largest = maximum(absolute(zero_outside(load_f32(qkv, start + i), 0, d - i)), largest)
    peak, total = max_lanes(largest), splat_i32(0)
    per_step = LARGEST_CODE / max(peak, LEAST_PEAK)
    for i in range(0, d, LANES):
        codes = to_i32(nearest(zero_outside(load_f32(qkv, start + i), 0, d - i) * per_step))
        total = total + codes
        scatter_quads(quads, index + i // 4 * stride, stride, codes)
    return peak / LARGEST_CODE, -ABOVE_DOT_ZERO * sum_lanes_i32(total)
