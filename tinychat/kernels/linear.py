"""Linear layers: ``out[t] = W @ x[t] + bias``, or ``out[t] += ...``.

For a quantized weight, per output row (a lane) and group g of columns:

    sums   = dot(values, x)                          integers, exact: values of codes (`kernels.weights`)
    total += round(sums * scale[g]) * x_scale[g]     groups ascending
    out    = total * row_scale

and for an affine one:

    total += round(sums * scale[g]) * x_scale[g]
    total += offset[g] * x_sum[g]

The same instructions in the same order for one token and for many, so the bits are the same. One token reads
N*K/2 + N*K/group_size bytes (int4) and is bound by memory. Many tokens are bound by the dot products.
Reference: ``tests/reference.py``.
"""

import numpy as np

from tinychat.kernels.amx_buffer import HAS_TILE_REGISTERS, MOST_TILES, MOST_TOTALS
from tinychat.kernels.amx_linear import multiply_panel
from tinychat.kernels.codes import high_codes, low_codes
from tinychat.kernels.column_sums import BLOCKS, ColumnSums, column_sums, sum_blocks
from tinychat.kernels.compile_queue import deferred, deferred_by_type
from tinychat.kernels.dot import dot_small
from tinychat.kernels.group_dots import dot_group, prefetch_next
from tinychat.kernels.jit import always_inline, always_inline_by_type, inline, is_kind
from tinychat.kernels.memory import load_f32, load_line, store_f32
from tinychat.kernels.one_token import tile_of_token
from tinychat.kernels.ranges import end_ranges, take
from tinychat.kernels.sizes import (
    FEW_TOKENS,
    LANES,
    ONE_ROW,
    ONE_TOKEN,
    SEVERAL_TOKENS,
    SOME_TOKENS,
    TILE_LENGTHS,
    TOKENS,
    UNPACKING,
)
from tinychat.kernels.sums import (
    ROUNDER_BITS,
    add_offsets,
    add_scaled,
    add_scaled_integers,
    add_shifted,
    add_starts,
    scale_rows,
    shift_tile,
    start_all,
    start_tile,
    tokens_apart,
)
from tinychat.kernels.team import barrier, stage
from tinychat.kernels.team_queue import THREADS
from tinychat.kernels.tile import add_outer, load_rows, store_tile, zero_tile
from tinychat.kernels.weight_access import columns, input_group, out_blocks, rows_of
from tinychat.kernels.weights import (
    AFFINE_KINDS,
    FINE_BITS,
    FINE_KINDS,
    ROW_KINDS,
    STORE,
    Affine4Weight,
    Float32Weight,
    Int4Weight,
    MixedWeight,
    SplitWeight,
    Table4Weight,
)

# Weights that stay in the second-level cache while all tokens of a chunk pass by.
PANEL_BYTES = 256 * 1024
TILES_PER_THREAD = 2
# Weights that a thread takes at once of its range for each token of a tile, if these are few: an exchange of a range
# waits until all that was stored before is seen, and of more tokens more is stored.
UNIT_BYTES = 16 * 1024
# Not literals, for each of which the kernel would be compiled once more.
FIRST = np.int64(0)
ZERO_SUM = np.int32(0)


@always_inline
def tokens_per_tile(T):
    """Return the number of tokens in a tile of the activations of `T` tokens: of the tiles that take least time.

    Padded to these, tokens take no more room than in the largest tiles, for which scratch is allocated. One tile on
    tile registers lasts longer than two of vectors for `SEVERAL_TOKENS`, and less than anything else for more.
    """
    if T == 1:
        return 1
    if HAS_TILE_REGISTERS and T > 2 * len(SEVERAL_TOKENS):
        return len(TOKENS)
    found, least = 0, 0
    for tokens in TILE_LENGTHS:
        taken = (T + tokens - 1) // tokens * (tokens + UNPACKING)
        if found == 0 or taken <= least:
            found, least = tokens, taken
    return found


