"""One-bit codes and one token: sums of four columns are looked up (Wei et al., 2024, https://arxiv.org/abs/2407.00088).

Four bits of a byte are codes of four columns of a row, so what they add is one of 16 sums of the token's codes. A line
of a weight (`kernels.weights`) takes four shuffles and two products then, instead of eight products of codes that are
taken apart first. The sums are exact, so bits are the same.

A group of 32 columns has 256 bytes: of the low half of each byte the low and the high digits of the sums, then of the
high half. Byte 16i + n of 64 belongs to the columns that byte i of a row has, and to their codes n. A sum is ``32 high
+ low``, and -16 <= low < 16, so that digits of two sums fit into a byte.
"""

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types

from tinychat.kernels.codes import low_bits, moved, shuffle_vbmi
from tinychat.kernels.dot import dot4_vnni
from tinychat.kernels.intrinsics import ANY, I8, I16, I64, INDEX, SAME, U8X64, constant, operation
from tinychat.kernels.jit import always_inline, always_inline_by_type, is_kind
from tinychat.kernels.memory import load_f32, load_line, prefetch_far
from tinychat.kernels.sizes import HAS_VBMI, LANES, ONE_ROW, ONE_TOKEN, SUMS_FLOATS, TILE_FLOATS
from tinychat.kernels.sums import add_scaled, start_tile
from tinychat.kernels.tile import store_tile, zero_tile
from tinychat.kernels.weight_access import columns
from tinychat.kernels.weights import ACTIVATION_GROUP, FINE_KINDS, Affine1Weight

# Row blocks that a thread takes at once. Two pass by the sums together, which do not fit into the first-level cache:
# one by one they are read at 24 instead of 37 GB/s on Zen 4. As two streams of memory that needs prefetches in order.
BLOCKS = 4
DIGIT_BITS = 5


class ColumnSums(NamedTuple):
    """The input of a linear of one-bit codes and one token, with sums of columns in the place of codes."""

    codes: np.ndarray  # float32, a thread's scratch: behind the tile `SUMS_FLOATS` for each group
    scales: np.ndarray  # these are as in `QuantizedActivations`
    corrections: np.ndarray


@operation(types.void, ANY, INDEX, ANY, INDEX)
def write_group_sums(builder, codes, first, buffer, index):
    """Write the sums of a group of columns, of which ``codes[first]`` is the first, from ``buffer[index]`` on."""
    line, wide = codes.load(first, ir.VectorType(I8, ACTIVATION_GROUP), align=1), ir.VectorType(I16, 64)
    for half in range(2):
        total = constant(0, I16, 64)
        for q in range(4):
            column = builder.lanes(line, [16 * half + 4 * q + entry // 16 for entry in range(64)])
            is_set = ir.Constant(wide, [-(entry >> q & 1) for entry in range(64)])
            total = builder.add(total, builder.and_(builder.sext(column, wide), is_set))
        by = constant(DIGIT_BITS, I16, 64)
        high = builder.ashr(builder.add(total, constant(1 << DIGIT_BITS - 1, I16, 64)), by)
        low = builder.sub(total, builder.shl(high, by))
        for i, digits in enumerate((low, high)):
            buffer.store(builder.add(index, I64(32 * half + 16 * i)), builder.trunc(digits, U8X64), align=4)


@operation(SAME, ANY, ANY, ANY, INDEX)
def add_looked_up(builder, tile, line, sums, index):
    """Add twice the sums of the columns whose code in a line is 1; those of its group begin at ``sums[index]``."""
    tables = [sums.load(builder.add(index, I64(16 * i)), U8X64, align=4) for i in range(4)]
    byte = ir.Constant(U8X64, [16 * (lane % 4) for lane in range(64)])
    entries = [builder.or_(low_bits(builder, moved(builder, line, 4 * half)), byte) for half in range(2)]
    (total,) = tile
    for i in range(2):
        digits = builder.add(*(shuffle_vbmi(builder, tables[2 * half + i], entries[half]) for half in range(2)))
        total = dot4_vnni(builder, total, constant(2 << DIGIT_BITS * i, I8, 64), digits)
    return [total]


@always_inline
def first_sum(group):
    """Return where in a thread's scratch the sums of a group begin."""
    return TILE_FLOATS + group * SUMS_FLOATS


@always_inline_by_type
def column_sums(weight, x, T, buffer):
    """Return the input of one token with sums of columns, written to `buffer`, if the codes of a weight are one bit."""

    def written(weight, x, T, buffer):
        if T == 1:
            for g in range(columns(weight) // ACTIVATION_GROUP):
                write_group_sums(x.codes, g * ACTIVATION_GROUP, buffer, first_sum(g))
        return ColumnSums(buffer, x.scales, x.corrections)

    if HAS_VBMI and is_kind(weight, Affine1Weight) and not is_kind(x, *FINE_KINDS):
        return written
    return lambda weight, x, T, buffer: x


@always_inline
def sum_pair(weight, x, block, other, ahead):
    """Return the tiles of two row blocks; prefetch as many lines from byte `ahead` on."""
    parts, groups, spans = weight.packed.shape[1], weight.scales.shape[1], weight.factors.shape[1]
    per_group, per_span = parts // groups, groups // spans
    tile = other_tile = zero_tile(ONE_ROW, ONE_TOKEN)
    for span in range(spans):
        factors = load_f32(weight.factors, (block * spans + span) * 2 * LANES)
        other_factors = load_f32(weight.factors, (other * spans + span) * 2 * LANES)
        for group in range(span * per_span, (span + 1) * per_span):
            scales = load_f32(weight.scales, (block * groups + group) * LANES) * factors
            other_scales = load_f32(weight.scales, (other * groups + group) * LANES) * other_factors
            for g in range(group * per_group, (group + 1) * per_group):
                line, other_line = (block * parts + g) * 64, (other * parts + g) * 64
                prefetch_far(weight.packed, ahead + g * 128)
                prefetch_far(weight.packed, ahead + g * 128 + 64)
                start = start_tile(x.corrections, g, ONE_TOKEN)
                sums = add_looked_up(start, load_line(weight.packed, line), x.codes, first_sum(g))
                tile = add_scaled(tile, sums, scales, x.scales, g)
                sums = add_looked_up(start, load_line(weight.packed, other_line), x.codes, first_sum(g))
                other_tile = add_scaled(other_tile, sums, other_scales, x.scales, g)
    return tile, other_tile


@always_inline
def sum_blocks(weight, x, first, last):
    """Write the sums of row blocks ``first..last`` into ``x.codes``, one after another."""
    row_bytes = weight.packed.shape[1] * 64
    for block in range(first, last, 2):
        # The last one twice, if there is no other.
        other = min(block + 1, last - 1)
        tile, other_tile = sum_pair(weight, x, block, other, (block + last - first) * row_bytes)
        store_tile(x.codes, (block - first) * LANES, tile)
        store_tile(x.codes, (other - first) * LANES, other_tile)
