"""Dot products of weight codes and int8 activations, exactly, on each instruction set, and register tiles of them.

`dot4` makes four products and a sum in each lane of a vector: ``sums[lane] + (codes - zero)[4 lane : 4 lane + 4] .
x[4 lane : 4 lane + 4]`` with codes of 0..255, x of -127..127, and a zero, `DOT_ZERO`, that is 0 or 128, whichever is
faster. See `kernels.tile` for what a tile is.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tinychat.kernels.setup import ISA
from tinychat.kernels.simd import (
    F32,
    F32X16,
    I8,
    I16,
    I32,
    I32X16,
    ROUNDER,
    U8X64,
    call,
    constant,
    fused,
    i32x16,
    splat,
)
from tinychat.kernels.tile import address, load_splat, load_splats, unpack

# Integers that begin here are floats, `ROUNDER` above what they count.
ROUNDER_BITS = np.int32(np.float32(ROUNDER).view(np.int32))


def dot4_vnni(builder, sums, codes, x):
    """``vpdpbusd``: 64 products and 16 sums in one instruction."""
    return call(builder, "llvm.x86.avx512.vpdpbusd.512", I32X16, sums, codes, builder.bitcast(x, U8X64))


def dot4_signs(builder, sums, codes, x):
    """``vpsignb``, ``vpmaddubsw`` and ``vpmaddwd``, in two halves, of ``codes - 128``.

    The sign of the code goes to the activation, whose other factor is then no more than 128: 2 x 128 x 127 cannot
    saturate 16 bits.
    """
    i16x16, i32x8, u8x32 = ir.VectorType(I16, 16), ir.VectorType(I32, 8), ir.VectorType(I8, 32)
    signed, x = builder.xor(codes, constant(128, I8, 64)), builder.bitcast(x, U8X64)
    halves = []
    for start in (0, 32):
        lanes = ir.Constant(ir.VectorType(I32, 32), list(range(start, start + 32)))
        code, factor = (builder.shuffle_vector(v, v, lanes) for v in (signed, x))
        size = call(builder, "llvm.abs.v32i8", u8x32, code, ir.IntType(1)(0))
        factor = call(builder, "llvm.x86.avx2.psign.b", u8x32, factor, code)
        pairs = call(builder, "llvm.x86.avx2.pmadd.ub.sw", i16x16, size, factor)
        halves.append(call(builder, "llvm.x86.avx2.pmadd.wd", i32x8, pairs, constant(1, I16, 16)))
    joined = builder.shuffle_vector(*halves, ir.Constant(ir.VectorType(I32, 16), list(range(16))))
    return builder.add(sums, joined)


def dot4_pairs(builder, sums, codes, x):
    """``vpmaddubsw`` and ``vpmaddwd``, in two halves, of codes up to 128: 2 x 128 x 127 cannot saturate 16 bits."""
    i16x16, i32x8 = ir.VectorType(I16, 16), ir.VectorType(I32, 8)
    x = builder.bitcast(x, U8X64)
    halves = []
    for start in (0, 32):
        lanes = ir.Constant(ir.VectorType(I32, 32), list(range(start, start + 32)))
        code, factor = (builder.shuffle_vector(v, v, lanes) for v in (codes, x))
        pairs = call(builder, "llvm.x86.avx2.pmadd.ub.sw", i16x16, code, factor)
        halves.append(call(builder, "llvm.x86.avx2.pmadd.wd", i32x8, pairs, constant(1, I16, 16)))
    joined = builder.shuffle_vector(*halves, ir.Constant(ir.VectorType(I32, 16), list(range(16))))
    return builder.add(sums, joined)


def dot4_generic(builder, sums, codes, x):
    """Widen, multiply, add neighbours: for processors whose dot product has no case of its own here."""
    i16x64 = ir.VectorType(I16, 64)
    products = builder.mul(builder.zext(codes, i16x64), builder.sext(builder.bitcast(x, U8X64), i16x64))
    for i in range(4):
        lanes = ir.Constant(ir.VectorType(I32, 16), list(range(i, 64, 4)))
        quarter = builder.shuffle_vector(products, products, lanes)
        sums = builder.add(sums, builder.sext(quarter, I32X16))
    return sums


# The second is for codes of four bits, which stand for themselves.
dot4, DOT_ZERO, dot4_small = {
    "avx512vnni": (dot4_vnni, 0, dot4_vnni),
    "avx2": (dot4_signs, 128, dot4_pairs),
    "generic": (dot4_generic, 0, dot4_generic),
}[ISA]


@intrinsic
def start_tile(typingctx, starts, index, rows, tokens):
    """Return an integer tile whose accumulators begin at ``starts[index + t]``."""
    tile = types.UniTuple(i32x16, len(rows) * len(tokens))

    def codegen(context, builder, signature, arguments):
        container, first, _, _ = arguments
        splats = load_splats(context, builder, signature.args[0], container, first, len(tokens), I32)
        return cgutils.pack_array(builder, splats * len(rows))

    return tile(starts, types.intp, rows, tokens), codegen


@intrinsic
def start_all(typingctx, start, rows, tokens):
    """Return an integer tile whose accumulators all begin at `start`."""
    tile = types.UniTuple(i32x16, len(rows) * len(tokens))

    def codegen(context, builder, signature, arguments):
        return cgutils.pack_array(builder, [splat(builder, arguments[0])] * len(tile))

    return tile(types.int32, rows, tokens), codegen


@intrinsic
def dot(typingctx, tile, codes, activations, index):
    """Add to each accumulator lane the dot product of 4 codes and 4 int8 activations of its token.

    Token t's 4 activations are at ``index + 4 * t``; what code counts as 0 is `DOT_ZERO`.
    """
    return tile(tile, codes, activations, types.intp), dots(tile, codes, dot4)


@intrinsic
def dot_small(typingctx, tile, codes, activations, index):
    """Do the same for codes of four bits, of which 0 counts as 0."""
    return tile(tile, codes, activations, types.intp), dots(tile, codes, dot4_small)


def dots(tile, codes, dot4):
    """Return code that adds the products that `dot4` makes to each accumulator of a tile."""
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
def shift_tile(typingctx, tile, bits):
    """Return an integer tile times ``2**bits``."""

    def codegen(context, builder, signature, arguments):
        sums, count = arguments
        by = splat(builder, builder.trunc(count, I32))
        return cgutils.pack_array(builder, [builder.shl(n, by) for n in unpack(builder, tile, sums)])

    return tile(tile, types.int64), codegen


@intrinsic
def add_shifted(typingctx, tile, other, bits):
    """Return an integer tile plus another one times ``2**bits``."""

    def codegen(context, builder, signature, arguments):
        sums, others, count = arguments
        by = splat(builder, builder.trunc(count, I32))
        pairs = zip(unpack(builder, tile, sums), unpack(builder, other, others))
        return cgutils.pack_array(builder, [builder.add(n, builder.shl(m, by)) for n, m in pairs])

    return tile(tile, other, types.int64), codegen


@intrinsic
def add_starts(typingctx, tile, starts, index, rows, tokens):
    """Return an integer tile plus ``starts[index + t]``."""

    def codegen(context, builder, signature, arguments):
        sums, container, first, _, _ = arguments
        splats = load_splats(context, builder, signature.args[1], container, first, len(tokens), I32)
        added = [builder.add(n, splats[i % len(tokens)]) for i, n in enumerate(unpack(builder, tile, sums))]
        return cgutils.pack_array(builder, added)

    return tile(tile, starts, types.intp, rows, tokens), codegen


@intrinsic
def add_scaled_integers(typingctx, tile, sums, row_scales, scales, index, tokens):
    """Return ``tile + sums * row_scale * scales[index + t]`` for sums of any size; the first product is rounded."""

    def codegen(context, builder, signature, arguments):
        kinds = signature.args
        values, integers, factors = (unpack(builder, kind, v) for kind, v in zip(kinds, arguments[:3]))
        container, first = arguments[3:5]
        by_token = load_splats(context, builder, kinds[3], container, first, len(tokens), F32)
        result = []
        for i, (value, n) in enumerate(zip(values, integers)):
            r, t = divmod(i, len(tokens))
            scaled = builder.fmul(builder.sitofp(n, F32X16), factors[r])
            result.append(fused(builder, scaled, by_token[t], value))
        return cgutils.pack_array(builder, result)

    return tile(tile, sums, row_scales, scales, types.intp, tokens), codegen


@intrinsic
def add_scaled(typingctx, tile, sums, row_scales, scales, index, tokens):
    """Return ``tile + (sums - ROUNDER) * row_scale * scales[index + t]``, whose first product is rounded once.

    The sums began at `ROUNDER_BITS` and count less than 2**22. Row scales have at most 22 significant bits, so that
    ``ROUNDER * row_scale`` is exact. Two operations where converting the sums would take a third.
    """

    def codegen(context, builder, signature, arguments):
        kinds = signature.args
        values, integers, factors = (unpack(builder, kind, v) for kind, v in zip(kinds, arguments[:3]))
        container, first = arguments[3:5]
        offsets = [builder.fmul(factor, constant(-ROUNDER)) for factor in factors]
        by_token = load_splats(context, builder, kinds[3], container, first, len(tokens), F32)
        result = []
        for i, (value, n) in enumerate(zip(values, integers)):
            r, t = divmod(i, len(tokens))
            scaled = fused(builder, builder.bitcast(n, F32X16), factors[r], offsets[r])
            result.append(fused(builder, scaled, by_token[t], value))
        return cgutils.pack_array(builder, result)

    return tile(tile, sums, row_scales, scales, types.intp, tokens), codegen