@always_inline_by_type
def add_group(weight, rows, total, scales, first, lines, x, position, index, tokens):
    """Add the products of one group of an affine weight to the tile `total`.

    rows, first, lines : as in `dot_group`; position, index : of the group's scales and codes in `x`.
    """
    is_four = is_kind(weight, Affine4Weight)

    def plain(weight, rows, total, scales, first, lines, x, position, index, tokens):
        if is_four and weight.offsets.shape[1] > 0:
            # Beside rows of eight bits, corrections are for the zero of those.
            sums = start_all(ROUNDER_BITS, tokens)
        else:
            sums = start_tile(x.corrections, position, tokens)
        sums = dot_group(rows, sums, first, lines, x.codes, index, tokens)
        return add_scaled(total, sums, scales, x.scales, position)

    def fine(weight, rows, total, scales, first, lines, x, position, index, tokens):
        sums = dot_group(rows, start_all(ZERO_SUM, tokens), first, lines, x.codes, index, tokens)
        sums = shift_tile(sums, FINE_BITS)
        if not (is_four and weight.offsets.shape[1] > 0):
            sums = add_starts(sums, x.corrections, position)
        sums = dot_group(rows, sums, first, lines, x.fine, index, tokens)
        return add_scaled_integers(total, sums, scales, x.scales, position)

    def fine_token(weight, rows, total, scales, first, lines, x, position, index, tokens):
        # Integers, so in any order: the codes are loaded and taken apart once for both halves of the activations.
        coarse = sums = start_all(ZERO_SUM, tokens)
        for j in range(lines):
            line, at = load_line(weight.packed, first + j * 64), index + j * 8
            prefetch_next(weight.packed, first + j * 64)
            low, high = low_codes(line), high_codes(line)
            coarse = dot_small(dot_small(coarse, low, x.codes, at), high, x.codes, at + 4)
            sums = dot_small(dot_small(sums, low, x.fine, at), high, x.fine, at + 4)
        sums = add_shifted(sums, coarse, FINE_BITS)
        if weight.offsets.shape[1] == 0:
            sums = add_starts(sums, x.corrections, position)
        return add_scaled_integers(total, sums, scales, x.scales, position)

    if is_kind(x, *FINE_KINDS):
        return fine_token if is_four and len(tokens) == 1 else fine
    return plain


@always_inline_by_type
def affine_tile(weight, size, x, tile, block, tokens):
    """Return the tile of an affine weight whose input has groups of `size` columns, as `linear_tile`."""
    if is_kind(weight, Table4Weight):
        return lambda weight, size, x, tile, block, tokens: sum_groups(
            weight, rows_of(weight, block), size, x, tile, block, tokens
        )
    # Not by `rows_of`: a copy of the weight costs one token 1.5 % on Zen 4.
    return lambda weight, size, x, tile, block, tokens: sum_groups(weight, weight, size, x, tile, block, tokens)


@always_inline
def sum_groups(weight, rows, size, x, tile, block, tokens):
    """Return the sums of all groups of an affine weight; the groups of the input are no larger, spans whole ones.

    rows : as in `dot_group`.
    """
    T, row_lines = len(tokens), weight.packed.shape[1]
    groups, spans = weight.scales.shape[1], weight.factors.shape[1]
    parts, has_offsets = columns(weight) // size, weight.offsets.shape[1] > 0
    per_group, per_span = parts // groups, groups // spans
    lines = row_lines // parts
    total = zero_tile(ONE_ROW, tokens)
    for span in range(spans):
        factor = (block * spans + span) * 2 * LANES
        scale_factors = load_f32(weight.factors, factor)
        offset_factors = load_f32(weight.factors, factor + LANES)
        for group in range(span * per_span, (span + 1) * per_span):
            start = (block * groups + group) * LANES
            scales = load_f32(weight.scales, start) * scale_factors
            for g in range(group * per_group, (group + 1) * per_group):
                position = (tile * parts + g) * T
                first = (block * row_lines + g * lines) * 64
                total = add_group(weight, rows, total, scales, first, lines, x, position, position * size, tokens)
                if has_offsets:
                    offsets = load_f32(weight.offsets, start) * offset_factors
                    total = add_offsets(total, offsets, x.sums, position)
    return tokens_apart(total)


