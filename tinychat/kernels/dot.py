"""Dot products of weight codes and int8 activations, exactly, on each instruction set, and register tiles of them.

`dot4` makes four products and a sum in each lane of a vector: ``sums[lane] + (codes - zero)[4 lane : 4 lane + 4] .
x[4 lane : 4 lane + 4]`` with codes of 0..255, x of -127..127, and a zero, `DOT_ZERO`, that is 0 or 128, whichever is
faster. `kernels.tile` describes tiles.
"""

import numpy as np
from llvmlite import ir
from numba import types

from tinychat.kernels.intrinsics import (
    ANY,
    F32,
    F32X16,
    I8,
    I16,
    I32,
    I32X16,
    I64,
    INDEX,
    SAME,
    U8X64,
    Elements,
    constant,
    i32x16,
    operation,
)
from tinychat.kernels.setup import ISA
from tinychat.kernels.simd import ROUNDER
from tinychat.kernels.tile import tile_type

# Integers that begin here are floats, `ROUNDER` above what they count.
ROUNDER_BITS = np.int32(np.float32(ROUNDER).view(np.int32))


def dot4_vnni(builder, sums, codes, x):
    """``vpdpbusd``: 64 products and 16 sums in one instruction."""
    return builder.intrinsic("llvm.x86.avx512.vpdpbusd.512", I32X16, sums, codes, builder.bitcast(x, U8X64))


def dot4_signs(builder, sums, codes, x):
    """``vpsignb``, ``vpmaddubsw`` and ``vpmaddwd``, in two halves, of ``codes - 128``.

    The sign of the code goes to the activation, whose other factor is then no more than 128: 2 x 128 x 127 cannot
    saturate 16 bits.
    """
    i16x16, i32x8, u8x32 = ir.VectorType(I16, 16), ir.VectorType(I32, 8), ir.VectorType(I8, 32)
    signed, x = builder.xor(codes, constant(128, I8, 64)), builder.bitcast(x, U8X64)
    halves = []
    for lanes in (range(32), range(32, 64)):
        code, factor = (builder.lanes(v, lanes) for v in (signed, x))
        size = builder.intrinsic("llvm.abs.v32i8", u8x32, code, ir.IntType(1)(0))
        factor = builder.intrinsic("llvm.x86.avx2.psign.b", u8x32, factor, code)
        pairs = builder.intrinsic("llvm.x86.avx2.pmadd.ub.sw", i16x16, size, factor)
        halves.append(builder.intrinsic("llvm.x86.avx2.pmadd.wd", i32x8, pairs, constant(1, I16, 16)))
    return builder.add(sums, builder.joined(*halves))


def dot4_pairs(builder, sums, codes, x):
    """``vpmaddubsw`` and ``vpmaddwd``, in two halves, of codes up to 128: 2 x 128 x 127 cannot saturate 16 bits."""
    i16x16, i32x8 = ir.VectorType(I16, 16), ir.VectorType(I32, 8)
    x = builder.bitcast(x, U8X64)
    halves = []
    for lanes in (range(32), range(32, 64)):
        code, factor = (builder.lanes(v, lanes) for v in (codes, x))
        pairs = builder.intrinsic("llvm.x86.avx2.pmadd.ub.sw", i16x16, code, factor)
        halves.append(builder.intrinsic("llvm.x86.avx2.pmadd.wd", i32x8, pairs, constant(1, I16, 16)))
    return builder.add(sums, builder.joined(*halves))


def dot4_generic(builder, sums, codes, x):
    """Widen, multiply, add neighbours: for processors whose dot product has no case of its own here."""
    i16x64 = ir.VectorType(I16, 64)
    products = builder.mul(builder.zext(codes, i16x64), builder.sext(builder.bitcast(x, U8X64), i16x64))
    for i in range(4):
        quarter = builder.lanes(products, range(i, 64, 4))
        sums = builder.add(sums, builder.sext(quarter, I32X16))
    return sums


# The last is for codes of four bits without a table.
dot4, DOT_ZERO, dot4_small = {
    "avx512vnni": (dot4_vnni, 0, dot4_vnni),
    "avx2": (dot4_signs, 128, dot4_pairs),
    "generic": (dot4_generic, 0, dot4_generic),
}[ISA]


