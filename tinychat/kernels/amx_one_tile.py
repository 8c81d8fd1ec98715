"""The stream of products and floats for one tile of tokens: weights are multiplied as they come from memory.

    slice of groups, about 16     so that activations and unpacked groups are in the first-level cache
      row block                   its totals wait there, too, from one slice to the next
        group                     is unpacked, two steps later multiplied, and five steps later added to the totals

It does not end between row blocks, each of which would wait for its first products. Unpacked groups go round a ring.

A core has sixteen lines of memory under way, each for some 100 ns, and a step needs four. They are prefetched one by
one, between the floats of a step: together they would hold up whatever else misses the first-level cache.
"""

from typing import NamedTuple

import numpy as np

from tinychat.kernels.amx import store_of
from tinychat.kernels.amx_buffer import CODES, FACTORS, FACTORS_OF_GROUP, RING, TILE, TOTALS
from tinychat.kernels.amx_slice import AHEAD, SIXTEEN, floats_0, floats_4, floats_8, floats_12, registers_of
from tinychat.kernels.amx_unpacking import has_offsets, unpack_codes, write_factors
from tinychat.kernels.jit import always_inline, always_inline_by_type, by_type, is_kind
from tinychat.kernels.memory import load_f32, prefetch_far
from tinychat.kernels.sizes import LANES, ONE_ROW
from tinychat.kernels.tile import add_outer, load_rows, load_tokens, store_tile, zero_tile
from tinychat.kernels.weight_access import columns
from tinychat.kernels.weights import AFFINE_KINDS, CODE_BITS

# Columns of a group: constants make steps short.
GROUP = 32
GROUP_BYTES = GROUP * LANES  # of activations, and of unpacked codes
SLOTS = 16  # groups of the ring
# Groups of a slice, which divide those of a row block: 16 are a page of four-bit codes. Each ends a pass over totals.
SLICE, SHORTEST_SLICE = 16, 12
UNPACKED_AHEAD, PREFETCHED_AHEAD = AHEAD + 2, AHEAD + 14
# Not literals, for each of which the stream would be compiled once more.
NEXT_TILE, SAME_TILE = np.int64(TILE), np.int64(0)


class Panel(NamedTuple):
    """Row blocks, and the tile of tokens that meets them."""

    first: int  # row block
    blocks: int
    groups: int  # of a row block
    per_group: int  # of these, to a group of the weight
    per_span: int  # groups of the weight to a span
    length: int  # of a slice
    steps: int  # groups of all
    codes: int  # byte of the activations' codes where the tile begins
    scales: int  # float of their scales
    tile_totals: int  # from totals to those of the next row block: none where a row block is done in one slice


class GroupVisit(NamedTuple):
    """A group in the order of the stream."""

    block: int  # from the first of the panel
    group: int  # of the row block
    left: int  # in the slice, with this one


class StreamPlace(NamedTuple):
    """The place of a step in the stream."""

    step: int
    prefetched: GroupVisit
    unpacked: GroupVisit
    multiplied: GroupVisit
    added: GroupVisit


@always_inline
def slice_length(groups):
    """Return the groups of a slice, about `SLICE`, of which a row block has a whole number; 0 if it has too few."""
    for length in range(SLICE, SHORTEST_SLICE - 1, -1):
        if groups % length == 0:
            return length
    for length in range(SLICE + 1, groups + 1):
        if groups % length == 0:
            return length
    return 0


@by_type
def spans_of(weight):
    """Return the spans of a row block."""
    if is_kind(weight, *AFFINE_KINDS):
        return lambda weight: weight.factors.shape[1]
    return lambda weight: 1


@always_inline
def new_panel(weight, first, last, tile, length):
    """Return the panel of row blocks ``first..last``; length : of `slice_length`."""
    groups, blocks = columns(weight) // GROUP, last - first
    per_group, per_span = groups // weight.scales.shape[1], weight.scales.shape[1] // spans_of(weight)
    codes, scales = tile * groups * GROUP_BYTES, tile * groups * LANES
    tile_totals = NEXT_TILE if length < groups else SAME_TILE
    return Panel(first, blocks, groups, per_group, per_span, length, blocks * groups, codes, scales, tile_totals)


