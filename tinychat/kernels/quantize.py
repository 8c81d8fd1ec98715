"""Quantize and pack: rows of floats in, codes and scales in the layout of `tinychat.kernels.weights` out.

A group of weights x with codes q and one scale s loses ``sum (x - s q)**2``. For given codes the best scale is
``s = sum(x q) / sum(q q)``, which takes ``sum(x q)**2 / sum(q q)`` off the error. So: try a row of scales around
the one that puts the largest weight on the end of the range, keep the best at its codes' own optimum, round it to
a 127th of the row's largest and code again. A negative scale gives positive weights the longer side of -8..7.

A lane is a row, as in the linears: the codes of a lane's columns are the bytes of its part of a line.
"""

import numpy as np
from numba import types

from tinychat.kernels.intrinsics import ANY, F32, I32, INDEX, f32x16, i32x16, operation
from tinychat.kernels.jit import allocating_kernel, always_inline, by_type, kernel
from tinychat.kernels.memory import load_f32, store_f32
from tinychat.kernels.simd import absolute, fma, maximum, minimum, nearest, splat_f32, splat_i32, sum_lanes, to_i32
from tinychat.kernels.sizes import LANES
from tinychat.kernels.team import share
from tinychat.kernels.weights import ZERO

# The value of code c is c - 8.
INT4_TABLE = np.arange(-8, 8, dtype=np.int8)
INT4_ZERO = 8
LARGEST_SCALE = 127
# Where the largest weight of a group may be put: on the end of the range (8), inside it, or clipped by it.
INT4_ENDS = np.array([8.0, 7.7, 7.4, 7.1, 6.8, 6.5, 8.3, 8.6, 8.9, 9.2, 9.6, 10.0], np.float32)


@operation(f32x16, f32x16, f32x16, f32x16, f32x16)
def where_greater(builder, a, b, then, otherwise):
    """Return `then` in the lanes where ``a > b``, else `otherwise`."""
    return builder.select(builder.fcmp_ordered(">", a, b), then, otherwise)


@operation(i32x16, i32x16, i32x16, types.int32)
def put_code(builder, line, code, shift):
    """Return `line` with `code` written from bit `shift` of each lane."""
    return builder.or_(line, builder.shl(code, builder.splat(shift)))


@operation(types.void, ANY, INDEX, i32x16)
def store_line(builder, packed, index, line):
    """Store 16 lanes of 4 bytes at flat byte `index`."""
    packed.store(index, line, align=4)


@operation(types.float32, types.uint16)
def bfloat16_value(builder, bits):
    """Return the float32 that begins with these 16 bits."""
    return builder.bitcast(builder.shl(builder.zext(bits, I32), I32(16)), F32)


@by_type
def value_at(rows, n, k):
    """Return an element of a float32 array, or of a uint16 array (bfloat16)."""
    if rows.dtype == types.uint16:
        return lambda rows, n, k: bfloat16_value(rows[n, k])
    return lambda rows, n, k: rows[n, k]


@always_inline
def load_block(rows, first, x):
    """Load 16 rows as columns, x[k, r]; missing rows and columns are zero."""
    x[:] = np.float32(0)
    for r in range(min(LANES, rows.shape[0] - first)):
        for k in range(rows.shape[1]):
            x[k, r] = value_at(rows, first + r, k)


@always_inline
def inverse(a):
    """Return ``1 / a``, 0 where a is 0."""
    return where_greater(absolute(a), 0.0, 1.0 / a, 0.0)


@always_inline
def code(x, to_code, lowest, highest):
    """Return the codes of 16 weights as whole floats."""
    return minimum(maximum(nearest(x * to_code), lowest), highest)


@always_inline
def extreme_of(x, first, size):
    """Return the weight of largest magnitude in each of 16 rows of one group, with its sign."""
    extreme = splat_f32(0.0)
    for k in range(first, first + size):
        v = load_f32(x, k * LANES)
        extreme = where_greater(absolute(v), absolute(extreme), v, extreme)
    return extreme


@always_inline
def better_scale(products, squares, scale, best):
    """Return the scale of least squares and its gain where that is more than `best`, else `scale` and `best`.

    products : sums of weights times codes' values; squares : sums of the values' squares.
    """
    optimum = products * inverse(squares)
    gain = products * optimum
    return where_greater(gain, best, optimum, scale), maximum(gain, best)


