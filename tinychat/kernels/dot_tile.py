"""Register tiles of integers: weight codes times int8 activations, exactly; see `kernels.tile` for what a tile is."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tinychat.kernels.dot4 import dot4_bytes, dot4_nibbles
from tinychat.kernels.simd import I8, I16, I32, U8X64, constant, i32x16
from tinychat.kernels.tile import address, load_splat, load_splats, unpack


@intrinsic
def low_nibbles(typingctx, lines):
    """Return the low four bits of each byte."""

    def codegen(context, builder, signature, arguments):
        mask = constant(0x0F, I8, 64)
        vectors = unpack(builder, lines, arguments[0])
        return cgutils.pack_array(builder, [builder.and_(line, mask) for line in vectors])

    return lines(lines), codegen


@intrinsic
def high_nibbles(typingctx, lines):
    """Return the high four bits of each byte."""

    def codegen(context, builder, signature, arguments):
        # As 16-bit lanes and a mask: for a shift of bytes LLVM picks an instruction (vgf2p8affineqb) that
        # competes with the dot products for their execution units.
        words, four, mask = ir.VectorType(I16, 32), constant(4, I16, 32), constant(0x0F, I8, 64)
        shifted = (builder.lshr(builder.bitcast(line, words), four) for line in unpack(builder, lines, arguments[0]))
        return cgutils.pack_array(builder, [builder.and_(builder.bitcast(line, U8X64), mask) for line in shifted])

    return lines(lines), codegen


@intrinsic
def seed_tile(typingctx, seeds, index, rows, tokens):
    """Return an integer tile whose accumulators begin at ``seeds[index + t]``."""
    tile = types.UniTuple(i32x16, len(rows) * len(tokens))

    def codegen(context, builder, signature, arguments):
        container, first, _, _ = arguments
        splats = load_splats(context, builder, signature.args[0], container, first, len(tokens), I32)
        return cgutils.pack_array(builder, splats * len(rows))

    return tile(seeds, types.intp, rows, tokens), codegen


@intrinsic
def dot_nibbles(typingctx, tile, codes, activations, index):
    """Add to each accumulator lane the dot product of 4 codes (0..15) and 4 int8 activations of its token."""
    return tile(tile, codes, activations, types.intp), dot_codegen(tile, codes, dot4_nibbles)


@intrinsic
def dot_bytes(typingctx, tile, codes, activations, index):
    """Add to each accumulator lane the dot product of 4 codes (0..255) and 4 int8 activations of its token."""
    return tile(tile, codes, activations, types.intp), dot_codegen(tile, codes, dot4_bytes)


def dot_codegen(tile, codes, dot4):
    """Return the code generator of a tile of dot products; token t's 4 bytes are at ``index + 4 * t``."""
    rows, tokens = len(codes), len(tile) // len(codes)

    def codegen(context, builder, signature, arguments):
        sums, lines, container, first = arguments
        sums, lines = unpack(builder, tile, sums), unpack(builder, codes, lines)
        four = ir.Constant(first.type, 4)
        for t in range(tokens):
            pointer = address(context, builder, signature.args[2], container, first, four, t, I32)
            x = load_splat(builder, pointer, I32, 1)
            for r in range(rows):
                sums[r * tokens + t] = dot4(builder, sums[r * tokens + t], lines[r], x)
        return cgutils.pack_array(builder, sums)

    return codegen
