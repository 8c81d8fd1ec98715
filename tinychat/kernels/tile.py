"""Register tiles: a tuple of vectors, one for each (row block, token) pair.

A tile of R row blocks and T tokens holds the vector of row block r and token t at ``r * T + t``. Its shape is a
type: `rows` and `tokens` are tuples of *lengths* R and T, so each shape compiles to straight code with every vector in
a register. A row block is 16 output rows in a linear, 16 keys or 16 channels in attention; a "token" is a token, or a
query row.
"""

import math

from llvmlite import ir
from numba import types

from tinychat.kernels.bfloat16 import dot2, even_elements, odd_elements
from tinychat.kernels.intrinsics import (
    ANY,
    F32,
    F32X16,
    I32,
    I32X16,
    I64,
    INDEX,
    SAME,
    Elements,
    Emitter,
    constant,
    f32x16,
    i32x16,
    operation,
)
from tinychat.kernels.memory import load_floats
from tinychat.kernels.sizes import LANES, LOADS_AGAIN

SHARING = types.uint32, types.int32  # elements of several numbers


def tile_type(vector: types.Type, *shape: types.BaseTuple) -> types.UniTuple:
    """Return the type of a tile of such vectors; shape : the types of its rows, or of its rows and tokens."""
    return types.UniTuple(vector, math.prod(map(len, shape)))


@operation(lambda rows, tokens: tile_type(f32x16, rows, tokens), ANY, ANY)
def zero_tile(builder, rows, tokens):
    """Return a float tile of zeros."""
    return [constant(0.0)] * (len(rows) * len(tokens))


def rows_type(array, index, stride, rows):
    """Return the type of what `load_rows` loads."""
    return tile_type(i32x16 if array.dtype in SHARING else f32x16, rows)


@operation(rows_type, ANY, INDEX, INDEX, ANY)
def load_rows(builder, array, index, stride, rows):
    """Load 16 elements of each row block, `stride` elements apart.

    Of float32 and float16 (uint16) as floats; pairs of bfloat16 (uint32) and quads of codes (int32) as they are.
    """
    load = load_shared if array.dtype in SHARING else load_floats
    return [load(builder, array, builder.apart(index, stride, r)) for r in range(len(rows))]


def load_shared(builder: Emitter, array: Elements, index: ir.Value) -> ir.Value:
    """Emit the load of 16 pairs or quads."""
    return array.load(index, I32X16, align=4)


@operation(SAME, ANY, ANY, ANY, INDEX, INDEX)
def add_outer(builder, tile, vectors, scalars, index, stride):
    """Return ``tile + vectors[r] * scalars[index + t * stride]``: one step of a matrix product.

    Vectors and scalars are floats, or both pairs of bfloat16: then a step adds two products to each lane.
    """
    as_pairs = vectors[0].type == I32X16
    element, multiply_add = (I32, dot2) if as_pairs else (F32, multiply_add_floats)
    return added(builder, tile, vectors, scalars, index, stride, element, multiply_add)


@operation(SAME, ANY, ANY, INDEX, INDEX, ANY, ANY, INDEX, INDEX, INDEX)
def add_outer_of_pairs(builder, tile, pairs, first, apart, rows, scalars, index, distance, stride):
    """Return a tile plus the products of pairs of bfloat16 and floats, in two steps.

    pairs, first, apart, rows : of `load_rows`, an array of pairs. The first step multiplies their odd elements by the
    scalars from ``index + distance`` on, the second the even ones by those from `index` on.
    """
    at = [builder.apart(first, apart, r) for r in range(len(rows))]
    odd = [odd_elements(builder, load_shared(builder, pairs, each)) for each in at]
    tile = added(builder, tile, odd, scalars, builder.add(index, distance), stride, F32, multiply_add_floats)
    load = pairs.load_again if LOADS_AGAIN else pairs.load
    even = [even_elements(builder, load(each, I32X16, align=4)) for each in at]
    return added(builder, tile, even, scalars, index, stride, F32, multiply_add_floats)


def multiply_add_floats(builder, sums, a, b):
    """Emit ``a * b + sums``, rounded once."""
    return builder.fused(a, b, sums)


def added(builder, sums, columns, scalars, first, stride, element, multiply_add) -> list[ir.Value]:
    """Emit a tile plus the product of each row block's column and each token's scalar."""
    tokens, result = len(sums) // len(columns), list(sums)
    for t in range(tokens):
        x = scalars.splat(builder.apart(first, stride, t), element)
        for r, column in enumerate(columns):
            result[r * tokens + t] = multiply_add(builder, sums[r * tokens + t], column, x)
    return result


def index_of_vector(builder, index, stride, i: int, tokens: int) -> ir.Value:
    """Emit the element at which vector `i` of a tile is stored, those of a token one after another."""
    return builder.apart(builder.add(index, I64(i // tokens * LANES)), stride, i % tokens)


@operation(lambda array, index, stride, rows, tokens: tile_type(f32x16, rows, tokens), ANY, INDEX, INDEX, ANY, ANY)
def load_tokens(builder, array, index, stride, rows, tokens):
    """Load a tile; the vectors of token t are one after another, from element ``index + t * stride`` on."""
    count = len(rows) * len(tokens)
    indices = [index_of_vector(builder, index, stride, i, len(tokens)) for i in range(count)]
    return [array.load(each, F32X16, align=4) for each in indices]


@operation(SAME, ANY, ANY, INDEX, ANY)
def scale_by_token(builder, tile, scales, index, tokens):
    """Return ``tile * scales[index + t]`` with one scale for each token."""
    factors = scales.splats(index, len(tokens), F32)
    return [builder.fmul(value, factors[i % len(tokens)]) for i, value in enumerate(tile)]


@operation(SAME, SAME, ANY, INDEX, INDEX, ANY)
def add_stored(builder, tile, array, index, stride, tokens):
    """Return a tile plus what is stored where `store_tokens` would store it.

    It is loaded now: LLVM would carry what is stored and added again in a loop from step to step, on the stack.
    """
    indices = [index_of_vector(builder, index, stride, i, len(tokens)) for i in range(len(tile))]
    return [builder.fadd(array.load_again(at, F32X16, align=4), vector) for at, vector in zip(indices, tile)]


@operation(SAME, SAME, types.float32)
def scaled(builder, tile, factor):
    """Return ``tile * factor``."""
    return [builder.fmul(value, builder.splat(factor)) for value in tile]


@operation(SAME, SAME, ANY, types.float32, types.float32)
def corrected(builder, wanted, found, factor, rate):
    """Return ``(wanted - found * factor) * rate`` of two tiles."""
    factor, rate = builder.splat(factor), builder.splat(rate)
    return [builder.fmul(builder.fsub(w, builder.fmul(f, factor)), rate) for w, f in zip(wanted, found)]


@operation(types.void, ANY, INDEX, INDEX, ANY, ANY)
def store_tokens(builder, array, index, stride, tile, tokens):
    """Store a tile; the vectors of token t are one after another, from flat element ``index + t * stride`` on."""
    for i, vector in enumerate(tile):
        array.store(index_of_vector(builder, index, stride, i, len(tokens)), vector, align=4)


@operation(types.void, ANY, INDEX, ANY)
def store_tile(builder, array, index, tile):
    """Store the tile's vectors one after another, from flat element `index`."""
    for i, vector in enumerate(tile):
        array.store(builder.add(index, I64(i * LANES)), vector, align=4)
