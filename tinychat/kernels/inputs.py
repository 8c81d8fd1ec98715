"""Inputs of linears: rows of floats, quantized where the weight is.

Symmetric int8, one scale for each token and group of columns, the weight's: ``scale = max|x| / 127`` and
``code = round(x / scale)``. Sums of products with these codes begin at a correction for the weight codes' zero point,
``-zero * sum(codes)``, above `ROUNDER_BITS`: so sums come out as floats.
"""

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types

from tinychat.kernels.activations import activated, gated
from tinychat.kernels.dot import ABOVE_DOT_ZERO
from tinychat.kernels.intrinsics import ANY, I8, I32, INDEX, i32x16, operation
from tinychat.kernels.jit import always_inline, always_inline_by_type, by_type, is_kind
from tinychat.kernels.linear import tokens_per_tile
from tinychat.kernels.memory import load_f32, load_one, store_codes, store_f32, store_one
from tinychat.kernels.norms import inverse_rms, mean_of, mean_square, moments_of, normed
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
from tinychat.kernels.sizes import LANES, RUN
from tinychat.kernels.sums import ROUNDER_BITS
from tinychat.kernels.team import share_of, stage
from tinychat.kernels.variants import NormedActivation, Ungated
from tinychat.kernels.weight_access import code_of_zero, columns, input_group
from tinychat.kernels.weights import (
    FEW_BITS,
    FINE_BITS,
    FINE_KINDS,
    PRODUCT_COLUMNS,
    ROW_KINDS,
    Float32Weight,
    SplitWeight,
)

# Of activations of two parts: the largest number, and half of the first part's unit.
LARGEST_FINE = np.float32(127 << FINE_BITS)
HALF_FINE = np.int32(1 << (FINE_BITS - 1))


