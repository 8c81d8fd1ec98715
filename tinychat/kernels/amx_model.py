"""A model of the tile instructions, for processors without them: the same registers, in a thread's buffer.

Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: LDTILECFG, TILELOADD, TILESTORED, TILEZERO,
TDPBSSD. Only tests run it, so that indices and order of the linears on tile registers are checked on any processor.
"""

from llvmlite import ir
from numba.core import cgutils

from tinychat.kernels.amx_buffer import REGISTERS, TILE
from tinychat.kernels.intrinsics import I8, I16, I32, I32X16, I64, U8X64

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


def multiply(builder, buffer, sums, left, right):
    """Emit ``tdpbssd``: to each sum of a row and a lane the products of four signed bytes at a time."""
    rows, _ = shape_of(builder, buffer, left)
    quads, _ = shape_of(builder, buffer, right)
    with cgutils.for_range(builder, rows) as row, cgutils.for_range(builder, quads) as quad:
        start = builder.mul(row.index, I64(ROW_BYTES))
        at = byte_of(builder, buffer, builder.add(start, I64(sums * TILE_BYTES)))
        place = builder.bitcast(at, I32X16.as_pointer())
        four = builder.add(builder.add(start, I64(left * TILE_BYTES)), builder.mul(quad.index, I64(4)))
        x = builder.load(builder.bitcast(byte_of(builder, buffer, four), I32.as_pointer()), align=1)
        line = builder.add(builder.mul(quad.index, I64(ROW_BYTES)), I64(right * TILE_BYTES))
        w = builder.load(builder.bitcast(byte_of(builder, buffer, line), U8X64.as_pointer()), align=1)
        products = builder.mul(builder.sext(w, I16X64), builder.sext(builder.bitcast(builder.splat(x), U8X64), I16X64))
        total = builder.load(place, align=1)
        for i in range(4):
            total = builder.add(total, builder.sext(builder.lanes(products, range(i, 64, 4)), I32X16))
        builder.store(total, place, align=1)
