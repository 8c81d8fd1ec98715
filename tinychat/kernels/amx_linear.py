"""Linears of quantized weights for eleven tokens and more, on tile registers (AMX), to the bits of `kernels.linear`.

    panel of row blocks
      up to 16 tiles of tokens         their totals wait in the second-level cache
        slice of groups, 24 of 32      so that all of the following is in the first-level cache, but activations
          row block                    codes and scales of the slice are unpacked (`amx_unpacking`)
            tile of tokens             totals in sixteen registers
              group                    a product, and the floats of an earlier one (`amx_slice`)

One tile of tokens takes less time than its weights from memory: groups are unpacked while others are multiplied
(`amx_one_tile`).
"""

from typing import NamedTuple

from tinychat.kernels.amx import configure_16, configure_32, configure_64, release_registers
from tinychat.kernels.amx_buffer import CODES, MOST_TILES, MOST_TOTALS, SLICE_BYTES, TILE, TOTALS
from tinychat.kernels.amx_one_tile import GROUP, begin_stream, new_panel, slice_length, take_turn
from tinychat.kernels.amx_slice import Slice, add_fine_slice, add_slice
from tinychat.kernels.amx_unpacking import has_offsets, unpack_codes, unpack_factors
from tinychat.kernels.compile_queue import deferred
from tinychat.kernels.jit import always_inline, always_inline_by_type, inline, is_kind
from tinychat.kernels.memory import address_of, load_f32, prefetch_to_write, store_f32
from tinychat.kernels.sizes import LANES
from tinychat.kernels.weight_access import columns, input_group
from tinychat.kernels.weights import (
    AFFINE_KINDS,
    CODE_BITS,
    FINE_KINDS,
    PRODUCT_COLUMNS,
    MixedWeight,
)

# For so few tiles of tokens weights are unpacked in the order of memory: reading them takes as long as multiplying.
FEW_TILES = 4


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
                # Another core has read it: that of the next row block, too.
                prefetch_to_write(out, index + LANES)
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
        unpacked.has_offsets,
        unpacked.address + 64 * (unpacked.lines if in_order else unpacked.lines_of_block),
        (4 * unpacked.lines + steps - 1) // steps,
        group == 0,
    )


def has_stream(weight, x):
    """Return whether this type of weight and of activations has a stream for one tile of tokens.

    Fewer bits do not wait for memory, and take long to be compiled.
    """
    return CODE_BITS.get(weight.instance_class, 0) >= 4 and not is_kind(x, *FINE_KINDS)


@always_inline_by_type
def slice_of_one_tile(weight, x, size):
    """Return the groups of a slice for one tile of tokens; 0 where it is multiplied as several are."""
    if has_stream(weight, x):
        return lambda weight, x, size: slice_length(columns(weight) // GROUP) if size == GROUP else 0
    return lambda weight, x, size: 0


@always_inline_by_type
def multiply_one_tile(weight, x, length, T, out, offset, buffer, add, first, last, tile):
    """Compute row blocks ``first..last`` for one tile of tokens; length : of `slice_of_one_tile`."""

    def stream(weight, x, length, T, out, offset, buffer, add, first, last, tile):
        for top in range(first, last, MOST_TOTALS):
            panel = new_panel(weight, top, min(top + MOST_TOTALS, last), tile, length)
            stream_panel(weight, x, panel, T, out, offset, buffer, add, tile)

    def slices(weight, x, length, T, out, offset, buffer, add, first, last, tile):
        pass

    return stream if has_stream(weight, x) else slices


@deferred
def stream_panel(weight, x, panel, T, out, offset, buffer, add, tile):
    """Compute the row blocks of a panel for one tile of tokens, in one stream."""
    total, place = begin_stream(weight, x, panel, buffer)
    done, end = 0, panel.steps - (panel.blocks - 1) * panel.length
    for turn in range((panel.steps + 3) // 4):
        total, place = take_turn(weight, x, panel, buffer, total, place)
        if 4 * (turn + 1) >= end:
            totals, block = TOTALS + done * panel.tile_totals, panel.first + done
            write_totals(weight, buffer, totals, T, out, offset, add, block, block + 1, tile, tile + 1)
            done, end = done + 1, end + panel.length


@inline
def multiply_panel(weight, x, start, T, out, offset, buffer, add, first, last):
    """Compute row blocks ``first..last`` for tokens ``start..T``, the first of which begins a tile."""
    K, size, tiles = columns(weight), input_group(weight), (T + LANES - 1) // LANES
    parts, slices = K // size, (K * LANES + SLICE_BYTES - 1) // SLICE_BYTES
    at_most = (parts + slices - 1) // slices
    configure(buffer, min(size, PRODUCT_COLUMNS))
    length = slice_of_one_tile(weight, x, size)
    for begin in range(start // LANES, tiles, MOST_TILES):
        count = min(MOST_TILES, tiles - begin)
        if count == 1 and length > 0:
            multiply_one_tile(weight, x, length, T, out, offset, buffer, add, first, last, begin)
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