@always_inline_by_type
def linear_tile(weight, x, tile, block, tokens):
    """Return the tile of a row block and a tile of tokens."""

    def quantized(weight, x, tile, block, tokens):
        T, groups, row_lines = len(tokens), weight.scales.shape[1], weight.packed.shape[1]
        lines, group_bytes, rows = row_lines // groups, columns(weight) // groups * T, rows_of(weight, block)
        total = zero_tile(ONE_ROW, tokens)
        for g in range(groups):
            position = tile * groups + g
            sums = start_tile(x.corrections, position * T, tokens)
            first = (block * row_lines + g * lines) * 64
            sums = dot_group(rows, sums, first, lines, x.codes, position * group_bytes, tokens)
            scales = load_f32(weight.scales, (block * groups + g) * LANES)
            total = add_scaled(total, sums, scales, x.scales, position * T)
        return tokens_apart(scale_rows(total, load_f32(weight.row_scales, block * LANES)))

    def float32(weight, x, tile, block, tokens):
        T, K = len(tokens), columns(weight)
        total = zero_tile(ONE_ROW, tokens)
        for k in range(K):
            column = load_rows(weight.values, (block * K + k) * LANES, 0, ONE_ROW)
            total = add_outer(total, column, x.values, (tile * K + k) * T, 1)
        return total

    def affine(weight, x, tile, block, tokens):
        return affine_tile(weight, input_group(weight), x, tile, block, tokens)

    def mixed(weight, x, tile, block, tokens):
        index, size = weight.indices[block], input_group(weight)
        if index >= 0:
            return affine_tile(weight.four, size, x, tile, index, tokens)
        return affine_tile(weight.eight, size, x, tile, -1 - index, tokens)

    if is_kind(weight, Int4Weight) and len(tokens) == 1:
        return lambda weight, x, tile, block, tokens: tile_of_token(weight, x, tile, block)
    if is_kind(weight, MixedWeight):
        return mixed
    if is_kind(weight, *AFFINE_KINDS):
        return affine
    return float32 if is_kind(weight, Float32Weight) else quantized


@always_inline
def write_tile(buffer, start, bias, out, offset, block, tile, T, add, tokens):
    """Add bias and, where `add`, `out` to the tile at ``buffer[start]``, and store the tokens that exist."""
    n = block * LANES
    for t in range(min(len(tokens), T - tile * len(tokens))):
        value = load_f32(buffer, start + t * LANES)
        index = (tile * len(tokens) + t) * out.shape[1] + offset + n
        if bias.shape[0] > 0:
            value = value + load_f32(bias, n)
        if add:
            value = value + load_f32(out, index)
        store_f32(out, index, value)