@always_inline
def int4_scale(x, first, size, ends):
    """Return the scale of least squared error for 16 rows of one group."""
    to_end = inverse(extreme_of(x, first, size))
    best, scale = splat_f32(0.0), splat_f32(0.0)
    for e in range(ends.shape[0]):
        to_code = to_end * -ends[e]
        xq, qq = splat_f32(0.0), splat_f32(0.0)
        for k in range(first, first + size):
            v = load_f32(x, k * LANES)
            q = code(v, to_code, np.float32(-8), np.float32(7))
            xq, qq = fma(v, q, xq), fma(q, q, qq)
        scale, best = better_scale(xq, qq, scale, best)
    return scale


@always_inline
def int8_scale(x, first, size):
    """Return ``max|x| / 127`` for 16 rows of one group: with 255 codes a search gains too little."""
    peak = splat_f32(0.0)
    for k in range(first, first + size):
        peak = maximum(peak, absolute(load_f32(x, k * LANES)))
    return peak * (1 / 127)


@always_inline
def pack_group(x, first, size, scale, bits, packed, line):
    """Code and pack one group of 16 rows from byte `line` on; return its squared error and its square."""
    per_line = 32 // bits
    limit = np.float32(7 if bits == 4 else 127)
    lowest = np.float32(-8) if bits == 4 else -limit
    zero = np.float32(INT4_ZERO if bits == 4 else ZERO)
    to_code = inverse(scale)
    lost, square = splat_f32(0.0), splat_f32(0.0)
    for j in range(size // per_line):
        bytes_ = splat_i32(0)
        for i in range(per_line):
            v = load_f32(x, (first + j * per_line + i) * LANES)
            q = code(v, to_code, lowest, limit)
            difference = fma(q, scale * -1.0, v)
            lost, square = fma(difference, difference, lost), fma(v, v, square)
            bytes_ = put_code(bytes_, to_i32(q + zero), 8 * (i % 4) + 4 * (i // 4))
        store_line(packed, line + j * 64, bytes_)
    return sum_lanes(lost), sum_lanes(square)


@always_inline
def round_scales(found, scales, row_scales):
    """Write float scales [groups, 16] as whole numbers times a row's own, and back as the rounded ones.

    scales : int8 [groups, 16]; row_scales : float32 [16].
    """
    for r in range(LANES):
        largest = np.float32(0)
        for g in range(found.shape[0]):
            largest = max(largest, abs(found[g, r]))
        row_scales[r] = largest / np.float32(LARGEST_SCALE)
        for g in range(found.shape[0]):
            whole = np.rint(found[g, r] / row_scales[r]) if row_scales[r] > 0 else np.float32(0)
            scales[g, r] = np.int8(whole)
            found[g, r] = whole * row_scales[r]


@allocating_kernel
def quantize_share(thread, threads, rows, bits, ends, packed, scales, row_scales, sums):
    """Quantize thread `thread`'s share of the row blocks; add (squared error, square) to ``sums[thread]``.

    rows : [N, K] float32, or uint16 for bfloat16; packed, scales, row_scales : as in `Int4Weight` or `Int8Weight`, by
    `bits`; sums : float64 [threads, 2].
    """
    groups, block_bytes = scales.shape[1], packed.shape[1] * 64
    group_size = packed.shape[1] * (32 // bits) // groups
    x, found = np.empty((groups * group_size, LANES), np.float32), np.empty((groups, LANES), np.float32)
    first, last = share(thread, threads, packed.shape[0])
    for block in range(first, last):
        load_block(rows, block * LANES, x)
        for g in range(groups):
            if bits == 4:
                scale = int4_scale(x, g * group_size, group_size, ends)
            else:
                scale = int8_scale(x, g * group_size, group_size)
            store_f32(found, g * LANES, scale)
        round_scales(found, scales[block], row_scales[block])
        for g in range(groups):
            line = block * block_bytes + g * (block_bytes // groups)
            lost, square = pack_group(x, g * group_size, group_size, load_f32(found, g * LANES), bits, packed, line)
            sums[thread, 0] += lost
            sums[thread, 1] += square


@kernel
def arrange_rows(rows, values):
    """Arrange [N, K] rows as float32 [N/16, K, 16], unquantized."""
    for block in range(values.shape[0]):
        load_block(rows, block * LANES, values[block])
