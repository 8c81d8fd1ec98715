"""Embedding lookup: the rows of the token ids, expanded from packed weights.

A row is a lane of the packed lines, so this reads one lane of K/8 lines: a few microseconds for a token.
"""

import numpy as np
from numba import types

from tinychat.kernels.jit import always_inline, by_type, is_kind
from tinychat.kernels.memory import load_f32, load_one, store_f32
from tinychat.kernels.sizes import LANES
from tinychat.kernels.team import share_of, stage
from tinychat.kernels.weight_access import ZERO_CODE, code_of_zero, columns
from tinychat.kernels.weights import (
    AFFINE_KINDS,
    CODE_BITS,
    Float32Weight,
    Int4Weight,
    Int8Weight,
    MixedWeight,
    SplitWeight,
    Table4Weight,
)


@by_type
def value_at(weight, block, lane, k):
    """Return the value of the code of column `k` of a row: by the weight's table, or less its code of zero."""
    if is_kind(weight, Int4Weight):
        return lambda weight, block, lane, k: np.int32(weight.table[code_at(weight, block, lane, k)])
    if is_kind(weight, Table4Weight):
        return lambda weight, block, lane, k: np.int32(weight.table[block, code_at(weight, block, lane, k)])
    if is_kind(weight, Int8Weight):
        return lambda weight, block, lane, k: code_at(weight, block, lane, k) - ZERO_CODE
    return lambda weight, block, lane, k: code_at(weight, block, lane, k) - code_of_zero(weight)


@by_type
def code_at(weight, block, lane, k):
    """Return the code of column `k` of a row; of one bit 0 or 2."""
    bits = CODE_BITS[weight.instance_class]
    of_line, of_byte, mask, unit = 32 // bits, 8 // bits, (1 << bits) - 1, 2 if bits == 1 else 1

    def code(weight, block, lane, k):
        return (np.int32(weight.packed[block, k // of_line, lane, k % 4]) >> k // 4 % of_byte * bits & mask) * unit

    return code


@always_inline
def expand_affine_row(weight, block, lane, factor, out):
    """Write row `lane` of a block of an affine weight, times `factor`."""
    groups, spans = weight.scales.shape[1], weight.factors.shape[1]
    size, has_offsets = columns(weight) // groups, weight.offsets.shape[1] > 0
    for g in range(groups):
        span = g * spans // groups
        scale = number_at(weight.scales, block, g, lane) * weight.factors[block, span, 0, lane]
        offset = np.float32(0)
        if has_offsets:
            offset = number_at(weight.offsets, block, g, lane) * weight.factors[block, span, 1, lane]
        for k in range(g * size, (g + 1) * size):
            out[k] = (np.float32(value_at(weight, block, lane, k)) * scale + offset) * factor


@by_type
def number_at(array, block, g, lane):
    """Return an element of an array of scales as float32."""
    if array.dtype in (types.uint8, types.uint16):
        return lambda array, block, g, lane: load_one(array, (block * array.shape[1] + g) * LANES + lane)
    return lambda array, block, g, lane: np.float32(array[block, g, lane])


@by_type
def expand_row(weight, n, factor, out):
    """Write row `n`, times `factor`, to ``out[:K]``."""

    def quantized(weight, n, factor, out):
        block, lane, groups = n // LANES, n % LANES, weight.scales.shape[1]
        size, row_scale = columns(weight) // groups, weight.row_scales[block, lane] * factor
        for g in range(groups):
            scale = np.int32(weight.scales[block, g, lane])
            for k in range(g * size, (g + 1) * size):
                out[k] = np.float32(value_at(weight, block, lane, k) * scale) * row_scale

    def float32(weight, n, factor, out):
        for k in range(columns(weight)):
            out[k] = weight.values[n // LANES, k, n % LANES] * factor

    def split(weight, n, factor, out):
        first = weight.frequent.packed.shape[0] * LANES
        if n < first:
            expand_row(weight.frequent, n, factor, out)
        else:
            expand_row(weight.rest, n - first, factor, out)

    def affine(weight, n, factor, out):
        expand_affine_row(weight, n // LANES, n % LANES, factor, out)

    def mixed(weight, n, factor, out):
        index = weight.indices[n // LANES]
        if index >= 0:
            expand_row(weight.four, index * LANES + n % LANES, factor, out)
        else:
            expand_row(weight.eight, (-1 - index) * LANES + n % LANES, factor, out)

    if is_kind(weight, SplitWeight):
        return split
    if is_kind(weight, MixedWeight):
        return mixed
    if is_kind(weight, *AFFINE_KINDS):
        return affine
    return float32 if is_kind(weight, Float32Weight) else quantized


@stage
def embed(team, T, weight, ids, sizes, hidden):
    """Write ``hidden[t] = embedding_multiplier * W[ids[t]]``; ids : int64 [>= T]; hidden : float32 [>= T, >= K]."""
    first, last = share_of(team, T)
    for t in range(first, last):
        expand_row(weight, ids[t], sizes.embedding_multiplier, hidden[t])


@stage
def pick_rows(team, T, rows, hidden, out):
    """Write ``out[t] = hidden[rows[t]]``; rows : int64 [>= T]; hidden, out : float32 of as many columns."""
    first, last = share_of(team, T)
    for t in range(first, last):
        for k in range(0, hidden.shape[1], LANES):
            store_f32(out, t * out.shape[1] + k, load_f32(hidden, rows[t] * hidden.shape[1] + k))


@stage
def place_rows(team, T, replaced, images, hidden):
    """Replace ``hidden[t]`` by the first part of ``images[t]`` where ``replaced[t]`` is not 0.

    replaced : int64 [>= T]; images : float32 [>= T, parts * D], D of 16; hidden : float32 [>= T, D].
    """
    first, last = share_of(team, T)
    for t in range(first, last):
        if replaced[t] != 0:
            for k in range(0, hidden.shape[1], LANES):
                store_f32(hidden, t * hidden.shape[1] + k, load_f32(images, t * images.shape[1] + k))


@stage
def add_image_rows(team, T, replaced, images, part, hidden):
    """Add part number `part` of ``images[t]`` to ``hidden[t]`` where ``replaced[t]`` is not 0: see `place_rows`."""
    first, last = share_of(team, T)
    for t in range(first, last):
        if replaced[t] != 0:
            for k in range(hidden.shape[1]):
                hidden[t, k] += images[t, part * hidden.shape[1] + k]


@always_inline
def keep_rows(team, T, columns, layer, hidden, kept):
    """Copy hidden states to ``kept`` from column ``columns[layer]`` on; -1: nobody reads them.

    One thread does so, and none waits for it: all stages that write hidden states come behind one that reads them.

    columns : int64 [layers + 1]; hidden : float32 [>= T, >= D]; kept : float32 [>= T, a multiple of D], D of 16.
    """
    if team.thread == 0 and columns[layer] >= 0:
        for t in range(T):
            for k in range(0, hidden.shape[1], LANES):
                store_f32(kept, t * kept.shape[1] + columns[layer] + k, load_f32(hidden, t * hidden.shape[1] + k))


@stage
def add_positions(team, T, vectors, rows, hidden):
    """Add to ``hidden[t]`` the vector of its position.

    vectors : float32 [P, >= D]; rows : int64 [>= T], below P; hidden : float32 [>= T, >= D].
    """
    first, last = share_of(team, T)
    for t in range(first, last):
        for k in range(vectors.shape[1]):
            hidden[t, k] += vectors[rows[t], k]
