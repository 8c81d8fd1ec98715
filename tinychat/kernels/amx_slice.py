"""The stream of products and floats of a slice of a linear's weights, on tile registers; see `amx_linear`.

Products run `AHEAD` groups ahead of floats, whatever tile of tokens comes next: a register of sums is stored when two
further products have begun, since a store waits for its product and holds up others, and is read two steps later. After
any tile instruction the processor makes half of its fma, so that the floats of a group of 16 x 16 sums take 32 cycles;
tile instructions and floats alternate, and hide behind each other.
"""

from typing import NamedTuple

from tinychat.kernels.amx import load_of, product_of, store_of, zero_of
from tinychat.kernels.amx_buffer import CODES, FACTORS, FACTORS_OF_GROUP, RING, SPARE, TILE
from tinychat.kernels.compile_queue import deferred
from tinychat.kernels.intrinsics import ANY, F32, F32X16, I32, I32X16, I64, INDEX, SAME, constant, f32x16, operation
from tinychat.kernels.jit import always_inline
from tinychat.kernels.memory import load_f32, prefetch_address
from tinychat.kernels.sizes import LANES, ONE_ROW
from tinychat.kernels.sums import ROUNDER_BITS
from tinychat.kernels.tile import add_outer, load_rows, load_tokens, store_tile, zero_tile
from tinychat.kernels.weights import FINE_BITS

SIXTEEN = (0,) * 16
AHEAD = 5


class Slice(NamedTuple):
    """The groups of a row block that are unpacked, and the activations that meet them."""

    count: int  # groups
    steps: int  # these times the tiles of tokens
    size: int  # bytes of the activations of a group, and of its weights
    width: int  # columns of a product: a group has one product or two
    codes: int  # byte of the codes of activations where those of the first tile begin
    stop: int  # and where those of one behind the last tile would
    tile_codes: int  # from a tile to the next
    scales: int  # the same of their scales
    last: int
    tile_scales: int
    has_offsets: bool
    ahead: int  # address of weights to prefetch
    lines: int  # of these, for each four steps
    is_first: bool  # totals begin at zero


class Place(NamedTuple):
    """The place of a step in the stream."""

    a: int  # byte of the activations of the next product
    group: int  # of that in the slice
    added: int  # group of the next floats
    scale: int  # of activations, the first of the next floats
    totals: int  # where the totals of their tile wait


@always_inline
def next_product(s, a, group):
    """Return byte and group of the product after one; the first follows the last."""
    if group + 1 < s.count:
        return a + s.size, group + 1
    a += s.tile_codes - (s.count - 1) * s.size
    return (a if a < s.stop else s.codes), 0


@always_inline
def totals_before(s, buffer, totals):
    """Return the totals of a tile as the slice before left them."""
    if s.is_first:
        return zero_tile(ONE_ROW, SIXTEEN)
    return load_tokens(buffer, totals, LANES, ONE_ROW, SIXTEEN)


@always_inline
def next_step(s, x, buffer, total, place):
    """Add the offsets of a group, if there are any; return what the next step adds to, and its place.

    Behind a tile's last group come the totals of the next.
    """
    if s.has_offsets:
        offsets = load_rows(buffer, FACTORS + place.added * FACTORS_OF_GROUP + 2 * LANES, 0, ONE_ROW)
        total = add_outer(total, offsets, x.sums, place.scale, 1)
    a, group = next_product(s, place.a, place.group)
    added, scale, totals = place.added + 1, place.scale + LANES, place.totals
    if added == s.count:
        added, scale = 0, scale + s.tile_scales - s.count * LANES
        store_tile(buffer, totals, total)
        # Steps come in fours: what is behind the last tile counts for nothing.
        totals, scale = (totals + TILE, scale) if scale != s.last else (SPARE, s.scales)
        total = totals_before(s, buffer, totals)
    return total, Place(a, group, added, scale, totals)


