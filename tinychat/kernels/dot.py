"""Dot products of weight codes and int8 activations, exactly, on each instruction set.

A ``dot4`` makes four products and a sum in each lane of a vector: ``sums[lane] + (codes - zero)[4 lane : 4 lane + 4] .
x[4 lane : 4 lane + 4]`` with codes of 0..255, x of -127..127, and a zero, `DOT_ZERO`, that is 0 or 128, whichever is
faster. Where it is 128, codes are `SIGNED`: less 128 already, as signed bytes. `kernels.tile` describes tiles,
`kernels.sums` paired ones.
"""

from functools import wraps

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from tinychat.kernels.intrinsics import ANY, I8, I16, I32, I64, INDEX, SAME, Elements, constant, operation
from tinychat.kernels.setup import ISA, STANDS_IN
from tinychat.kernels.weights import ZERO


def in_registers(lanes):
    """Emit a ``dot4`` for each register of so many lanes that vectors take."""

    def decorate(emit):
        @wraps(emit)
        def whole(builder, sums, codes, x):
            x = builder.bitcast(x, codes.type)
            parts = zip(builder.parts(sums, lanes), builder.parts(codes, 4 * lanes), builder.parts(x, 4 * lanes))
            return builder.joined(*(emit(builder, *part) for part in parts))

        return whole

    return decorate


@in_registers(16)
def dot4_vnni(builder, sums, codes, x):
    """``vpdpbusd``: 64 products and 16 sums in one instruction."""
    return builder.intrinsic("llvm.x86.avx512.vpdpbusd.512", sums.type, sums, codes, x)


@in_registers(8)
def dot4_vnni_256(builder, sums, codes, x):
    """``vpdpbusd`` on 32 products."""
    return builder.intrinsic("llvm.x86.avx512.vpdpbusd.256", sums.type, sums, codes, x)


@in_registers(8)
def dot4_stand_in(builder, sums, codes, x):
    """The same in the encoding of AVX-512, with the registers that AVX-VNNI has."""
    codes, x = builder.bitcast(codes, sums.type), builder.bitcast(x, sums.type)
    emitted = ir.FunctionType(sums.type, [sums.type] * 3)
    return builder.asm(emitted, "{evex} vpdpbusd $3, $2, $0", "=x,0,x,x", [sums, codes, x], side_effect=False)


@in_registers(8)
def dot4_signs(builder, sums, codes, x):
    """``vpsignb``, ``vpmaddubsw`` and ``vpmaddwd``, of signed codes.

    The sign of the code goes to the activation, whose other factor is then no more than 128: 2 x 128 x 127 cannot
    saturate 16 bits.
    """
    size = builder.intrinsic("llvm.abs.v32i8", codes.type, codes, ir.IntType(1)(0))
    factor = builder.intrinsic("llvm.x86.avx2.psign.b", codes.type, x, codes)
    return added_pairs(builder, sums, size, factor)


@in_registers(8)
def dot4_pairs(builder, sums, codes, x):
    """``vpmaddubsw`` and ``vpmaddwd``, of codes up to 128: 2 x 128 x 127 cannot saturate 16 bits."""
    return added_pairs(builder, sums, codes, x)


def added_pairs(builder, sums, codes, x):
    """Emit sums plus products of bytes, whose sums of two fit into 16 bits."""
    pairs = builder.intrinsic("llvm.x86.avx2.pmadd.ub.sw", ir.VectorType(I16, 16), codes, x)
    return builder.add(sums, builder.intrinsic("llvm.x86.avx2.pmadd.wd", sums.type, pairs, constant(1, I16, 16)))


def dot4_lines_pairs(builder, sums, lines, xs):
    """``vpmaddubsw`` of several lines and one ``vpmaddwd``: 8 x 2 x 3 x 127 fits into 16 bits."""
    found = []
    for i, part in enumerate(builder.parts(sums, 8)):
        pairs = None
        for line, x in zip(lines, xs):
            codes = builder.parts(line, 32)[i]
            x = builder.parts(builder.bitcast(x, line.type), 32)[i]
            products = builder.intrinsic("llvm.x86.avx2.pmadd.ub.sw", ir.VectorType(I16, 16), codes, x)
            pairs = products if pairs is None else builder.add(pairs, products)
        whole = builder.intrinsic("llvm.x86.avx2.pmadd.wd", part.type, pairs, constant(1, I16, 16))
        found.append(builder.add(part, whole))
    return builder.joined(*found)


def dot4_lines_each(builder, sums, lines, xs):
    """Add one line after another, as `dot4_small`."""
    for line, x in zip(lines, xs):
        sums = dot4_small(builder, sums, line, x)
    return sums


