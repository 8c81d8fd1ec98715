"""Codes of a line of bytes: two of four bits, each an index into a table of 16 bytes or a number, four, or eight."""

from llvmlite import ir
from numba import types

from tinychat import processor
from tinychat.kernels.dot import SIGNED
from tinychat.kernels.intrinsics import ANY, I8, I16, I32, INDEX, SAME, U8X64, constant, operation, u8x64
from tinychat.kernels.setup import ISA
from tinychat.kernels.sizes import HAS_VBMI


def shuffle_vbmi(builder, table, indices):
    """``vpermb``: of an index into 64 bytes, which repeat the table, the upper bits do not matter."""
    return builder.intrinsic("llvm.x86.avx512.permvar.qi.512", U8X64, table, indices)


def shuffle_512(builder, table, indices):
    """``vpshufb`` on 64 bytes, each of its quarters a table of its own."""
    return builder.intrinsic("llvm.x86.avx512.pshuf.b.512", U8X64, table, low_bits(builder, indices))


def shuffle_256(builder, table, indices):
    """``vpshufb`` on 32 bytes, twice."""
    return shuffle_parts(builder, table, indices, 32, "llvm.x86.avx2.pshuf.b")


def shuffle_neon(builder, table, indices):
    """``tbl`` on 16 bytes, four times."""
    return shuffle_parts(builder, table, indices, 16, "llvm.aarch64.neon.tbl1.v16i8")


def shuffle_generic(builder, table, indices):
    """Choose between the halves of the table bit by bit, for processors without a shuffle of bytes."""
    size = indices.type.count
    entries = [builder.splat(builder.extract_element(table, I32(entry)), size) for entry in range(16)]
    for bit in (1, 2, 4, 8):
        odd = builder.icmp_unsigned("!=", builder.and_(indices, constant(bit, I8, size)), constant(0, I8, size))
        entries = [builder.select(odd, second, first) for first, second in zip(entries[::2], entries[1::2])]
    return entries[0]


def shuffle_parts(builder, table, indices, size: int, name: str):
    """Shuffle `size` bytes at a time."""
    entries = builder.lanes(table, range(size))
    parts = builder.parts(low_bits(builder, indices), size)
    return builder.joined(*(builder.intrinsic(name, entries.type, entries, part) for part in parts))


def low_bits(builder, indices):
    """Return the low four bits of each byte."""
    return builder.and_(indices, constant(0x0F, I8, indices.type.count))


def moved(builder, line, bits: int):
    """Return each byte with its bits so many places lower, or higher; what comes from other bytes does not matter.

    In lanes of 16 bits: for a shift of bytes LLVM picks an instruction (vgf2p8affineqb) that competes with the dot
    products for their execution units. ARM's shift of bytes is as good.
    """
    if bits == 0:
        return line
    is_arm = processor.architecture() == processor.ARM
    element, count = (I8, line.type.count) if is_arm else (I16, line.type.count // 2)
    lanes, shift = builder.bitcast(line, ir.VectorType(element, count)), builder.lshr if bits > 0 else builder.shl
    return builder.bitcast(shift(lanes, constant(abs(bits), element, count)), line.type)


def default_shuffle():
    """Return the best way to look up bytes by their low four bits, whatever their upper ones."""
    if ISA == "avx512vnni":
        return shuffle_vbmi if HAS_VBMI else shuffle_512
    if processor.architecture() == processor.ARM:
        return shuffle_neon
    return shuffle_generic if ISA == "generic" else shuffle_256


shuffle = default_shuffle()


@operation(u8x64, ANY, INDEX)
def load_table(builder, tables, index):
    """Return the 16 int8 of a table from element `index` on as `dot` takes codes, once for each 16 bytes of a line."""
    entries = tables.load(index, ir.VectorType(I8, 16), align=1)
    if not SIGNED:
        entries = builder.xor(entries, constant(128, I8, 16))
    return builder.lanes(entries, [i % 16 for i in range(64)])


@operation(lambda table, line: line, u8x64, ANY)
def look_up_low(builder, table, line):
    """Return the table's entries for the low four bits of each byte."""
    return shuffle(builder, table, line)


@operation(lambda table, line: line, u8x64, ANY)
def look_up_high(builder, table, line):
    """Return the table's entries for the high four bits of each byte."""
    return shuffle(builder, table, moved(builder, line, 4))


def as_dot_takes(builder, line):
    """Emit each byte, a code plus 128, as `dot` takes codes."""
    return builder.xor(line, constant(128, I8, line.type.count)) if SIGNED else line


@operation(SAME, ANY)
def whole_codes(builder, line):
    """Return each byte, a code plus 128, as `dot` takes codes."""
    return as_dot_takes(builder, line)


@operation(SAME, ANY)
def low_codes(builder, line):
    """Return the low four bits of each byte."""
    return low_bits(builder, line)


@operation(SAME, ANY)
def high_codes(builder, line):
    """Return the high four bits of each byte."""
    return low_bits(builder, moved(builder, line, 4))


@operation(lambda line: types.UniTuple(line, 4), ANY)
def codes_of_two_bits(builder, line):
    """Return four lines of codes of two bits, each byte's lowest first."""
    return [builder.and_(moved(builder, line, 2 * q), constant(3, I8, line.type.count)) for q in range(4)]


@operation(lambda line: types.UniTuple(line, 8), ANY)
def codes_of_one_bit(builder, line):
    """Return eight lines of codes of one bit, each byte's lowest first, as 0 and 2: one less are -1 and 1."""
    return [builder.and_(moved(builder, line, q - 1), constant(2, I8, line.type.count)) for q in range(8)]
