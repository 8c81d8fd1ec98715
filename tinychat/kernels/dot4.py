"""Four products and a sum in each lane of a vector, exactly, on each instruction set.

``sums[lane] + codes[4 lane : 4 lane + 4] . x[4 lane : 4 lane + 4]`` with unsigned codes and signed x.
"""

from llvmlite import ir

from tinychat.kernels.setup import ISA
from tinychat.kernels.simd import I8, I16, I32, I32X16, U8X64, call, constant


def dot4_vnni(builder, sums, codes, x):
    """``vpdpbusd``: 64 products and 16 sums in one instruction."""
    return call(builder, "llvm.x86.avx512.vpdpbusd.512", I32X16, sums, codes, builder.bitcast(x, U8X64))


def dot4_maddubs(builder, sums, codes, x):
    """``vpmaddubsw`` then ``vpmaddwd``, in two halves; 2 x 15 x 127 cannot saturate 16 bits."""
    i16x16, i32x8, u8x32 = ir.VectorType(I16, 16), ir.VectorType(I32, 8), ir.VectorType(I8, 32)
    x = builder.bitcast(x, U8X64)
    halves = []
    for start in (0, 32):
        lanes = ir.Constant(ir.VectorType(I32, 32), list(range(start, start + 32)))
        half_codes, half_x = (builder.shuffle_vector(v, v, lanes) for v in (codes, x))
        assert half_codes.type == u8x32
        pairs = call(builder, "llvm.x86.avx2.pmadd.ub.sw", i16x16, half_codes, half_x)
        ones = constant(1, I16, 16)
        halves.append(call(builder, "llvm.x86.avx2.pmadd.wd", i32x8, pairs, ones))
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


def dot4_by_nibbles(builder, sums, codes, x):
    """Codes up to 255 as two planes of nibbles, each of which `vpmaddubsw` takes without saturating."""
    high = dot4_maddubs(builder, constant(0, I32), builder.lshr(codes, constant(4, I8, 64)), x)
    sums = builder.add(sums, builder.shl(high, constant(4, I32)))
    return dot4_maddubs(builder, sums, builder.and_(codes, constant(0x0F, I8, 64)), x)


dot4_nibbles = {"avx512vnni": dot4_vnni, "avx2": dot4_maddubs, "generic": dot4_generic}[ISA]
dot4_bytes = {"avx512vnni": dot4_vnni, "avx2": dot4_by_nibbles, "generic": dot4_generic}[ISA]
