"""Register tiles: a tuple of vectors, one for each (row block, token) pair.

A tile of R row blocks and T tokens holds the vector of row block r and token t at ``r * T + t``. Its shape is a
type: `rows` and `tokens` are tuples whose *lengths* say R and T, so each shape compiles to straight code with
every vector in a register. "Row block" is 16 output rows in a linear, 16 keys or 16 channels in attention;
"token" is whatever shares them: a token, or a query row.
"""

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tinychat.kernels.bfloat16 import dot2, even_elements, odd_elements
from tinychat.kernels.memory import element_pointer, extend_half
from tinychat.kernels.simd import F32, F32X16, I8, I16, I32, U8X64, constant, f32x16, fused, i32x16, splat, u8x64
from tinychat.kernels.sizes import LANES


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


def load_splats(context, builder, array_type, array, first, count, element: ir.Type) -> list[ir.Value]:
    """Emit the loads of `count` consecutive 4-byte elements from flat element `first` on, each into all 16 lanes."""
    one = ir.Constant(first.type, 1)
    pointers = [address(context, builder, array_type, array, first, one, i, element) for i in range(count)]
    return [load_splat(builder, pointer, element, 4) for pointer in pointers]


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
    """Load 16 elements of each row block, `stride` elements apart.

    Of float32, float16 (uint16) and int8 as floats; pairs of bfloat16 (uint32) as they are, for `add_outer`.
    """
    as_pairs = array.dtype == types.uint32
    vectors = types.UniTuple(i32x16 if as_pairs else f32x16, len(rows))
    element, widen = {
        types.uint32: (I32, lambda builder, pairs: pairs),
        types.uint16: (I16, extend_half),
        types.int8: (I8, lambda builder, codes: builder.sitofp(codes, F32X16)),
        types.float32: (F32, lambda builder, floats: floats),
    }[array.dtype]
    stored = ir.VectorType(element, LANES)

    def codegen(context, builder, signature, arguments):
        container, first, step, _ = arguments
        pointers = (
            address(context, builder, signature.args[0], container, first, step, r, stored) for r in range(len(rows))
        )
        loaded = [builder.load(pointer, align=array.dtype.bitwidth // 8) for pointer in pointers]
        return cgutils.pack_array(builder, [widen(builder, vector) for vector in loaded])

    return vectors(array, types.intp, types.intp, rows), codegen


@intrinsic
def scale_by_row(typingctx, tile, scales):
    """Return ``tile * scale`` with one scale vector for each row block."""
    tokens = len(tile) // len(scales)

    def codegen(context, builder, signature, arguments):
        values, factors = (unpack(builder, kind, v) for kind, v in zip(signature.args, arguments))
        scaled = [builder.fmul(value, factors[i // tokens]) for i, value in enumerate(values)]
        return cgutils.pack_array(builder, scaled)

    return tile(tile, scales), codegen


@intrinsic
def add_outer(typingctx, tile, vectors, scalars, index, stride):
    """Return ``tile + vectors[r] * scalars[index + t * stride]``: one step of a matrix product.

    Vectors and scalars are floats, or both pairs of bfloat16: then a step adds two products to each lane.
    """
    as_pairs = vectors.dtype == i32x16

    def codegen(context, builder, signature, arguments):
        sums, columns, container, first, step = arguments
        sums, columns = unpack(builder, tile, sums), unpack(builder, vectors, columns)
        multiply_add = dot2 if as_pairs else multiply_add_floats
        splats = splats_apart(context, builder, scalars, container, first, step, I32 if as_pairs else F32)
        return cgutils.pack_array(builder, added(builder, sums, columns, splats, multiply_add))

    return tile(tile, vectors, scalars, types.intp, types.intp), codegen


@intrinsic
def add_outer_of_pairs(typingctx, tile, pairs, scalars, index, apart, stride):
    """Return a tile plus the products of pairs of bfloat16 and floats: what two steps of `add_outer` would.

    The first has the odd elements, and the scalars from ``index + apart`` on, the second the even ones, and those from
    `index` on.
    """

    def codegen(context, builder, signature, arguments):
        sums, columns, container, first, distance, step = arguments
        sums, columns = unpack(builder, tile, sums), unpack(builder, pairs, columns)
        for elements, place in ((odd_elements, builder.add(first, distance)), (even_elements, first)):
            splats = splats_apart(context, builder, scalars, container, place, step, F32)
            floats = [elements(builder, column) for column in columns]
            sums = added(builder, sums, floats, splats, multiply_add_floats)
        return cgutils.pack_array(builder, sums)

    return tile(tile, pairs, scalars, types.intp, types.intp, types.intp), codegen


def splats_apart(context, builder, array_type, array, first, step, element: ir.Type) -> Callable[[int], ir.Value]:
    """Return what emits the load of 4-byte element ``first + t * step`` into all 16 lanes."""
    return lambda t: load_splat(
        builder, address(context, builder, array_type, array, first, step, t, element), element, 4
    )


def multiply_add_floats(builder: ir.IRBuilder, sums: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """Emit ``a * b + sums``, rounded once."""
    return fused(builder, a, b, sums)


def added(builder, sums, columns, splat_of, multiply_add) -> list[ir.Value]:
    """Return the vectors of a tile, to each of which the product of its column and its token's scalar is added."""
    tokens, result = len(sums) // len(columns), list(sums)
    for t in range(tokens):
        x = splat_of(t)
        for r, column in enumerate(columns):
            result[r * tokens + t] = multiply_add(builder, sums[r * tokens + t], column, x)
    return result


@intrinsic
def load_tokens(typingctx, array, index, stride, rows, tokens):
    """Load a tile in which the vectors of token t stand one after another, from element ``index + t * stride`` on."""
    tile = types.UniTuple(f32x16, len(rows) * len(tokens))

    def codegen(context, builder, signature, arguments):
        container, first, step, _, _ = arguments
        vectors = []
        for i in range(len(tile)):
            row = builder.add(first, ir.Constant(first.type, i // len(tokens) * LANES))
            pointer = address(context, builder, signature.args[0], container, row, step, i % len(tokens), F32X16)
            vectors.append(builder.load(pointer, align=4))
        return cgutils.pack_array(builder, vectors)

    return tile(array, types.intp, types.intp, rows, tokens), codegen


@intrinsic
def scale_by_token(typingctx, tile, scales, index, tokens):
    """Return ``tile * scales[index + t]`` with one scale for each token."""

    def codegen(context, builder, signature, arguments):
        values, container, first, _ = arguments
        factors = load_splats(context, builder, signature.args[1], container, first, len(tokens), F32)
        result = [
            builder.fmul(value, factors[i % len(tokens)]) for i, value in enumerate(unpack(builder, tile, values))
        ]
        return cgutils.pack_array(builder, result)

    return tile(tile, scales, types.intp, tokens), codegen


@intrinsic
def store_tokens(typingctx, array, index, stride, tile, tokens):
    """Store the vectors of token t one after another, from flat element ``index + t * stride`` on."""

    def codegen(context, builder, signature, arguments):
        container, first, step, values, _ = arguments
        for i, vector in enumerate(unpack(builder, tile, values)):
            row = builder.add(first, ir.Constant(first.type, i // len(tokens) * LANES))
            pointer = address(context, builder, signature.args[0], container, row, step, i % len(tokens), F32X16)
            builder.store(vector, pointer, align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, tile, tokens), codegen


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
