"""Embedding lookup: the rows of the token ids, expanded from packed weights.

A row is a lane of the packed lines, so this reads one lane of K/8 lines: a few microseconds for a token.
"""

import numpy as np

from tinychat.kernels.jit import by_type
from tinychat.kernels.simd import LANES
from tinychat.kernels.team import share_of, stage
from tinychat.kernels.weights import ZERO, Float32Weight, Int4Weight, SplitWeight, columns, is_weight


@by_type
def value_at(weight, n, k):
    """Return what the code of row n, column k stands for."""

    def int4(weight, n, k):
        byte = weight.packed[n // LANES, k // 8, n % LANES, k % 4]
        return np.int32(weight.table[(byte >> (k & 4)) & 15])

    def int8(weight, n, k):
        return np.int32(weight.packed[n // LANES, k // 4, n % LANES, k % 4]) - ZERO

    return int4 if is_weight(weight, Int4Weight) else int8


@by_type
def expand_row(weight, n, factor, out):
    """Write row `n`, times `factor`, to ``out[:K]``."""

    def quantized(weight, n, factor, out):
        block, lane, groups = n // LANES, n % LANES, weight.scales.shape[1]
        size, row_scale = columns(weight) // groups, weight.row_scales[block, lane] * factor
        for g in range(groups):
            scale = np.int32(weight.scales[block, g, lane])
            for k in range(g * size, (g + 1) * size):
                out[k] = np.float32(value_at(weight, n, k) * scale) * row_scale

    def float32(weight, n, factor, out):
        for k in range(columns(weight)):
            out[k] = weight.values[n // LANES, k, n % LANES] * factor

    def split(weight, n, factor, out):
        first = weight.frequent.packed.shape[0] * LANES
        if n < first:
            expand_row(weight.frequent, n, factor, out)
        else:
            expand_row(weight.rest, n - first, factor, out)

    if is_weight(weight, SplitWeight):
        return split
    return float32 if is_weight(weight, Float32Weight) else quantized


@stage
def embed(team, T, weight, ids, sizes, hidden):
    """Write ``hidden[t] = embedding_multiplier * W[ids[t]]``; ids : int64 [>= T]; hidden : float32 [>= T, >= K]."""
    first, last = share_of(team, T)
    for t in range(first, last):
        expand_row(weight, ids[t], sizes.embedding_multiplier, hidden[t])
