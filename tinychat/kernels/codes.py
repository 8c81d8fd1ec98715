"""Four-bit codes: two to a byte of a line, each an index into a table of 16 bytes, or a number itself."""

import platform

import llvmlite.binding as llvm
from llvmlite import ir

from tinychat.kernels.intrinsics import ANY, I8, I16, I32, I64, SAME, U8X64, constant, operation, u8x64
from tinychat.kernels.setup import ISA


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
    entries = [builder.splat(builder.extract_element(table, I32(entry)), 64) for entry in range(16)]
    for bit in (1, 2, 4, 8):
        odd = builder.icmp_unsigned("!=", builder.and_(indices, constant(bit, I8, 64)), constant(0, I8, 64))
        entries = [builder.select(odd, second, first) for first, second in zip(entries[::2], entries[1::2])]
    return entries[0]


def shuffle_parts(builder, table, indices, size: int, name: str):
    """Shuffle `size` bytes at a time."""
    parts, indices = [], low_bits(builder, indices)
    for start in range(0, 64, size):
        entries, index = (builder.lanes(v, range(start, start + size)) for v in (table, indices))
        parts.append(builder.intrinsic(name, entries.type, entries, index))
    while len(parts) > 1:
        parts = [builder.joined(*pair) for pair in zip(parts[::2], parts[1::2])]
    return parts[0]


def low_bits(builder, indices):
    """Return the low four bits of each byte."""
    return builder.and_(indices, constant(0x0F, I8, 64))


def shifted(builder, line):
    """Return each byte's high four bits where its low ones are; what is above them does not matter.

    In lanes of 16 bits: for a shift of bytes LLVM picks an instruction (vgf2p8affineqb) that competes with the dot
    products for their execution units.
    """
    words = builder.bitcast(line, ir.VectorType(I16, 32))
    return builder.bitcast(builder.lshr(words, constant(4, I16, 32)), U8X64)


def default_shuffle():
    """Return the best way to look up bytes by their low four bits, whatever their upper ones."""
    if ISA == "avx512vnni":
        return shuffle_vbmi if llvm.get_host_cpu_features().get("avx512vbmi") else shuffle_512
    if ISA == "generic":
        return shuffle_neon if platform.machine() in ("arm64", "aarch64") else shuffle_generic
    return shuffle_256


shuffle = default_shuffle()


@operation(u8x64, ANY)
def load_table(builder, table):
    """Return the 16 int8 of a code table, raised by 128, once for each 16 bytes of a line."""
    raised = builder.xor(table.load(I64(0), ir.VectorType(I8, 16), align=1), constant(128, I8, 16))
    repeated = ir.Constant(ir.VectorType(I32, 64), [i % 16 for i in range(64)])
    return builder.shuffle_vector(raised, raised, repeated)


@operation(lambda table, lines: lines, u8x64, ANY)
def look_up_low(builder, table, lines):
    """Return the table's entries for the low four bits of each byte."""
    return [shuffle(builder, table, line) for line in lines]


@operation(lambda table, lines: lines, u8x64, ANY)
def look_up_high(builder, table, lines):
    """Return the table's entries for the high four bits of each byte."""
    return [shuffle(builder, table, shifted(builder, line)) for line in lines]


@operation(SAME, ANY)
def low_codes(builder, lines):
    """Return the low four bits of each byte."""
    return [low_bits(builder, line) for line in lines]


@operation(SAME, ANY)
def high_codes(builder, lines):
    """Return the high four bits of each byte."""
    return [low_bits(builder, shifted(builder, line)) for line in lines]