def added_floats(start):
    """Make the operation that adds the sums of a group, of four tokens from `start` on."""

    @operation(SAME, ANY, ANY, INDEX, f32x16, f32x16, ANY, INDEX)
    def add_floats(builder, total, buffer, sums, scales, offsets, x_scales, index):
        """Return ``total + round(sums * scale) * x_scale``, as `add_scaled` does."""
        result = list(total)
        for t in range(start, start + 4):
            n = buffer.load(builder.add(sums, I64(t * LANES)), I32X16, align=4)
            n = builder.bitcast(builder.add(n, constant(int(ROUNDER_BITS), I32)), F32X16)
            by_token = x_scales.splat(builder.add(index, I64(t)), F32)
            result[t] = builder.fused(builder.fused(n, scales, offsets), by_token, result[t])
        return result

    return add_floats


def added_fine_floats(start):
    """Make the operation for activations of two parts; the sums of the finer ones are a tile behind the others'."""

    @operation(SAME, ANY, ANY, INDEX, f32x16, ANY, INDEX)
    def add_fine_floats(builder, total, buffer, sums, scales, x_scales, index):
        """Return the same, rounded as `add_scaled_integers` does."""
        result = list(total)
        for t in range(start, start + 4):
            coarse, fine = (buffer.load(builder.add(sums, I64(at + t * LANES)), I32X16, align=4) for at in (0, TILE))
            n = builder.add(builder.shl(coarse, constant(FINE_BITS, I32)), fine)
            by_token = x_scales.splat(builder.add(index, I64(t)), F32)
            result[t] = builder.fused(builder.fmul(builder.sitofp(n, F32X16), scales), by_token, result[t])
        return result

    return add_fine_floats


floats_0, floats_4, floats_8, floats_12 = (added_floats(start) for start in (0, 4, 8, 12))
fine_floats_0, fine_floats_4, fine_floats_8, fine_floats_12 = (added_fine_floats(start) for start in (0, 4, 8, 12))


def product(c):
    """Make a function that multiplies a group into register `c` and returns the next."""
    load_x, load_w, zero, multiply = registers_of(c)

    @always_inline
    def function(s, x, buffer, a, group):
        b = 4 * CODES + group * s.size
        load_x(buffer, x.codes, a, s.width)
        load_w(buffer, buffer, b, 64)
        zero(buffer)
        multiply(buffer)
        if s.width * LANES < s.size:
            load_x(buffer, x.codes, a + s.width * LANES, s.width)
            load_w(buffer, buffer, b + s.width * LANES, 64)
            multiply(buffer)
        return next_product(s, a, group)

    return function


def registers_of(c):
    """Make the operations of a product into register `c`."""
    return load_of(4 + c % 2), load_of(6 + c % 2), zero_of(c), product_of(c, 4 + c % 2, 6 + c % 2)


def step(c):
    """Make a step: a product into register `c`, a store of an older one, and between them floats of a still older."""
    load_x, load_w, zero, multiply = registers_of(c)
    store, to, sums = store_of((c + 1) % 4), RING + (c + 1) % 4 * TILE, RING + (c + 3) % 4 * TILE

    @always_inline
    def function(s, x, buffer, total, place):
        a, b, scale = place.a, 4 * CODES + place.group * s.size, place.scale
        factors = FACTORS + place.added * FACTORS_OF_GROUP
        scales, offsets = load_f32(buffer, factors), load_f32(buffer, factors + LANES)
        load_x(buffer, x.codes, a, s.width)
        total = floats_0(total, buffer, sums, scales, offsets, x.scales, scale)
        load_w(buffer, buffer, b, 64)
        total = floats_4(total, buffer, sums, scales, offsets, x.scales, scale)
        zero(buffer)
        multiply(buffer)
        if s.width * LANES < s.size:
            load_x(buffer, x.codes, a + s.width * LANES, s.width)
            load_w(buffer, buffer, b + s.width * LANES, 64)
            multiply(buffer)
        total = floats_8(total, buffer, sums, scales, offsets, x.scales, scale)
        store(buffer, to)
        total = floats_12(total, buffer, sums, scales, offsets, x.scales, scale)
        return next_step(s, x, buffer, total, place)

    return function