@always_inline
def next_visit(panel, visit):
    """Return the group behind one; the first follows the last."""
    block, group, left = visit.block, visit.group + 1, visit.left - 1
    if left == 0:
        block, group, left = block + 1, group - panel.length, panel.length
        if block == panel.blocks:
            block, group = 0, group + panel.length
            group = group if group < panel.groups else 0
    return GroupVisit(block, group, left)


@always_inline
def number_of(panel, visit):
    """Return the number of a group in the weight."""
    return (panel.first + visit.block) * panel.groups + visit.group


@by_type
def lines_of_group(weight):
    """Return the lines of a group of a row block."""
    lines = CODE_BITS[weight.instance_class]
    return lambda weight: lines


@always_inline
def prefetch_quarter(weight, group, quarter):
    """Prefetch a quarter of a group's lines."""
    of_group = lines_of_group(weight)
    for line in range(quarter, of_group, 4):
        prefetch_far(weight.packed, (group * of_group + line) * 64)


@always_inline_by_type
def prefetch_factors(weight, panel, group):
    """Prefetch scales, and offsets, of group `group` of all and the three behind it."""

    def quantized(weight, panel, group):
        prefetch_far(weight.scales, group * LANES)

    def affine(weight, panel, group):
        start = group // panel.per_group * LANES
        for line in range(weight.scales.itemsize):
            prefetch_far(weight.scales, start + line * 64 // weight.scales.itemsize)
        if weight.offsets.shape[1] > 0:
            for line in range(weight.offsets.itemsize):
                prefetch_far(weight.offsets, start + line * 64 // weight.offsets.itemsize)

    return affine if is_kind(weight, *AFFINE_KINDS) else quantized


@always_inline_by_type
def unpack_group_factors(weight, panel, block, group, slot, buffer):
    """Write scales and offsets of a group of the input into a slot."""

    def quantized(weight, panel, block, group, slot, buffer):
        write_factors(weight, block, group, 0, slot, buffer)

    def affine(weight, panel, block, group, slot, buffer):
        if panel.per_group > 1:
            group //= panel.per_group
        write_factors(weight, block, group, group // panel.per_span, slot, buffer)

    return affine if is_kind(weight, *AFFINE_KINDS) else quantized


@always_inline
def unpack_group(weight, panel, visit, step, buffer):
    """Unpack the group of a step into its slot of the ring; nothing behind the last step."""
    if step < panel.steps:
        slot, block, lines = step % SLOTS, panel.first + visit.block, lines_of_group(weight)
        unpack_codes(weight, block, visit.group * lines, lines, buffer, CODES + slot * GROUP_BYTES // 4)
        unpack_group_factors(weight, panel, block, visit.group, slot, buffer)


def product(c):
    """Make a function that multiplies the group of a step into register `c`."""
    load_x, load_w, zero, multiply = registers_of(c)

    @always_inline
    def function(x, panel, visit, step, buffer):
        load_x(buffer, x.codes, panel.codes + visit.group * GROUP_BYTES, GROUP)
        load_w(buffer, buffer, 4 * CODES + step % SLOTS * GROUP_BYTES, 64)
        zero(buffer)
        multiply(buffer)
        return next_visit(panel, visit)

    return function


@always_inline
def next_totals(panel, buffer, total, visit):
    """Store the totals of the row block behind the last group of its slice; return those that the next one adds to."""
    if visit.left > 1:
        return total
    store_tile(buffer, TOTALS + visit.block * panel.tile_totals, total)
    following = next_visit(panel, visit)
    if following.group == 0:
        return zero_tile(ONE_ROW, SIXTEEN)
    return load_tokens(buffer, TOTALS + following.block * panel.tile_totals, LANES, ONE_ROW, SIXTEEN)


def step(c):
    """Make a step: a product into register `c`, a store of an older one, and between them floats of a still older."""
    load_x, load_w, zero, multiply = registers_of(c)
    store, to, sums = store_of((c + 1) % 4), RING + (c + 1) % 4 * TILE, RING + (c + 3) % 4 * TILE

    @always_inline
    def function(weight, x, panel, buffer, total, place):
        n, scale = place.step, panel.scales + place.added.group * LANES
        unpack_group(weight, panel, place.unpacked, n + UNPACKED_AHEAD, buffer)
        ahead = number_of(panel, place.prefetched)
        # Behind the panel the next one begins.
        ahead = ahead if n + PREFETCHED_AHEAD < panel.steps else ahead + panel.steps
        factors = FACTORS + n % SLOTS * FACTORS_OF_GROUP
        scales, offsets = load_f32(buffer, factors), load_f32(buffer, factors + LANES)
        load_x(buffer, x.codes, panel.codes + place.multiplied.group * GROUP_BYTES, GROUP)
        prefetch_quarter(weight, ahead, 0)
        total = floats_0(total, buffer, sums, scales, offsets, x.scales, scale)
        load_w(buffer, buffer, 4 * CODES + (n + AHEAD) % SLOTS * GROUP_BYTES, 64)
        prefetch_quarter(weight, ahead, 1)
        total = floats_4(total, buffer, sums, scales, offsets, x.scales, scale)
        zero(buffer)
        multiply(buffer)
        prefetch_quarter(weight, ahead, 2)
        total = floats_8(total, buffer, sums, scales, offsets, x.scales, scale)
        store(buffer, to)
        prefetch_quarter(weight, ahead, 3)
        total = floats_12(total, buffer, sums, scales, offsets, x.scales, scale)
        if has_offsets(weight):
            total = add_outer(total, load_rows(buffer, factors + 2 * LANES, 0, ONE_ROW), x.sums, scale, 1)
        total = next_totals(panel, buffer, total, place.added)
        prefetched, unpacked = next_visit(panel, place.prefetched), next_visit(panel, place.unpacked)
        multiplied, added = next_visit(panel, place.multiplied), next_visit(panel, place.added)
        return total, StreamPlace(n + 1, prefetched, unpacked, multiplied, added)

    return function


store_0, store_1 = store_of(0), store_of(1)
product_0, product_1, product_2, product_3 = (product(c) for c in range(4))
step_0, step_1, step_2, step_3 = (step(c) for c in range(4))


@always_inline
def begin_stream(weight, x, panel, buffer):
    """Unpack and multiply the first groups; return the totals of the first row block, and the first step's place."""
    first = ahead = unpacked = GroupVisit(0, 0, panel.length)
    for n in range(UNPACKED_AHEAD):
        unpack_group(weight, panel, unpacked, n, buffer)
        unpacked = next_visit(panel, unpacked)
    for _ in range(PREFETCHED_AHEAD):
        ahead = next_visit(panel, ahead)
    visit = product_0(x, panel, first, 0, buffer)
    visit = product_1(x, panel, visit, 1, buffer)
    visit = product_2(x, panel, visit, 2, buffer)
    visit = product_3(x, panel, visit, 3, buffer)
    store_0(buffer, RING)
    visit = product_0(x, panel, visit, 4, buffer)
    store_1(buffer, RING + TILE)
    return zero_tile(ONE_ROW, SIXTEEN), StreamPlace(0, ahead, unpacked, visit, first)


@always_inline
def take_turn(weight, x, panel, buffer, total, place):
    """Take four steps."""
    prefetch_factors(weight, panel, number_of(panel, place.prefetched))
    total, place = step_1(weight, x, panel, buffer, total, place)
    total, place = step_2(weight, x, panel, buffer, total, place)
    total, place = step_3(weight, x, panel, buffer, total, place)
    return step_0(weight, x, panel, buffer, total, place)
