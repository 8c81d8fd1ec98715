"""Codes and factors of a linear's weights as tile registers and the floats beside them take them.

Codes of a line that is looked up are a row of a weights' register as they are. Tile registers multiply signed bytes, so
sums begin at 0, not at a correction for the codes' zero point: the sums are the same integers.
"""

import numpy as np
from numba import types

from tinychat.kernels.amx_buffer import FACTORS, FACTORS_OF_GROUP
from tinychat.kernels.codes import look_up_high, look_up_low
from tinychat.kernels.intrinsics import ANY, I8, I64, INDEX, SAME, constant, operation, u8x64
from tinychat.kernels.jit import always_inline, always_inline_by_type, by_type, is_kind
from tinychat.kernels.memory import load_f32, load_line, prefetch_far, store_f32
from tinychat.kernels.simd import ROUNDER
from tinychat.kernels.sizes import LANES
from tinychat.kernels.weight_access import code_of_zero, codes_of_line, rows_of
from tinychat.kernels.weights import AFFINE_KINDS, FEW_BITS, TABLE_KINDS

MINUS_ROUNDER = np.float32(-ROUNDER)


@operation(SAME, SAME)
def less_128(builder, bytes_):
    """Return bytes 0 to 255 less 128, as signed ones."""
    return builder.xor(bytes_, constant(128, I8, 64))


@operation(types.void, ANY, INDEX, u8x64)
def store_line(builder, buffer, index, line):
    """Store a line of bytes, from float `index` of the buffer."""
    buffer.store(index, line, align=4)


@operation(types.void, ANY, INDEX, ANY, types.int32)
def store_lines(builder, buffer, index, lines, zero):
    """Store lines of bytes less a number one after another, from float `index` of the buffer."""
    for q, line in enumerate(lines):
        signed = builder.sub(line, builder.splat(builder.trunc(zero, I8), 64))
        buffer.store(builder.add(index, I64(q * 16)), signed, align=4)


@always_inline_by_type
def unpack_codes(weight, block, first, count, buffer, place):
    """Write lines ``first..first + count`` of a row block as signed bytes, a line for each four columns.

    place : float of the buffer at which they begin.
    """

    def looked_up(weight, block, first, count, buffer, place):
        table, line = less_128(rows_of(weight, block).table), (block * weight.packed.shape[1] + first) * 64
        for j in range(count):
            codes = load_line(weight.packed, line + j * 64)
            store_line(buffer, place + j * 32, look_up_low(table, codes))
            store_line(buffer, place + j * 32 + 16, look_up_high(table, codes))

    def eight_bits(weight, block, first, count, buffer, place):
        line = (block * weight.packed.shape[1] + first) * 64
        for j in range(count):
            store_line(buffer, place + j * 16, less_128(load_line(weight.packed, line + j * 64)))

    def few_bits(weight, block, first, count, buffer, place):
        line, zero = (block * weight.packed.shape[1] + first) * 64, code_of_zero(weight)
        for j in range(count):
            parts = codes_of_line(weight, load_line(weight.packed, line + j * 64))
            store_lines(buffer, place + j * 16 * len(parts), parts, zero)

    if is_kind(weight, *FEW_BITS):
        return few_bits
    return looked_up if is_kind(weight, *TABLE_KINDS) else eight_bits


@always_inline
def write_scales(buffer, g, scales):
    """Write the scales of a group of a slice, and what takes `ROUNDER` off their products."""
    place = FACTORS + g * FACTORS_OF_GROUP
    store_f32(buffer, place, scales)
    store_f32(buffer, place + LANES, scales * MINUS_ROUNDER)


@always_inline_by_type
def write_factors(weight, block, group, span, slot, buffer):
    """Write scales and offsets of a weight's group, which is in a span, into a slot of the unpacked ones."""

    def quantized(weight, block, group, span, slot, buffer):
        write_scales(buffer, slot, load_f32(weight.scales, (block * weight.scales.shape[1] + group) * LANES))

    def affine(weight, block, group, span, slot, buffer):
        start = (block * weight.scales.shape[1] + group) * LANES
        factor = (block * weight.factors.shape[1] + span) * 2 * LANES
        write_scales(buffer, slot, load_f32(weight.scales, start) * load_f32(weight.factors, factor))
        if weight.offsets.shape[1] > 0:
            offsets = load_f32(weight.offsets, start) * load_f32(weight.factors, factor + LANES)
            store_f32(buffer, FACTORS + slot * FACTORS_OF_GROUP + 2 * LANES, offsets)

    return affine if is_kind(weight, *AFFINE_KINDS) else quantized


@always_inline_by_type
def unpack_factors(weight, block, first, count, parts, buffer):
    """Write scales and offsets of groups ``first..first + count`` of the input, of which it has `parts`."""

    def quantized(weight, block, first, count, parts, buffer):
        groups = weight.scales.shape[1]
        start = ((block + 1) * groups + first) * LANES
        for line in range(0, count * LANES, 64):
            prefetch_far(weight.scales, start + line)
        for g in range(count):
            write_factors(weight, block, first + g, 0, g, buffer)

    def affine(weight, block, first, count, parts, buffer):
        groups, spans = weight.scales.shape[1], weight.factors.shape[1]
        per_group, per_span = parts // groups, groups // spans
        group, part = first // per_group, first % per_group
        span, in_span = group // per_span, group % per_span
        for g in range(count):
            write_factors(weight, block, group, span, g, buffer)
            part += 1
            if part == per_group:
                part, group, in_span = 0, group + 1, in_span + 1
            if in_span == per_span:
                in_span, span = 0, span + 1

    return affine if is_kind(weight, *AFFINE_KINDS) else quantized


@by_type
def has_offsets(weight):
    """Return whether a weight has offsets."""
    if is_kind(weight, *AFFINE_KINDS):
        return lambda weight: weight.offsets.shape[1] > 0
    return lambda weight: False