def fine_product(c):
    """Make a function that multiplies a group of activations of two parts into registers `c` and ``c + 1``."""
    load_w, load_coarse, load_fine = load_of(6 + c // 2), load_of(4), load_of(5)
    zero, multiply = zero_of(c), product_of(c, 4, 6 + c // 2)
    zero_fine, multiply_fine = zero_of(c + 1), product_of(c + 1, 5, 6 + c // 2)

    @always_inline
    def function(s, x, buffer, a, group):
        load_coarse(buffer, x.codes, a, s.width)
        load_fine(buffer, x.fine, a, s.width)
        load_w(buffer, buffer, 4 * CODES + group * s.size, 64)
        zero(buffer)
        multiply(buffer)
        zero_fine(buffer)
        multiply_fine(buffer)
        return next_product(s, a, group)

    return function


def fine_step(c):
    """Make a step for activations of two parts; the registers of one step are stored in the next."""
    load_w, load_coarse, load_fine = load_of(6 + c // 2), load_of(4), load_of(5)
    zero, multiply, store = zero_of(c), product_of(c, 4, 6 + c // 2), store_of((c + 2) % 4)
    zero_fine, multiply_fine, store_fine = zero_of(c + 1), product_of(c + 1, 5, 6 + c // 2), store_of((c + 3) % 4)
    to, sums = RING + (c + 2) % 4 * TILE, RING + c * TILE

    @always_inline
    def function(s, x, buffer, total, place):
        a, scale = place.a, place.scale
        scales = load_f32(buffer, FACTORS + place.added * FACTORS_OF_GROUP)
        load_coarse(buffer, x.codes, a, s.width)
        load_w(buffer, buffer, 4 * CODES + place.group * s.size, 64)
        total = fine_floats_0(total, buffer, sums, scales, x.scales, scale)
        zero(buffer)
        multiply(buffer)
        load_fine(buffer, x.fine, a, s.width)
        total = fine_floats_4(total, buffer, sums, scales, x.scales, scale)
        store(buffer, to)
        total = fine_floats_8(total, buffer, sums, scales, x.scales, scale)
        zero_fine(buffer)
        multiply_fine(buffer)
        store_fine(buffer, to + TILE)
        total = fine_floats_12(total, buffer, sums, scales, x.scales, scale)
        return next_step(s, x, buffer, total, place)

    return function


store_0, store_1 = store_of(0), store_of(1)
product_0, product_1, product_2, product_3 = (product(c) for c in range(4))
step_0, step_1, step_2, step_3 = (step(c) for c in range(4))
fine_product_0, fine_product_2, fine_step_0, fine_step_2 = fine_product(0), fine_product(2), fine_step(0), fine_step(2)


@always_inline
def prefetch_lines(s, turn):
    """Prefetch as many lines as each turn of the stream does, so that memory is never asked for many at once."""
    for line in range(turn * s.lines, (turn + 1) * s.lines):
        prefetch_address(s.ahead + 64 * line)


@deferred
def add_slice(s, x, buffer, totals):
    """Add a slice to the totals of its tiles of tokens, from float `totals` of the buffer on."""
    a, group = product_0(s, x, buffer, s.codes, 0)
    a, group = product_1(s, x, buffer, a, group)
    a, group = product_2(s, x, buffer, a, group)
    a, group = product_3(s, x, buffer, a, group)
    store_0(buffer, RING)
    a, group = product_0(s, x, buffer, a, group)
    store_1(buffer, RING + TILE)
    total, place = totals_before(s, buffer, totals), Place(a, group, 0, s.scales, totals)
    for turn in range((s.steps + 3) // 4):
        prefetch_lines(s, turn)
        total, place = step_1(s, x, buffer, total, place)
        total, place = step_2(s, x, buffer, total, place)
        total, place = step_3(s, x, buffer, total, place)
        total, place = step_0(s, x, buffer, total, place)


@deferred
def add_fine_slice(s, x, buffer, totals):
    """Add a slice that meets activations of two parts."""
    a, group = fine_product_0(s, x, buffer, s.codes, 0)
    a, group = fine_product_2(s, x, buffer, a, group)
    store_0(buffer, RING)
    store_1(buffer, RING + TILE)
    total, place = totals_before(s, buffer, totals), Place(a, group, 0, s.scales, totals)
    for turn in range((s.steps + 3) // 4):
        prefetch_lines(s, turn)
        total, place = fine_step_0(s, x, buffer, total, place)
        total, place = fine_step_2(s, x, buffer, total, place)
        total, place = fine_step_0(s, x, buffer, total, place)
        total, place = fine_step_2(s, x, buffer, total, place)
