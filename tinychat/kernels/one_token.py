"""Four-bit codes and one token, which most of a reply's time goes to: a loop whose prefetches stand between its loads.

LLVM moves prefetches together where it does not know the number of a group's lines, and four in a row cost a sixth of
the speed on a Xeon. None go into the first-level cache: those cost 2 % there, 2 to 5 % on Zen 5, where the linears of
16 tokens gain as much by them, and nothing on Zen 3.
"""

from tinychat.kernels.codes import load_table, look_up_high, look_up_low
from tinychat.kernels.dot import dot
from tinychat.kernels.jit import always_inline
from tinychat.kernels.memory import load_f32, load_line, prefetch_far
from tinychat.kernels.sizes import FAR_BYTES, LANES, LONG_STREAM, ONE_ROW, ONE_TOKEN, READS_AHEAD
from tinychat.kernels.sums import add_scaled, scale_rows, start_tile
from tinychat.kernels.tile import zero_tile


@always_inline
def dot_line(table, sums, packed, first, codes, index, far):
    """Add the products of one token and a line of codes of four bits; prefetch the line `far` bytes after it."""
    line = load_line(packed, first)
    prefetch_far(packed, first + far)
    sums = dot(sums, look_up_low(table, line), codes, index)
    return dot(sums, look_up_high(table, line), codes, index + 4)


@always_inline
def int4_of_token(weight, x, tile, block, lines):
    """Return the tile of a row block of four-bit codes and one token; a group has `lines` lines, a multiple of four."""
    table, groups = load_table(weight.table, 0), weight.scales.shape[1]
    # Of a line that has just been read a prefetch costs nothing.
    far = 0 if READS_AHEAD and weight.packed.size >= LONG_STREAM else FAR_BYTES
    total = zero_tile(ONE_ROW, ONE_TOKEN)
    for g in range(groups):
        position = tile * groups + g
        sums = start_tile(x.corrections, position, ONE_TOKEN)
        prefetch_far(weight.scales, (block * groups + g) * LANES + FAR_BYTES // 16)
        first, index = (block * groups + g) * lines * 64, position * lines * 8
        for j in range(0, lines, 4):
            sums = dot_line(table, sums, weight.packed, first + j * 64, x.codes, index + j * 8, FAR_BYTES)
            sums = dot_line(table, sums, weight.packed, first + j * 64 + 64, x.codes, index + j * 8 + 8, far)
            sums = dot_line(table, sums, weight.packed, first + j * 64 + 128, x.codes, index + j * 8 + 16, far)
            sums = dot_line(table, sums, weight.packed, first + j * 64 + 192, x.codes, index + j * 8 + 24, far)
        scales = load_f32(weight.scales, (block * groups + g) * LANES)
        total = add_scaled(total, sums, scales, x.scales, position)
    return scale_rows(total, load_f32(weight.row_scales, block * LANES))


@always_inline
def tile_of_token(weight, x, tile, block):
    """Return the tile of a row block and one token."""
    if weight.packed.shape[1] == 4 * weight.scales.shape[1]:
        return int4_of_token(weight, x, tile, block, 4)
    return int4_of_token(weight, x, tile, block, weight.packed.shape[1] // weight.scales.shape[1])
