"""Linears of quantized weights for eleven tokens and more, on tile registers (AMX), to the bits of `kernels.linear`.

    panel of row blocks
      up to 16 tiles of tokens         their totals wait in the second-level cache
        slice of groups, 24 of 32      so that all of the following is in the first-level cache, but activations
          row block                    codes and scales of the slice are unpacked
            tile of tokens             totals in sixteen registers
              group                    a product, and the floats of an earlier one (`amx_slice`)

Codes of a line that is looked up are a row of a weights' register as they are. Tile registers multiply signed bytes, so
sums begin at 0, not at a correction for the codes' zero point: the sums are the same integers.
"""

from typing import NamedTuple

import numpy as np
from numba import types

from tinychat.kernels.amx import configure_16, configure_32, configure_64, release_registers
from tinychat.kernels.amx_buffer import (
    CODES,
    FACTORS,
    FACTORS_OF_GROUP,
    MOST_TILES,
    MOST_TOTALS,
    SLICE_BYTES,
    TILE,
    TOTALS,
)
from tinychat.kernels.amx_slice import AHEAD, Slice, add_fine_slice, add_slice, begin_stream, take_turn
from tinychat.kernels.codes import look_up_high, look_up_low
from tinychat.kernels.compile_queue import deferred
from tinychat.kernels.intrinsics import ANY, I8, I64, INDEX, SAME, constant, operation, u8x64
from tinychat.kernels.jit import always_inline, always_inline_by_type, by_type, inline, is_kind
from tinychat.kernels.memory import address_of, load_f32, load_line, prefetch_far, store_f32
from tinychat.kernels.simd import ROUNDER
from tinychat.kernels.sizes import FAR_BYTES, LANES
from tinychat.kernels.weight_access import code_of_zero, codes_of_line, columns, input_group, rows_of
from tinychat.kernels.weights import (
    AFFINE_KINDS,
    FEW_BITS,
    FINE_KINDS,
    PRODUCT_COLUMNS,
    TABLE_KINDS,
    Int4Weight,
    Int8Weight,
    MixedWeight,
)

MINUS_ROUNDER = np.float32(-ROUNDER)
# For so few tiles of tokens weights are unpacked in the order of memory: reading them takes as long as multiplying.
FEW_TILES = 4
# Groups that are unpacked when the four steps begin whose products need the last of them.
UNPACKED_AHEAD = AHEAD + 4
# Not literals, for each of which the stream would be compiled once more.
NEXT_TILE, NOTHING = np.int64(TILE), np.int64(0)


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
def unpack_factors(weight, block, first, count, parts, buffer):
    """Write scales and offsets of groups ``first..first + count`` of the input, of which it has `parts`."""

    def quantized(weight, block, first, count, parts, buffer):
        groups = weight.scales.shape[1]
        start = (block * groups + first) * LANES
        for line in range(0, count * LANES, 64):
            prefetch_far(weight.scales, start + groups * LANES + line)
        for g in range(count):
            write_scales(buffer, g, load_f32(weight.scales, start + g * LANES))

    def affine(weight, block, first, count, parts, buffer):
        groups, spans = weight.scales.shape[1], weight.factors.shape[1]
        per_group, per_span, has_offsets = parts // groups, groups // spans, weight.offsets.shape[1] > 0
        group, part = first // per_group, first % per_group
        span, in_span = group // per_span, group % per_span
        for g in range(count):
            start, factor = (block * groups + group) * LANES, (block * spans + span) * 2 * LANES
            write_scales(buffer, g, load_f32(weight.scales, start) * load_f32(weight.factors, factor))
            if has_offsets:
                offsets = load_f32(weight.offsets, start) * load_f32(weight.factors, factor + LANES)
                store_f32(buffer, FACTORS + g * FACTORS_OF_GROUP + 2 * LANES, offsets)
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


class Unpacked(NamedTuple):
    """The place in memory of what was unpacked."""

    address: int
    lines: int
    lines_of_block: int  # from a row block to the next
    has_offsets: bool