@inline
def linear_rows(weight, x, start, T, out, offset, buffer, add, first, last, tokens):
    """Compute row blocks ``first..last`` for tokens ``start..T``, the first of which begins a tile."""
    for tile in range(start // len(tokens), (T + len(tokens) - 1) // len(tokens)):
        for block in range(first, last):
            store_tile(buffer, 0, linear_tile(weight, x, tile, block, tokens))
            write_tile(buffer, FIRST, weight.bias, out, offset, block, tile, T, add, tokens)


@inline
def linear_tiles(weight, x, start, T, tile, out, offset, buffer, add, first, last):
    """Compute row blocks ``first..last`` for tokens ``start..T``, in tiles of `tile`."""
    if tile == 1:
        linear_rows(weight, x, start, T, out, offset, buffer, add, first, last, ONE_TOKEN)
    elif tile == len(FEW_TOKENS) < len(TOKENS):
        linear_rows(weight, x, start, T, out, offset, buffer, add, first, last, FEW_TOKENS)
    elif tile == len(SEVERAL_TOKENS) < len(TOKENS):
        linear_rows(weight, x, start, T, out, offset, buffer, add, first, last, SEVERAL_TOKENS)
    elif tile == len(SOME_TOKENS) < len(TOKENS):
        linear_rows(weight, x, start, T, out, offset, buffer, add, first, last, SOME_TOKENS)
    elif HAS_TILE_REGISTERS:
        full_tiles(weight, x, start, T, out, offset, buffer, add, first, last)
    else:
        linear_rows(weight, x, start, T, out, offset, buffer, add, first, last, TOKENS)


@always_inline_by_type
def full_tiles(weight, x, start, T, out, offset, buffer, add, first, last):
    """Compute row blocks ``first..last`` for tokens ``start..T``, in the largest tiles."""

    def vectors(weight, x, start, T, out, offset, buffer, add, first, last):
        linear_rows(weight, x, start, T, out, offset, buffer, add, first, last, TOKENS)

    def tile_registers(weight, x, start, T, out, offset, buffer, add, first, last):
        multiply_panel(weight, x, start, T, out, offset, buffer, add, first, last)

    return tile_registers if is_kind(x, *ROW_KINDS) else vectors


@always_inline_by_type
def linear_unit(weight, x, token, T, tile, out, offset, buffer, add, first, last):
    """Compute row blocks ``first..last`` for `T` tokens; token : of `column_sums`."""

    def tiles(weight, x, token, T, tile, out, offset, buffer, add, first, last):
        linear_tiles(weight, x, FIRST, T, tile, out, offset, buffer, add, first, last)

    def looked_up(weight, x, token, T, tile, out, offset, buffer, add, first, last):
        if T > 1:
            linear_tiles(weight, x, FIRST, T, tile, out, offset, buffer, add, first, last)
            return
        sum_blocks(weight, token, first, last)
        for block in range(first, last):
            index = (block - first) * LANES
            write_tile(buffer, index, weight.bias, out, offset, block, FIRST, T, add, ONE_TOKEN)

    return looked_up if is_kind(token, ColumnSums) else tiles


@always_inline
def work_tile_rows(weight, tile, blocks, threads):
    """Return the row blocks of a work tile: some work tiles for each thread, none larger than the cache.

    tile : tokens of a tile. On tile registers activations pass by the fewer times the more row blocks there are.
    """
    panel = max(1, PANEL_BYTES // (columns(weight) * 8))
    if HAS_TILE_REGISTERS and tile == len(TOKENS):
        panel = max(panel, MOST_TOTALS // MOST_TILES)
    return min(panel, max(1, blocks // (threads * TILES_PER_THREAD)))


@always_inline
def rows_by_size(weight, tile, blocks, threads):
    """Return the row blocks that a thread takes at once; of a few tokens so few that all threads end together."""
    if tile < len(TOKENS):
        return max(1, tile * UNIT_BYTES // (columns(weight) * 8))
    return work_tile_rows(weight, tile, blocks, threads)


@always_inline_by_type
def unit_rows(weight, token, tile, blocks, threads):
    """Return the row blocks that a thread takes at once; token : of `column_sums`."""

    def looked_up(weight, token, tile, blocks, threads):
        return BLOCKS if tile == 1 else rows_by_size(weight, tile, blocks, threads)

    if is_kind(token, ColumnSums):
        return looked_up
    return lambda weight, token, tile, blocks, threads: rows_by_size(weight, tile, blocks, threads)


@deferred
def multiply_rows(team, T, weight, x, out, offset, buffers, add):
    """Compute this thread's row blocks of `linear`.

    offset : a multiple of 16, the column of `out` at which the output begins.
    """
    blocks, tile = out_blocks(weight), tokens_per_tile(T)
    queue, thread, buffer = team.queue, team.thread, buffers[team.thread]
    token = column_sums(weight, x, T, buffer)
    unit = unit_rows(weight, token, tile, blocks, queue[THREADS])
    first, last = take(queue, thread, blocks, unit)
    while first < last:
        linear_unit(weight, x, token, T, tile, out, offset, buffer, add, first, last)
        first, last = take(queue, thread, blocks, unit)
    end_ranges(team)


@stage
@inline
def linear(team, T, weight, s, out, add):
    """Apply a weight to T tokens.

    s : scratch, with `x`, activations of the tokens, and `tiles`, float32 [threads, TILE_FLOATS]; out : float32
    [>= T, >= N], rows of a stride that is a multiple of 16; add : STORE, or ADD to `out`.
    """
    multiply_rows(team, T, weight, s.x, out, FIRST, s.tiles, add)


@stage
@inline
def head(team, T, weight, s, out):
    """Apply a weight that may be a `SplitWeight` to T tokens."""
    multiply_parts(team, T, weight, s.x, out, s.tiles)


@deferred_by_type
def multiply_parts(team, T, weight, x, out, buffers):
    """Apply a weight of any kind; row blocks of a second part follow when all of the first are done."""

    def split(team, T, weight, x, out, buffers):
        multiply_rows(team, T, weight.frequent, x, out, FIRST, buffers, STORE)
        barrier(team.queue, team.thread)
        multiply_rows(team, T, weight.rest, x, out, weight.frequent.packed.shape[0] * LANES, buffers, STORE)

    def whole(team, T, weight, x, out, buffers):
        multiply_rows(team, T, weight, x, out, FIRST, buffers, STORE)

    return split if is_kind(weight, SplitWeight) else whole