@operation(types.void, ANY, INDEX, INDEX, i32x16)
def store_runs(builder, codes, index, stride, vector):
    """Store 16 int8 codes in runs of `RUN`, `stride` bytes apart."""
    runs = ir.VectorType(ir.IntType(8 * RUN), LANES // RUN)
    found = builder.bitcast(builder.trunc(vector, ir.VectorType(I8, LANES)), runs)
    for i in range(runs.count):
        codes.store(builder.apart(index, stride, i), builder.extract_element(found, I32(i)), align=1)


@always_inline_by_type
def write_codes(x, codes, groups, tile, k, t, tokens, vector):
    """Write the codes of columns k..k+16 of token `t` of a tile of `tokens` into one of the arrays of `x`."""

    def runs(x, codes, groups, tile, k, t, tokens, vector):
        store_runs(codes, (tile * groups.columns + k) * tokens + RUN * t, RUN * tokens, vector)

    def rows(x, codes, groups, tile, k, t, tokens, vector):
        if tokens == LANES:
            width = min(groups.size, PRODUCT_COLUMNS)
            first = k // width * width
            store_codes(codes, (tile * groups.columns + first) * tokens + width * t + k - first, vector)
        else:
            store_runs(codes, (tile * groups.columns + k) * tokens + RUN * t, RUN * tokens, vector)

    return rows if is_kind(x, *ROW_KINDS) else runs


class Groups(NamedTuple):
    """The columns of a linear's input."""

    columns: int
    count: int
    size: int  # columns of a group


@by_type
def groups_of(weight):
    """Return the `Groups` of a weight's input."""

    def quantized(weight):
        K, size = columns(weight), input_group(weight)
        return Groups(K, K // size, size)

    def float32(weight):
        K = columns(weight)
        return Groups(K, K // LANES, LANES)

    if is_kind(weight, SplitWeight):
        return lambda weight: groups_of(weight.rest)
    return float32 if is_kind(weight, Float32Weight) else quantized


@always_inline
def peak_of(row, g, groups):
    """Return the largest magnitude in group `g` of a row."""
    peak = splat_f32(0.0)
    for k in range(g * groups.size, (g + 1) * groups.size, LANES):
        peak = maximum(peak, absolute(load_f32(row, k)))
    return max_lanes(peak)


@by_type
def zero_above(weight):
    """Return how far above what `dot`, or `dot_small`, takes for 0 the code of 0 of a weight lies."""
    if is_kind(weight, *FEW_BITS):
        return lambda weight: code_of_zero(weight)
    return lambda weight: ABOVE_DOT_ZERO


@always_inline
def write_sums(weight, x, position, scale, sum_of_codes, start):
    """Write scale, correction and sum of a group; start : of its sums of products."""
    x.scales[position] = scale
    x.corrections[position] = start - zero_above(weight) * sum_of_codes
    x.sums[position] = np.float32(sum_of_codes) * scale


@always_inline_by_type
def write_group(weight, x, row, groups, g, tile, t, tokens):
    """Write group `g` of `row` as token `t` of a tile of `tokens`."""

    def quantized(weight, x, row, groups, g, tile, t, tokens):
        largest = peak_of(row, g, groups)
        to_code = np.float32(127) / largest if largest > 0 else np.float32(0)
        total = splat_i32(0)
        for k in range(g * groups.size, (g + 1) * groups.size, LANES):
            code = to_i32(nearest(load_f32(row, k) * to_code))
            total = total + code
            write_codes(x, x.codes, groups, tile, k, t, tokens, code)
        position = (tile * groups.count + g) * tokens + t
        write_sums(weight, x, position, largest / np.float32(127), sum_lanes_i32(total), ROUNDER_BITS)

    def fine(weight, x, row, groups, g, tile, t, tokens):
        largest = peak_of(row, g, groups)
        to_code = LARGEST_FINE / largest if largest > 0 else np.float32(0)
        total = splat_i32(0)
        for k in range(g * groups.size, (g + 1) * groups.size, LANES):
            both = to_i32(nearest(load_f32(row, k) * to_code))
            total = total + both
            code = (both + HALF_FINE) >> FINE_BITS
            write_codes(x, x.codes, groups, tile, k, t, tokens, code)
            write_codes(x, x.fine, groups, tile, k, t, tokens, both - (code << FINE_BITS))
        position = (tile * groups.count + g) * tokens + t
        write_sums(weight, x, position, largest / LARGEST_FINE, sum_lanes_i32(total), np.int32(0))

    def float32(weight, x, row, groups, g, tile, t, tokens):
        for k in range(g * LANES, (g + 1) * LANES):
            x.values[(tile * groups.columns + k) * tokens + t] = row[k]

    if is_kind(x, *FINE_KINDS):
        return fine
    return float32 if is_kind(weight, Float32Weight) else quantized


@always_inline
def share_groups(team, T, tokens, count):
    """Return this thread's tokens and groups (first, last, first, last); tokens : of a tile.

    Of a single tile the groups are shared: two threads that write tokens of one tile write the same cache lines.
    """
    if T <= tokens:
        first, last = share_of(team, count)
        return 0, T, first, last
    first, last = share_of(team, T)
    return first, last, 0, count


@stage
def quantize_normed(team, T, hidden, norm, sizes, weight, s):
    """Norm each hidden state and write it for `weight`.

    hidden : float32 [>= T, >= K], zero beyond D; norm : of `kernels.norms`, its arrays [K]; sizes : D is the
    `hidden_size`; s : scratch, whose `rows` are float32 [threads, >= K].
    """
    row, groups, tokens = s.rows[team.thread], groups_of(weight), tokens_per_tile(T)
    first, last, first_group, last_group = share_groups(team, T, tokens, groups.count)
    for t in range(first, last):
        start = t * hidden.shape[1]
        moments = moments_of(norm, hidden, start, sizes.hidden_size, sizes.rms_norm_eps)
        for k in range(first_group * groups.size, last_group * groups.size, LANES):
            store_f32(row, k, normed(norm, moments, load_f32(hidden, start + k), k))
        for g in range(first_group, last_group):
            write_group(weight, s.x, row, groups, g, t // tokens, t % tokens, tokens)


@stage
def quantize_plain(team, T, values, weight, s):
    """Write each row of `values` float32 [>= T, >= K] for `weight`."""
    groups, tokens = groups_of(weight), tokens_per_tile(T)
    first, last, first_group, last_group = share_groups(team, T, tokens, groups.count)
    for t in range(first, last):
        for g in range(first_group, last_group):
            write_group(weight, s.x, values[t], groups, g, t // tokens, t % tokens, tokens)


@always_inline_by_type
def inner_at(activation, gate_up, i, size):
    """Return 16 numbers that an activation makes of gates, from flat element `i` on, and of what is `size` behind."""
    if is_kind(activation, Ungated):
        return lambda activation, gate_up, i, size: activated(activation.activation, load_f32(gate_up, i))
    return lambda activation, gate_up, i, size: gated(activation, load_f32(gate_up, i), load_f32(gate_up, i + size))


@always_inline
def write_activated(row, gate_up, t, activation, size, first, last):
    """Write columns first..last of ``activation(gate) * up`` into `row`, zeros beyond `size`."""
    start = t * gate_up.shape[1]
    for k in range(first, last, LANES):
        if k < size:
            store_f32(row, k, zero_outside(inner_at(activation, gate_up, start + k, size), 0, size - k))
        else:
            store_f32(row, k, splat_f32(0.0))


@always_inline_by_type
def write_inner(row, gate_up, t, activation, size, columns, first, last):
    """Write columns first..last, of all `columns` of a linear's input, of what an activation makes of a token."""

    def plain(row, gate_up, t, activation, size, columns, first, last):
        write_activated(row, gate_up, t, activation, size, first, last)

    def with_norm(row, gate_up, t, activation, size, columns, first, last):
        # All of them are squared, whatever this thread's share of the groups.
        write_activated(row, gate_up, t, activation.activation, size, 0, columns)
        scale = inverse_rms(row, 0, size, activation.eps)
        for k in range(first, last, LANES):
            store_f32(row, k, load_f32(row, k) * scale * load_f32(activation.gain, k))

    return with_norm if is_kind(activation, NormedActivation) else plain


@stage
def cut_gates(team, T, gate_up, cutoff, size):
    """Write ``max(g - mean(g) - cutoff * deviation(g), 0)`` in the place of each token's gates g.

    Of gates that are spread normally, a share that follows from the cutoff stays above 0 (You et al., 2025,
    https://arxiv.org/abs/2506.06644). gate_up : float32 [>= T, >= 2 F + 16]; cutoff : float32; size : F.
    """
    first, last = share_of(team, T)
    for t in range(first, last):
        start = t * gate_up.shape[1]
        mean = mean_of(gate_up, start, size)
        cut = mean + cutoff * np.sqrt(mean_square(gate_up, start, size, mean))
        whole = start + size // LANES * LANES
        for k in range(start, whole, LANES):
            store_f32(gate_up, k, maximum(load_f32(gate_up, k) - cut, 0.0))
        # What the gates let through begins behind the last one.
        for k in range(whole, start + size):
            store_one(gate_up, k, max(load_one(gate_up, k) - cut, np.float32(0)))


@stage
def quantize_activated(team, T, gate_up, activation, size, weight, s):
    """Write ``activation(gate) * up`` (Shazeer, 2020) for `weight`, or ``activation(up)`` where there are no gates.

    A `NormedActivation` norms these. gate_up : float32 [>= T, >= 2 F + 16], without gates [>= T, >= F + 16]; size : F.
    """
    row, groups, tokens = s.rows[team.thread], groups_of(weight), tokens_per_tile(T)
    first, last, first_group, last_group = share_groups(team, T, tokens, groups.count)
    for t in range(first, last):
        begin, end = first_group * groups.size, last_group * groups.size
        write_inner(row, gate_up, t, activation, size, groups.columns, begin, end)
        for g in range(first_group, last_group):
            write_group(weight, s.x, row, groups, g, t // tokens, t % tokens, tokens)
