"""Four products and a sum in each lane of a vector, exactly, on each instruction set.

``sums[lane] + (codes - zero)[4 lane : 4 lane + 4] . x[4 lane : 4 lane + 4]`` with codes of 0..255, x of -127..127, and
a zero that is 0 or 128, whichever is faster.
"""

from llvmlite import ir

from tinychat.kernels.setup import ISA
from tinychat.kernels.simd import I8, I16, I32, I32X16, U8X64, call, constant


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


def dot4_generic(builder, sums, codes, x):
    """Widen, multiply, add neighbours: for processors whose dot product has no case of its own here."""
    i16x64 = ir.VectorType(I16, 64)
    products = builder.mul(builder.zext(codes, i16x64), builder.sext(builder.bitcast(x, U8X64), i16x64))
    for i in range(4):
        lanes = ir.Constant(ir.VectorType(I32, 16), list(range(i, 64, 4)))
        quarter = builder.shuffle_vector(products, products, lanes)
        sums = builder.add(sums, builder.sext(quarter, I32X16))
    return sums


dot4, DOT_ZERO = {
    "avx512vnni": (dot4_vnni, 0),
    "avx2": (dot4_signs, 128),
    "generic": (dot4_generic, 0),
}[ISA]
