"""Register tiles: a tuple of vectors, one for each (row block, token) pair.

A tile of R row blocks and T tokens holds the vector of row block r and token t at ``r * T + t``. Its shape is a
type: `rows` and `tokens` are tuples whose *lengths* say R and T, so each shape compiles to straight code with
every vector in a register. "Row block" is 16 output rows in a linear, 16 keys or 16 channels in attention;
"token" is whatever shares them: a token, or a query row.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tinychat.kernels.dot4 import dot4_bytes, dot4_nibbles
from tinychat.kernels.memory import element_pointer, extend_half
from tinychat.kernels.simd import (
    F32,
    F32X16,
    I8,
    I16,
    I32,
    LANES,
    U8X64,
    call,
    constant,
    f32x16,
    i32x16,
    splat,
    u8x64,
)


def unpack(builder, tuple_type, value):
    """Return the vectors of a tuple."""
    return [builder.extract_value(value, i) for i in range(len(tuple_type))]


def load_splat(builder, pointer_at, element: ir.Type, align: int) -> ir.Value:
    """Emit the load of one element into all 16 lanes."""
    return splat(builder, builder.load(builder.bitcast(pointer_at, element.as_pointer()), align=align))


def address(context, builder, array_type, array, index, stride, step, pointee):
    """Emit the address of flat element ``index + step * stride``."""
    offset = builder.add(index, builder.mul(stride, ir.Constant(stride.type, step)))
    return element_pointer(context, builder, array_type, array, offset, pointee)


@intrinsic
def zero_tile(typingctx, rows, tokens):
    """Return a float tile of zeros."""
    tile = types.UniTuple(f32x16, len(rows) * len(tokens))

    def codegen(context, builder, signature, arguments):
        return cgutils.pack_array(builder, [constant(0.0)] * len(tile))

    return tile(rows, tokens), codegen


@intrinsic
def load_lines(typingctx, array, index, stride, rows):
    """Load one 64-byte line of each row block, `stride` elements apart."""
    lines = types.UniTuple(u8x64, len(rows))

    def codegen(context, builder, signature, arguments):
        container, first, step, _ = arguments
        pointers = (
            address(context, builder, signature.args[0], container, first, step, r, U8X64) for r in range(len(lines))
        )
        return cgutils.pack_array(builder, [builder.load(pointer, align=1) for pointer in pointers])

    return lines(array, types.intp, types.intp, rows), codegen


@intrinsic
def load_rows(typingctx, array, index, stride, rows):
    """Load 16 floats of each row block, `stride` elements apart, from a float32 or float16 array."""
    vectors = types.UniTuple(f32x16, len(rows))
    half = array.dtype == types.uint16
    stored = ir.VectorType(I16 if half else F32, LANES)

    def codegen(context, builder, signature, arguments):
        container, first, step, _ = arguments
        loaded = []
        for r in range(len(vectors)):
            pointer = address(context, builder, signature.args[0], container, first, step, r, stored)
            vector = builder.load(pointer, align=2 if half else 4)
            loaded.append(extend_half(builder, vector) if half else vector)
        return cgutils.pack_array(builder, loaded)

    return vectors(array, types.intp, types.intp, rows), codegen


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
        one = ir.Constant(first.type, 1)
        pointers = [
            address(context, builder, signature.args[0], container, first, one, t, I32) for t in range(len(tokens))
        ]
        splats = [load_splat(builder, pointer, I32, 4) for pointer in pointers]
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


@intrinsic
def add_scaled_by_row(typingctx, tile, sums, scales):
    """Return ``tile + float(sums) * scale`` with one scale vector for each row block."""
    tokens = len(tile) // len(scales)

    def codegen(context, builder, signature, arguments):
        values, integers, factors = (unpack(builder, kind, v) for kind, v in zip(signature.args, arguments))
        result = [
            call(builder, "llvm.fma.v16f32", F32X16, builder.sitofp(n, F32X16), factors[i // tokens], value)
            for i, (value, n) in enumerate(zip(values, integers))
        ]
        return cgutils.pack_array(builder, result)

    return tile(tile, sums, scales), codegen


@intrinsic
def add_scaled_by_token(typingctx, tile, addend, scales, index, tokens):
    """Return ``tile + addend * scales[index + t]`` with one scale for each token."""

    def codegen(context, builder, signature, arguments):
        values, addends, container, first, _ = arguments
        values, addends = unpack(builder, tile, values), unpack(builder, addend, addends)
        one = ir.Constant(first.type, 1)
        pointers = [
            address(context, builder, signature.args[2], container, first, one, t, F32) for t in range(len(tokens))
        ]
        factors = [load_splat(builder, pointer, F32, 4) for pointer in pointers]
        result = [
            call(builder, "llvm.fma.v16f32", F32X16, a, factors[i % len(tokens)], value)
            for i, (value, a) in enumerate(zip(values, addends))
        ]
        return cgutils.pack_array(builder, result)

    return tile(tile, addend, scales, types.intp, tokens), codegen


@intrinsic
def add_outer(typingctx, tile, vectors, scalars, index, stride):
    """Return ``tile + vectors[r] * scalars[index + t * stride]``: one step of a matrix product."""
    rows, tokens = len(vectors), len(tile) // len(vectors)

    def codegen(context, builder, signature, arguments):
        sums, columns, container, first, step = arguments
        sums, columns = unpack(builder, tile, sums), unpack(builder, vectors, columns)
        for t in range(tokens):
            pointer = address(context, builder, signature.args[2], container, first, step, t, F32)
            x = load_splat(builder, pointer, F32, 4)
            for r in range(rows):
                i = r * tokens + t
                sums[i] = call(builder, "llvm.fma.v16f32", F32X16, columns[r], x, sums[i])
        return cgutils.pack_array(builder, sums)

    return tile(tile, vectors, scalars, types.intp, types.intp), codegen


@intrinsic
def load_tile(typingctx, array, index, rows, tokens):
    """Load the vectors of a tile, one after another, from flat element `index`."""
    tile = types.UniTuple(f32x16, len(rows) * len(tokens))

    def codegen(context, builder, signature, arguments):
        container, first, _, _ = arguments
        step = ir.Constant(first.type, LANES)
        pointers = [
            address(context, builder, signature.args[0], container, first, step, i, F32X16) for i in range(len(tile))
        ]
        return cgutils.pack_array(builder, [builder.load(pointer, align=4) for pointer in pointers])

    return tile(array, types.intp, rows, tokens), codegen


@intrinsic
def scale_by_token(typingctx, tile, scales, index, tokens):
    """Return ``tile * scales[index + t]`` with one scale for each token."""

    def codegen(context, builder, signature, arguments):
        values, container, first, _ = arguments
        one = ir.Constant(first.type, 1)
        pointers = [
            address(context, builder, signature.args[1], container, first, one, t, F32) for t in range(len(tokens))
        ]
        factors = [load_splat(builder, pointer, F32, 4) for pointer in pointers]
        result = [
            builder.fmul(value, factors[i % len(tokens)]) for i, value in enumerate(unpack(builder, tile, values))
        ]
        return cgutils.pack_array(builder, result)

    return tile(tile, scales, types.intp, tokens), codegen


@intrinsic
def store_tile(typingctx, array, index, tile):
    """Store the tile's vectors one after another, from flat element `index`."""

    def codegen(context, builder, signature, arguments):
        container, first, values = arguments
        step = ir.Constant(first.type, LANES)
        for i, vector in enumerate(unpack(builder, tile, values)):
            pointer = address(context, builder, signature.args[0], container, first, step, i, F32X16)
            builder.store(vector, pointer, align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, tile), codegen
