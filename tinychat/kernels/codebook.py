"""Quantization to a codebook of 16 values: importance-weighted search of scales, optional error feedback.

A weight is ``row_scale * scale * table[code]``: a float for each row, a whole number of at most 127 for each row and
group of columns, one of 16 whole numbers. For a group of weights x with table values v and importances h the best scale
is ``sum(h x v) / sum(h v v)``, which takes ``sum(h x v)**2 / sum(h v v)`` off the error ``sum h (x - s v)**2``. So: put
the largest weight of the group on a row of values around either end of the table, take the nearest values, keep the
best.

Error feedback is GPTQ (Frantar et al., 2022) in the form of LDLQ (Chee et al., 2023). With the inputs' second moments
``H = R D R'`` (R unit upper triangular, D diagonal) the loss of errors e is ``sum_k D_k (e R)_k**2``: each column is
coded after the feedback of the columns before it is added, ``sum_{j<k} e_j R[j, k]``.

Weights are transposed here, [K, N]: a lane is a row, as in the linears.
"""

import numpy as np

from tinychat.kernels.jit import allocating_kernel, always_inline
from tinychat.kernels.memory import load_f32, store_codes, store_f32
from tinychat.kernels.quantize import better_scale, extreme_of, inverse, where_greater
from tinychat.kernels.simd import absolute, fma, maximum, minimum, nearest, splat_f32, to_i32
from tinychat.kernels.sizes import LANES
from tinychat.kernels.team import share

# The 16 values of llama.cpp's IQ4_NL: denser near zero, as weights are.
TABLE = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
LARGEST_SCALE = 127
# Values on which the largest weight of a group is tried, as shares of the table's lowest and of its highest value.
END_FRACTIONS = np.array([1.0, 0.94, 0.88, 0.82, 0.76, 1.06, 1.13, 1.22], np.float32)


@always_inline
def nearest_of(v, values, borders):
    """Return the nearest of `values` [16] for 16 lanes; borders : [15], between them."""
    found = splat_f32(values[0])
    for j in range(borders.shape[0]):
        found = where_greater(v, borders[j], values[j + 1], found)
    return found


@always_inline
def best_scale(x, first, size, importance, table, borders, ends):
    """Return the scale of least weighted squared error of ``x[first : first + size]`` in 16 lanes."""
    to_end = inverse(extreme_of(x, first, size))
    best, scale = splat_f32(0.0), splat_f32(0.0)
    for p in range(ends.shape[0]):
        to_value = to_end * ends[p]
        xv, vv = splat_f32(0.0), splat_f32(0.0)
        for k in range(first, first + size):
            v = load_f32(x, k * LANES)
            value = nearest_of(v * to_value, table, borders)
            weighted = value * importance[k]
            xv, vv = fma(weighted, v, xv), fma(weighted, value, vv)
        scale, best = better_scale(xv, vv, scale, best)
    return scale


@always_inline
def load_columns(weights, lane, x):
    """Copy 16 rows of transposed weights [B, N] to x [B, 16]."""
    N = weights.shape[1]
    for k in range(weights.shape[0]):
        store_f32(x, k * LANES, load_f32(weights, k * N + lane))


@allocating_kernel
def find_row_scales(thread, threads, weights, group_size, importance, table, borders, ends, row_scales):
    """Write for each row the largest of its groups' best scales, by 127.

    weights : float32 [K, N], N a multiple of 16; importance : float32 [K]; table float32 [16] ascending; borders
    float32 [15]; ends float32 [P]: values on which to put the largest weight; row_scales float32 [N].
    """
    K, N = weights.shape
    x = np.empty((K, LANES), np.float32)
    first, last = share(thread, threads, N // LANES)
    for block in range(first, last):
        load_columns(weights, block * LANES, x)
        peak = splat_f32(0.0)
        for k in range(0, K, group_size):
            peak = maximum(peak, absolute(best_scale(x, k, group_size, importance, table, borders, ends)))
        store_f32(row_scales, block * LANES, peak * (1 / LARGEST_SCALE))


@allocating_kernel
def code_columns(
    thread,
    threads,
    weights,
    fed,
    group_size,
    importance,
    table,
    borders,
    ends,
    feedback,
    row_scales,
    numbers,
    codes,
    scales,
    errors,
):
    """Choose scales and codes of B columns, whole groups, in ascending order.

    weights : float32 [B, N]; fed : the same plus the feedback of earlier columns, or the same array; feedback : float32
    [B, B], R of these columns, or [0, 0] for none; numbers : float32 [16], 0 to 15; codes : uint8 [B, N]; scales : int8
    [B / group_size, N]; errors : float32 [B, N], weights minus quantized weights.
    """
    B, N = weights.shape
    has_feedback = feedback.shape[0] > 0
    x = np.empty((B, LANES), np.float32)
    first, last = share(thread, threads, N // LANES)
    for block in range(first, last):
        lane = block * LANES
        load_columns(fed, lane, x)
        row_scale = load_f32(row_scales, lane)
        to_whole = inverse(row_scale)
        for start in range(0, B, group_size):
            found = best_scale(x, start, group_size, importance, table, borders, ends)
            whole = minimum(maximum(nearest(found * to_whole), -LARGEST_SCALE), LARGEST_SCALE)
            store_codes(scales, start // group_size * N + lane, to_i32(whole))
            scale = whole * row_scale
            to_value = inverse(scale)
            for k in range(start, start + group_size):
                v = load_f32(x, k * LANES) * to_value
                store_codes(codes, k * N + lane, to_i32(nearest_of(v, numbers, borders)))
                value = nearest_of(v, table, borders) * scale
                error = load_f32(weights, k * N + lane) - value
                store_f32(errors, k * N + lane, error)
                if has_feedback:
                    for j in range(k + 1, B):
                        store_f32(x, j * LANES, fma(error, feedback[k, j], load_f32(x, j * LANES)))
