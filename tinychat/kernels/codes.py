"""Four-bit codes: two to a byte of a line, each standing for one of 16 bytes in a table, or for itself."""

import platform

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tinychat.kernels.memory import element_pointer
from tinychat.kernels.setup import ISA
from tinychat.kernels.simd import I8, I16, I32, U8X64, call, constant, u8x64
from tinychat.kernels.tile import unpack


def shuffle_vbmi(builder, table, indices):
    """``vpermb``: of an index into 64 bytes, which repeat the table, the upper bits do not matter."""
    return call(builder, "llvm.x86.avx512.permvar.qi.512", U8X64, table, indices)


def shuffle_512(builder, table, indices):
    """``vpshufb`` on 64 bytes, each of its quarters a table of its own."""
    return call(builder, "llvm.x86.avx512.pshuf.b.512", U8X64, table, low_bits(builder, indices))


def shuffle_256(builder, table, indices):
    """``vpshufb`` on 32 bytes, twice."""
    return shuffle_parts(builder, table, indices, 32, "llvm.x86.avx2.pshuf.b")


def shuffle_neon(builder, table, indices):
    """``tbl`` on 16 bytes, four times."""
    return shuffle_parts(builder, table, indices, 16, "llvm.aarch64.neon.tbl1.v16i8")


def shuffle_generic(builder, table, indices):
    """Choose between the halves of the table bit by bit, for processors without a shuffle of bytes."""
    entries = [
        builder.shuffle_vector(table, table, ir.Constant(ir.VectorType(I32, 64), [entry] * 64)) for entry in range(16)
    ]
    for bit in (1, 2, 4, 8):
        odd = builder.icmp_unsigned("!=", builder.and_(indices, constant(bit, I8, 64)), constant(0, I8, 64))
        entries = [builder.select(odd, second, first) for first, second in zip(entries[::2], entries[1::2])]
    return entries[0]


def shuffle_parts(builder, table, indices, size: int, name: str):
    """Shuffle `size` bytes at a time."""
    parts, indices = [], low_bits(builder, indices)
    for start in range(0, 64, size):
        lanes = ir.Constant(ir.VectorType(I32, size), list(range(start, start + size)))
        entries, index = (builder.shuffle_vector(v, v, lanes) for v in (table, indices))
        parts.append(call(builder, name, entries.type, entries, index))
    while len(parts) > 1:
        joined = ir.Constant(ir.VectorType(I32, 2 * parts[0].type.count), list(range(2 * parts[0].type.count)))
        parts = [builder.shuffle_vector(a, b, joined) for a, b in zip(parts[::2], parts[1::2])]
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


@intrinsic
def load_table(typingctx, table):
    """Return the 16 int8 of a code table, raised by 128, once for each 16 bytes of a line."""

    def codegen(context, builder, signature, arguments):
        zero = context.get_constant(types.intp, 0)
        pointer = element_pointer(context, builder, signature.args[0], arguments[0], zero, ir.VectorType(I8, 16))
        raised = builder.xor(builder.load(pointer, align=1), constant(128, I8, 16))
        repeated = ir.Constant(ir.VectorType(I32, 64), [i % 16 for i in range(64)])
        return builder.shuffle_vector(raised, raised, repeated)

    return u8x64(table), codegen


@intrinsic
def look_up_low(typingctx, table, lines):
    """Return what the low four bits of each byte stand for."""

    def codegen(context, builder, signature, arguments):
        entries, codes = arguments
        found = [shuffle(builder, entries, line) for line in unpack(builder, lines, codes)]
        return cgutils.pack_array(builder, found)

    return lines(u8x64, lines), codegen


@intrinsic
def look_up_high(typingctx, table, lines):
    """Return what the high four bits of each byte stand for."""

    def codegen(context, builder, signature, arguments):
        entries, codes = arguments
        found = [shuffle(builder, entries, shifted(builder, line)) for line in unpack(builder, lines, codes)]
        return cgutils.pack_array(builder, found)

    return lines(u8x64, lines), codegen


@intrinsic
def low_codes(typingctx, lines):
    """Return the low four bits of each byte."""

    def codegen(context, builder, signature, arguments):
        found = [low_bits(builder, line) for line in unpack(builder, lines, arguments[0])]
        return cgutils.pack_array(builder, found)

    return lines(lines), codegen


@intrinsic
def high_codes(typingctx, lines):
    """Return the high four bits of each byte."""

    def codegen(context, builder, signature, arguments):
        found = [low_bits(builder, shifted(builder, line)) for line in unpack(builder, lines, arguments[0])]
        return cgutils.pack_array(builder, found)

    return lines(lines), codegen