@always_inline_by_type
def unpack(weight, block, first, count, parts, buffer):
    """Unpack groups ``first..first + count`` of a row block, of `parts` that the input has."""

    def whole(weight, block, first, count, parts, buffer):
        lines = weight.packed.shape[1]
        of_group = lines // parts
        unpack_codes(weight, block, first * of_group, count * of_group, buffer, CODES)
        unpack_factors(weight, block, first, count, parts, buffer)
        address = address_of(weight.packed, (block * lines + first * of_group) * 64)
        return Unpacked(address, count * of_group, lines, has_offsets(weight))

    def mixed(weight, block, first, count, parts, buffer):
        index = weight.indices[block]
        if index >= 0:
            return unpack(weight.four, index, first, count, parts, buffer)
        return unpack(weight.eight, -1 - index, first, count, parts, buffer)

    return mixed if is_kind(weight, MixedWeight) else whole


class Unpacking(NamedTuple):
    """The next group to unpack, and the slot of the ring that it goes to."""

    block: int
    group: int
    slot: int


@always_inline
def unpack_next(weight, s, at, buffer):
    """Unpack a group into a slot of the ring and prefetch what the processor may not; return what follows."""
    groups, lines = weight.scales.shape[1], weight.packed.shape[1]
    of_group = lines // groups
    first, start = at.group * of_group, (at.block * groups + at.group) * LANES
    for line in range(of_group):
        prefetch_far(weight.packed, (at.block * lines + first + line) * 64 + FAR_BYTES)
    unpack_codes(weight, at.block, first, of_group, buffer, CODES + at.slot * s.size // 4)
    prefetch_far(weight.scales, start + FAR_BYTES // 16)
    write_scales(buffer, at.slot, load_f32(weight.scales, start))
    block, group = (at.block, at.group + 1) if at.group + 1 < groups else (at.block + 1, 0)
    return Unpacking(block, group, at.slot + 1 if at.slot + 1 < s.count else 0)


@deferred
def multiply_blocks(weight, x, s, T, out, offset, buffer, add, first, last, tile):
    """Compute row blocks ``first..last`` for one tile of tokens: groups are unpacked between the steps, into a ring.

    One stream of all row blocks: each would wait for its first products.
    """
    groups, block, at = weight.scales.shape[1], first, Unpacking(first, 0, 0)
    for _ in range(UNPACKED_AHEAD):
        at = unpack_next(weight, s, at, buffer)
    total, place = begin_stream(s, x, buffer, TOTALS)
    for turn in range(((last - first) * groups + 3) // 4):
        for _ in range(4):
            if at.block < last:
                at = unpack_next(weight, s, at, buffer)
        total, place = take_turn(s, x, buffer, total, place)
        if 4 * (turn + 1) >= (block + 1 - first) * groups:
            totals = TOTALS + (block - first) % 2 * TILE
            write_totals(weight, buffer, totals, T, out, offset, add, block, block + 1, tile, tile + 1)
            block += 1


@always_inline
def ring_size(groups, size):
    """Return the slots of a ring that goes round a whole number of times, 0 if there is none."""
    for count in range(min(groups, SLICE_BYTES // (size * LANES)), UNPACKED_AHEAD + 3, -1):
        if groups % count == 0:
            return count
    return 0


def goes_round(weight, x):
    """Return whether groups of this type of weight and of activations are unpacked into a ring."""
    return is_kind(weight, Int4Weight, Int8Weight) and not is_kind(x, *FINE_KINDS)


@always_inline_by_type
def slots_for(weight, x, size):
    """Return the slots of the ring for one tile of tokens, 0 where slices do it."""
    if goes_round(weight, x):
        return lambda weight, x, size: ring_size(columns(weight) // size, size)
    return lambda weight, x, size: 0


@always_inline_by_type
def run_blocks(weight, x, s, T, out, offset, buffer, add, first, last, tile):
    """Compute row blocks for one tile, where a ring does it."""

    def ring(weight, x, s, T, out, offset, buffer, add, first, last, tile):
        multiply_blocks(weight, x, s, T, out, offset, buffer, add, first, last, tile)

    def slices(weight, x, s, T, out, offset, buffer, add, first, last, tile):
        pass

    return ring if goes_round(weight, x) else slices


@inline
def multiply_one_tile(weight, x, T, out, offset, buffer, add, first, last, tile, ring):
    """Compute row blocks ``first..last`` for one tile of tokens; ring : of `slots_for`."""
    K, size = columns(weight), input_group(weight)
    parts, codes = K // size, tile * K * LANES
    scales = tile * parts * LANES
    s = Slice(
        ring,
        NOTHING,
        size * LANES,
        min(size, PRODUCT_COLUMNS),
        codes,
        codes + K * LANES,
        ring * size * LANES,
        scales,
        scales + parts * LANES,
        ring * LANES,
        NOTHING,
        has_offsets(weight),
        NOTHING,
        NOTHING,
        True,
    )
    run_blocks(weight, x, s, T, out, offset, buffer, add, first, last, tile)


@always_inline_by_type
def run_slice(x, s, buffer, totals):
    """Add a slice to totals."""
    if is_kind(x, *FINE_KINDS):
        return lambda x, s, buffer, totals: add_fine_slice(s, x, buffer, totals)
    return lambda x, s, buffer, totals: add_slice(s, x, buffer, totals)


@always_inline_by_type
def scaled_by_row(weight, total, n):
    """Return a total times the factors of its rows, from row `n` on, where a weight has some for whole rows."""
    if is_kind(weight, *AFFINE_KINDS, MixedWeight):
        return lambda weight, total, n: total
    return lambda weight, total, n: total * load_f32(weight.row_scales, n)


@always_inline
def write_totals(weight, buffer, totals, T, out, offset, add, first, last, begin, end):
    """Write row blocks ``first..last`` of tiles ``begin..end`` as `write_tile` does; token by token, for the memory."""
    for t in range(begin * LANES, min(end * LANES, T)):
        place = totals + (t // LANES - begin) * TILE + t % LANES * LANES
        for block in range(first, last):
            n = block * LANES
            index = t * out.shape[1] + offset + n
            value = scaled_by_row(weight, load_f32(buffer, place + (block - first) * (end - begin) * TILE), n)
            if weight.bias.shape[0] > 0:
                value = value + load_f32(weight.bias, n)
            if add:
                value = value + load_f32(out, index)
            store_f32(out, index, value)


@always_inline
def configure(buffer, width):
    """Configure the registers for products of `width` columns."""
    if width == 64:
        configure_64(buffer)
    elif width == 32:
        configure_32(buffer)
    else:
        configure_16(buffer)


@always_inline
def slice_of(unpacked, K, size, group, groups, begin, count, in_order):
    """Return the slice of groups ``group..group + groups`` of `size` columns, for `count` tiles from `begin` on."""
    parts, steps = K // size, groups * count
    codes, scales = begin * K * LANES, begin * parts * LANES
    return Slice(
        groups,
        steps,
        size * LANES,
        min(size, PRODUCT_COLUMNS),
        codes + group * size * LANES,
        codes + count * K * LANES,
        K * LANES,
        scales + group * LANES,
        scales + (count * parts + group) * LANES,
        parts * LANES,
        NEXT_TILE,
        unpacked.has_offsets,
        unpacked.address + 64 * (unpacked.lines if in_order else unpacked.lines_of_block),
        (4 * unpacked.lines + steps - 1) // steps,
        group == 0,
    )


@inline
def multiply_panel(weight, x, start, T, out, offset, buffer, add, first, last):
    """Compute row blocks ``first..last`` for tokens ``start..T``, the first of which begins a tile."""
    K, size, tiles = columns(weight), input_group(weight), (T + LANES - 1) // LANES
    parts, slices = K // size, (K * LANES + SLICE_BYTES - 1) // SLICE_BYTES
    at_most = (parts + slices - 1) // slices
    configure(buffer, min(size, PRODUCT_COLUMNS))
    ring = slots_for(weight, x, size)
    for begin in range(start // LANES, tiles, MOST_TILES):
        count = min(MOST_TILES, tiles - begin)
        if count == 1 and ring > 0:
            multiply_one_tile(weight, x, T, out, offset, buffer, add, first, last, begin, ring)
            continue
        in_order = count <= FEW_TILES
        blocks = 1 if in_order else MOST_TOTALS // count
        for top in range(first, last, blocks):
            bottom = min(top + blocks, last)
            for group in range(0, parts, at_most):
                groups = min(at_most, parts - group)
                for block in range(top, bottom):
                    unpacked = unpack(weight, block, group, groups, parts, buffer)
                    s = slice_of(unpacked, K, size, group, groups, begin, count, in_order)
                    run_slice(x, s, buffer, TOTALS + (block - top) * count * TILE)
            write_totals(weight, buffer, TOTALS, T, out, offset, add, top, bottom, begin, begin + count)
    release_registers(buffer)
