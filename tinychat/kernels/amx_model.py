"""A model of the tile instructions, for processors without them: the same registers, in a thread's buffer.

Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: LDTILECFG, TILELOADD, TILESTORED, TILEZERO,
TDPBSSD, TDPBF16PS. Only tests run it, so that indices and order of what is computed on tile registers are checked on
any processor.
"""

from llvmlite import ir
from numba.core import cgutils

from tinychat.kernels.amx_buffer import REGISTERS, TILE
from tinychat.kernels.bfloat16 import even_elements, odd_elements
from tinychat.kernels.intrinsics import F32X16, I8, I16, I32, I32X16, I64, U8X64, constant

ROWS, ROW_BYTES = 16, 64
TILE_BYTES = 4 * TILE
I16X64 = ir.VectorType(I16, 64)


def byte_of(builder, buffer, index):
    """Emit the address of a byte of the registers; behind all eight stands their configuration."""
    start = buffer.pointer(I64(REGISTERS), I8)
    return builder.gep(start, [index if isinstance(index, ir.Value) else I64(index)])


def shape_of(builder, buffer, tile):
    """Emit the number of rows of a register, and of bytes of a row."""
    rows = builder.load(byte_of(builder, buffer, 8 * TILE_BYTES + 48 + tile))
    width = builder.load(byte_of(builder, buffer, 8 * TILE_BYTES + 16 + 2 * tile))
    return builder.zext(rows, I64), builder.zext(width, I64)


def configure(builder, buffer, table):
    """Emit ``ldtilecfg``; the registers are cleared."""
    kind = U8X64.as_pointer()
    shapes = builder.load(builder.bitcast(table, kind), align=1)
    builder.store(shapes, builder.bitcast(byte_of(builder, buffer, 8 * TILE_BYTES), kind), align=1)
    for tile in range(8):
        zero(builder, buffer, tile)


def release(builder, buffer):
    """Emit ``tilerelease``: without a shape no register is of use."""
    none = ir.Constant(U8X64, [0] * 64)
    builder.store(none, builder.bitcast(byte_of(builder, buffer, 8 * TILE_BYTES), U8X64.as_pointer()), align=1)


def zero(builder, buffer, tile):
    """Emit ``tilezero``."""
    none = ir.Constant(U8X64, [0] * 64)
    for row in range(ROWS):
        place = byte_of(builder, buffer, tile * TILE_BYTES + row * ROW_BYTES)
        builder.store(none, builder.bitcast(place, U8X64.as_pointer()), align=1)


def copy_rows(builder, shape, target, target_stride, source, source_stride):
    """Emit a copy of the rows of a register."""
    rows, width = shape
    with cgutils.for_range(builder, rows) as row, cgutils.for_range(builder, width) as byte:
        to = builder.add(builder.mul(row.index, target_stride), byte.index)
        place = builder.add(builder.mul(row.index, source_stride), byte.index)
        builder.store(builder.load(builder.gep(source, [place])), builder.gep(target, [to]))


def load(builder, buffer, tile, source, stride):
    """Emit ``tileloadd``: what is beyond the register's shape is 0."""
    zero(builder, buffer, tile)
    target = byte_of(builder, buffer, tile * TILE_BYTES)
    copy_rows(builder, shape_of(builder, buffer, tile), target, I64(ROW_BYTES), source, stride)


def store(builder, buffer, tile, target, stride):
    """Emit ``tilestored``."""
    source = byte_of(builder, buffer, tile * TILE_BYTES)
    copy_rows(builder, shape_of(builder, buffer, tile), target, stride, source, I64(ROW_BYTES))


def place_of(builder, buffer, tile, row, kind):
    """Emit the address of a row of a register."""
    byte = builder.add(builder.mul(row, I64(ROW_BYTES)), I64(tile * TILE_BYTES))
    return builder.bitcast(byte_of(builder, buffer, byte), kind.as_pointer())


def factors_of(builder, buffer, left, right, row, step):
    """Emit the 32-bit number of a row of `left`, and the line of `right`, that meet in a step, as lines of bytes."""
    numbers = place_of(builder, buffer, left, row, I32)
    x = builder.load(builder.gep(numbers, [step]), align=1)
    w = builder.load(place_of(builder, buffer, right, step, U8X64), align=1)
    return builder.bitcast(builder.splat(x), U8X64), w


def multiply(builder, buffer, sums, left, right):
    """Emit ``tdpbssd``: to each sum of a row and a lane the products of four signed bytes at a time."""
    rows, _ = shape_of(builder, buffer, left)
    quads, _ = shape_of(builder, buffer, right)
    with cgutils.for_range(builder, rows) as row, cgutils.for_range(builder, quads) as quad:
        place = place_of(builder, buffer, sums, row.index, I32X16)
        x, w = factors_of(builder, buffer, left, right, row.index, quad.index)
        products = builder.mul(builder.sext(w, I16X64), builder.sext(x, I16X64))
        total = builder.load(place, align=1)
        for i in range(4):
            total = builder.add(total, builder.sext(builder.lanes(products, range(i, 64, 4)), I32X16))
        builder.store(total, place, align=1)


def multiply_pairs(builder, buffer, sums, left, right):
    """Emit ``tdpbf16ps``: to each sum the sum of two chains, of the products of even elements and of odd ones."""
    rows, _ = shape_of(builder, buffer, left)
    pairs, _ = shape_of(builder, buffer, right)
    chains = [cgutils.alloca_once(builder, F32X16) for _ in range(2)]
    with cgutils.for_range(builder, rows) as row:
        for chain in chains:
            builder.store(constant(0.0), chain)
        with cgutils.for_range(builder, pairs) as pair:
            both = factors_of(builder, buffer, left, right, row.index, pair.index)
            x, w = (builder.bitcast(each, I32X16) for each in both)
            for chain, elements in zip(chains, (even_elements, odd_elements)):
                product = builder.fused(elements(builder, x), elements(builder, w), builder.load(chain))
                builder.store(product, chain)
        place = place_of(builder, buffer, sums, row.index, F32X16)
        total = builder.fadd(*map(builder.load, chains))
        builder.store(builder.fadd(builder.load(place, align=1), total), place, align=1)