@operation(lambda starts, index, rows, tokens: tile_type(i32x16, rows, tokens), ANY, INDEX, ANY, ANY)
def start_tile(builder, starts, index, rows, tokens):
    """Return an integer tile whose accumulators begin at ``starts[index + t]``."""
    return starts.splats(index, len(tokens), I32) * len(rows)


@operation(lambda start, rows, tokens: tile_type(i32x16, rows, tokens), types.int32, ANY, ANY)
def start_all(builder, start, rows, tokens):
    """Return an integer tile whose accumulators all begin at `start`."""
    return [builder.splat(start)] * (len(rows) * len(tokens))


@operation(SAME, ANY, ANY, ANY, INDEX)
def dot(builder, tile, codes, activations, index):
    """Add to each accumulator lane the dot product of 4 codes and 4 int8 activations of its token.

    Token t's 4 activations are at ``index + 4 * t``; the code that counts as 0 is `DOT_ZERO`.
    """
    return dots(builder, tile, codes, activations, index, dot4)


@operation(SAME, ANY, ANY, ANY, INDEX)
def dot_small(builder, tile, codes, activations, index):
    """Add dot products as `dot` does, of codes of four bits, of which 0 counts as 0."""
    return dots(builder, tile, codes, activations, index, dot4_small)


def dots(builder, sums, lines, activations: Elements, index: ir.Value, dot4) -> list[ir.Value]:
    """Emit a tile plus the dot products that `dot4` emits."""
    tokens, result = len(sums) // len(lines), list(sums)
    for t in range(tokens):
        x = activations.splat(builder.apart(index, I64(4), t), I32, align=1)
        for r, line in enumerate(lines):
            result[r * tokens + t] = dot4(builder, sums[r * tokens + t], line, x)
    return result


@operation(SAME, ANY, types.int32)
def shift_tile(builder, tile, bits):
    """Return an integer tile times ``2**bits``."""
    by = builder.splat(bits)
    return [builder.shl(n, by) for n in tile]


@operation(SAME, ANY, ANY, types.int32)
def add_shifted(builder, tile, other, bits):
    """Return an integer tile plus another one times ``2**bits``."""
    by = builder.splat(bits)
    return [builder.add(n, builder.shl(m, by)) for n, m in zip(tile, other)]


@operation(SAME, ANY, ANY, INDEX, ANY, ANY)
def add_starts(builder, tile, starts, index, rows, tokens):
    """Return an integer tile plus ``starts[index + t]``."""
    splats = starts.splats(index, len(tokens), I32)
    return [builder.add(n, splats[i % len(tokens)]) for i, n in enumerate(tile)]


@operation(SAME, ANY, ANY, ANY, ANY, INDEX, ANY)
def add_scaled_integers(builder, tile, sums, row_scales, scales, index, tokens):
    """Return ``tile + sums * row_scale * scales[index + t]`` for sums of any size; the first product is rounded."""
    by_token, result = scales.splats(index, len(tokens), F32), []
    for i, (value, n) in enumerate(zip(tile, sums)):
        r, t = divmod(i, len(tokens))
        scaled = builder.fmul(builder.sitofp(n, F32X16), row_scales[r])
        result.append(builder.fused(scaled, by_token[t], value))
    return result


@operation(SAME, ANY, ANY, ANY, ANY, INDEX, ANY)
def add_scaled(builder, tile, sums, row_scales, scales, index, tokens):
    """Return ``tile + (sums - ROUNDER) * row_scale * scales[index + t]``, whose first product is rounded once.

    The sums began at `ROUNDER_BITS` and count less than 2**22. Row scales have at most 22 significant bits, so that
    ``ROUNDER * row_scale`` is exact. Two operations where converting the sums would take a third.
    """
    offsets = [builder.fmul(factor, constant(-ROUNDER)) for factor in row_scales]
    by_token, result = scales.splats(index, len(tokens), F32), []
    for i, (value, n) in enumerate(zip(tile, sums)):
        r, t = divmod(i, len(tokens))
        scaled = builder.fused(builder.bitcast(n, F32X16), row_scales[r], offsets[r])
        result.append(builder.fused(scaled, by_token[t], value))
    return result