@in_registers(4)
def dot4_sdot(builder, sums, codes, x):
    """``sdot``: 16 products of signed codes, and 4 sums, in one instruction."""
    return builder.intrinsic("llvm.aarch64.neon.sdot.v4i32.v16i8", sums.type, sums, codes, x)


@in_registers(4)
def dot4_usdot(builder, sums, codes, x):
    """``usdot``: the same of unsigned codes."""
    return builder.intrinsic("llvm.aarch64.neon.usdot.v4i32.v16i8", sums.type, sums, codes, x)


def dot4_generic(builder, sums, codes, x):
    """Widen, multiply, add neighbours: for processors whose dot product has no case of its own here."""
    count, lanes = codes.type.count, sums.type.count
    wide = ir.VectorType(I16, count)
    products = builder.mul(builder.zext(codes, wide), builder.sext(builder.bitcast(x, codes.type), wide))
    for i in range(4):
        quarter = builder.lanes(products, range(i, count, 4))
        sums = builder.add(sums, builder.sext(quarter, ir.VectorType(I32, lanes)))
    return sums


if STANDS_IN:
    llvm.initialize_native_asmparser()
_vnni_256 = dot4_stand_in if STANDS_IN else dot4_vnni_256
# The last is for codes of four bits without a table, and up to 127 in attention.
dot4, DOT_ZERO, dot4_small = {
    "avx512vnni": (dot4_vnni, 0, dot4_vnni),
    "avxvnni": (_vnni_256, 0, _vnni_256),
    "avx2": (dot4_signs, 128, dot4_pairs),
    "neon-i8mm": (dot4_usdot, 0, dot4_usdot),
    "neon-dotprod": (dot4_sdot, 128, dot4_sdot),
    "generic": (dot4_generic, 0, dot4_generic),
}[ISA]
SIGNED = DOT_ZERO == 128
# How far above that the code of 0 lies of bytes that are stored plus 128: of weights, and of keys in a cache of int8.
ABOVE_DOT_ZERO = np.int32(ZERO - DOT_ZERO)
dot4_lines = dot4_lines_pairs if ISA == "avx2" else dot4_lines_each


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


@operation(SAME, ANY, ANY, ANY, INDEX)
def dot_lines(builder, tile, lines, activations, index):
    """Add dot products as `dot_small` does, of several lines of codes up to 3, each of the next 4 columns."""
    places = [builder.add(index, I64(q * 4 * len(tile))) for q in range(len(lines))]
    by_line = [activations.splats(place, len(tile), I32, unit=4, lanes=tile[0].type.count) for place in places]
    return [dot4_lines(builder, total, lines, xs) for total, xs in zip(tile, zip(*by_line))]


def dots(builder, sums, line, activations: Elements, index: ir.Value, dot4) -> list[ir.Value]:
    """Emit a tile plus the dot products that `dot4` emits."""
    splats = activations.splats(index, len(sums), I32, unit=4, lanes=sums[0].type.count)
    return [dot4(builder, total, line, x) for total, x in zip(sums, splats)]


@operation(SAME, ANY, ANY, ANY, ANY, INDEX)
def dot_pairs(builder, tile, first, second, activations, index):
    """Add to a paired tile the products of 8 columns, of which `first` has the codes of four and `second` the others.

    Token t's 8 activations are at ``index + 8 * t``. ``usmmla``: the products of two rows and two tokens at once.
    """
    return paired_dots(builder, tile, first, second, activations, index)


@operation(SAME, ANY, ANY, ANY, INDEX)
def dot_line_pairs(builder, tile, lines, activations, index):
    """Add products to a paired tile as `dot_pairs` does, of several lines of codes, each two of the next 8 columns."""
    for q in range(0, len(lines), 2):
        tile = paired_dots(builder, tile, *lines[q : q + 2], activations, builder.add(index, I64(q * 4 * len(tile))))
    return tile


def paired_dots(builder, tile, first, second, activations: Elements, index: ir.Value) -> list[ir.Value]:
    """Emit a paired tile plus the products of 8 columns."""
    codes = [builder.parts(builder.bitcast(line, tile[0].type), 4) for line in (first, second)]
    # Two rows of eight codes in a register: first those that the tile's even vectors have.
    rows = [[builder.chosen(low, high, order) for low, high in zip(*codes)] for order in ((0, 4, 1, 5), (2, 6, 3, 7))]
    u8x16, result = ir.VectorType(I8, 16), []
    for i, sums in enumerate(tile):
        x = activations.load(builder.add(index, I64(i // 2 * 16)), u8x16, align=4)
        parts = zip(builder.parts(sums, 4), rows[i % 2])
        products = (
            builder.intrinsic("llvm.aarch64.neon.usmmla.v4i32.v16i8", part.type, part, builder.bitcast(row, u8x16), x)
            for part, row in parts
        )
        result.append(builder.joined(*products))
    return result
