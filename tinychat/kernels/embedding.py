"""Embedding lookup: the rows of the token ids, expanded from packed weights.

A row is a lane of the packed lines, so this reads one lane of K/8 lines: a few microseconds for a token.
"""

import numpy as np
from numba.extending import overload

from tinychat.kernels.memory import load_f32, store_f32
from tinychat.kernels.policy import FLAGS, kernel
from tinychat.kernels.simd import LANES
from tinychat.kernels.threads import share
from tinychat.kernels.weights import INT4_ZERO, INT8_ZERO, Float32Weight, Int4Weight, columns, is_weight


def expand_group(weight, n, g, scales, out, start):
    """Write group `g` of row `n` to ``out[start:]``; `scales` holds the group's 16 row scales."""
    raise TypeError("only for compiled code")


@overload(expand_group, jit_options=FLAGS)
def overload_expand_group(weight, n, g, scales, out, start):
    """Choose by the kind of weight."""

    def int4(weight, n, g, scales, out, start):
        scale = scales[n % LANES]
        size = columns(weight) // weight.scales.shape[1]
        for j in range(size // 8):
            for i in range(4):
                byte = np.int32(weight.packed[n // LANES, (g * size) // 8 + j, n % LANES, i])
                out[start + 8 * j + i] = np.float32((byte & 15) - INT4_ZERO) * scale
                out[start + 8 * j + 4 + i] = np.float32((byte >> 4) - INT4_ZERO) * scale

    def int8(weight, n, g, scales, out, start):
        scale = scales[n % LANES]
        size = columns(weight) // weight.scales.shape[1]
        for k in range(size):
            byte = weight.packed[n // LANES, (g * size + k) // 4, n % LANES, k % 4]
            out[start + k] = np.float32(np.int32(byte) - INT8_ZERO) * scale

    return int4 if is_weight(weight, Int4Weight) else int8


def expand_row(weight, n, out, scales):
    """Write row `n` to ``out[:K]``, using `scales` float32 [16] as scratch."""
    raise TypeError("only for compiled code")


@overload(expand_row, jit_options=FLAGS)
def overload_expand_row(weight, n, out, scales):
    """Choose by the kind of weight."""

    def quantized(weight, n, out, scales):
        groups = weight.scales.shape[1]
        size = columns(weight) // groups
        for g in range(groups):
            store_f32(scales, 0, load_f32(weight.scales, (n // LANES * groups + g) * LANES))
            expand_group(weight, n, g, scales, out, g * size)

    def float32(weight, n, out, scales):
        for k in range(columns(weight)):
            out[k] = weight.values[n // LANES, k, n % LANES]

    return float32 if is_weight(weight, Float32Weight) else quantized


@kernel
def embed(thread, threads, weight, ids, hidden, scratch):
    """Write ``hidden[t] = W[ids[t]]``; hidden : float32 [>= T, >= K]; scratch : float32 [threads, >= 16]."""
    first, last = share(thread, threads, ids.shape[0])
    for t in range(first, last):
        expand_row(weight, np.int64(ids[t]), hidden[t], scratch[thread])
