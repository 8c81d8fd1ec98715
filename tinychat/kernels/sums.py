"""Tiles of whole sums: where they begin, and what becomes of them.

A tile has a vector of 16 rows for each token. A *paired* one (`PAIRED`, of more than one token) has two vectors for two
tokens, of which the first holds rows 0, 1, 4, 5, 8, 9, 12 and 13 of both, a row's two sums beside each other, and the
second the other rows: what the processor's products of small matrices give. Each sum meets the same operations in the
same order as in a vector of its token.
"""

import numpy as np
from llvmlite import ir
from numba import types

from tinychat.kernels.intrinsics import (
    ANY,
    F32,
    F32X16,
    I32,
    I64,
    INDEX,
    SAME,
    Elements,
    Emitter,
    constant,
    f32x16,
    i32x8,
    i32x16,
    operation,
)
from tinychat.kernels.simd import ROUNDER
from tinychat.kernels.sizes import LANES, PAIRED
from tinychat.kernels.tile import tile_type

# Integers that begin here are floats, `ROUNDER` above what they count.
ROUNDER_BITS = np.int32(np.float32(ROUNDER).view(np.int32))


def is_paired(tokens: int) -> bool:
    """Return whether tiles of so many tokens are paired."""
    return PAIRED and tokens > 1


def by_token(builder: Emitter, numbers: Elements, index: ir.Value, tokens: int, element: ir.Type) -> list[ir.Value]:
    """Emit a number of each token for the vectors of a tile, from ``numbers[index]`` on."""
    if not is_paired(tokens):
        return numbers.splats(index, tokens, element)
    pairs = [numbers.load(builder.add(index, I64(t)), ir.VectorType(element, 2), align=4) for t in range(0, tokens, 2)]
    return [builder.lanes(pair, [0, 1] * (LANES // 2)) for pair in pairs for _ in range(2)]


def by_row(builder: Emitter, vector: ir.Value, tokens: int) -> list[ir.Value]:
    """Emit a number of each row for the vectors of a tile of `tokens` tokens."""
    if not is_paired(tokens):
        return [vector] * tokens
    halves = [[4 * (i // 4) + 2 * half + i % 4 // 2 for i in range(LANES)] for half in range(2)]
    return [builder.lanes(vector, half) for half in halves] * (tokens // 2)


@operation(lambda starts, index, tokens: tile_type(i32x16, tokens), ANY, INDEX, ANY)
def start_tile(builder, starts, index, tokens):
    """Return an integer tile whose accumulators begin at ``starts[index + t]``."""
    return by_token(builder, starts, index, len(tokens), I32)


@operation(lambda start, tokens: tile_type(i32x16, tokens), types.int32, ANY)
def start_all(builder, start, tokens):
    """Return an integer tile whose accumulators all begin at `start`."""
    return [builder.splat(start)] * len(tokens)


def half_of(tile):
    """Return the type of half a tile."""
    return types.UniTuple(i32x8, len(tile))


@operation(half_of, ANY)
def lower_half(builder, tile):
    """Return the sums of the first eight rows."""
    return [builder.lanes(sums, range(LANES // 2)) for sums in tile]


@operation(half_of, ANY)
def upper_half(builder, tile):
    """Return the sums of the last eight rows."""
    return [builder.lanes(sums, range(LANES // 2, LANES)) for sums in tile]


@operation(lambda lower, upper: types.UniTuple(i32x16, len(lower)), ANY, ANY)
def whole_tile(builder, lower, upper):
    """Return the tile of two halves."""
    return [builder.joined(*halves) for halves in zip(lower, upper)]


@operation(SAME, ANY, types.int32)
def shift_tile(builder, tile, bits):
    """Return an integer tile times ``2**bits``."""
    by = builder.splat(bits)
    return [builder.shl(n, by) for n in tile]


@operation(SAME, ANY, ANY, types.int32)
def add_shifted(builder, tile, other, bits):
    """Return an integer tile plus another one times ``2**bits``."""
    by = builder.splat(bits)
    return [builder.add(n, builder.shl(m, by)) for n, m in zip(tile, other)]


@operation(SAME, ANY, ANY, INDEX)
def add_starts(builder, tile, starts, index):
    """Return an integer tile plus ``starts[index + t]``."""
    return [builder.add(n, start) for n, start in zip(tile, by_token(builder, starts, index, len(tile), I32))]


@operation(SAME, ANY, ANY, f32x16, ANY, INDEX)
def add_scaled_integers(builder, tile, sums, row_scales, scales, index):
    """Return ``tile + sums * row_scale * scales[index + t]`` for sums of any size; the first product is rounded."""
    rows = by_row(builder, row_scales, len(tile))
    tokens = by_token(builder, scales, index, len(tile), F32)
    scaled = [builder.fmul(builder.sitofp(n, F32X16), row) for n, row in zip(sums, rows)]
    return [builder.fused(n, factor, value) for n, factor, value in zip(scaled, tokens, tile)]


@operation(SAME, ANY, ANY, f32x16, ANY, INDEX)
def add_scaled(builder, tile, sums, row_scales, scales, index):
    """Return ``tile + (sums - ROUNDER) * row_scale * scales[index + t]``, whose first product is rounded once.

    The sums began at `ROUNDER_BITS` and count less than 2**22. Row scales have at most 22 significant bits, so that
    ``ROUNDER * row_scale`` is exact. Two operations where converting the sums would take a third.
    """
    count, result = len(tile), []
    rows, tokens = by_row(builder, row_scales, count), by_token(builder, scales, index, count, F32)
    offsets = by_row(builder, builder.fmul(row_scales, constant(-ROUNDER)), count)
    for value, n, row, offset, token in zip(tile, sums, rows, offsets, tokens):
        scaled = builder.fused(builder.bitcast(n, F32X16), row, offset)
        result.append(builder.fused(scaled, token, value))
    return result


@operation(SAME, ANY, f32x16, ANY, INDEX)
def add_offsets(builder, tile, offsets, sums, index):
    """Return ``tile + offsets * sums[index + t]``."""
    rows, tokens = by_row(builder, offsets, len(tile)), by_token(builder, sums, index, len(tile), F32)
    return [builder.fused(row, token, value) for value, row, token in zip(tile, rows, tokens)]


@operation(SAME, ANY, f32x16)
def scale_rows(builder, tile, scales):
    """Return ``tile * scale`` with a scale of each row."""
    return [builder.fmul(value, row) for value, row in zip(tile, by_row(builder, scales, len(tile)))]


@operation(SAME, ANY)
def tokens_apart(builder, tile):
    """Return a tile with a vector for each token."""
    if not is_paired(len(tile)):
        return tile
    # Of row r, the sum of the first token: in the first vector or, 16 lanes on, in the second.
    lanes = [4 * (r // 4) + r % 2 * 2 + (LANES if r % 4 > 1 else 0) for r in range(LANES)]
    return [
        builder.chosen(first, second, [lane + token for lane in lanes])
        for first, second in zip(tile[::2], tile[1::2])
        for token in range(2)
    ]
