"""bfloat16: the upper half of a float32, two to a 32-bit lane, and the product of two such pairs.

A lane of *pairs*, carried as uint32, holds an even element in its low half and the odd one after it in its high half.
A step of a product adds the products of both, each rounded once, odd element first: that is how Intel's reference
defines AVX-512 BF16's ``vdpbf16ps``, and what two fused multiply-adds of the widened elements compute. The bits are the
same, save that the instruction takes factors, sums and results below 2**-126 for zero.
"""

from llvmlite import ir
from numba import types

from tinychat.kernels.intrinsics import ANY, F32, F32X16, I16, I32, INDEX, SAME, Emitter, constant, operation
from tinychat.kernels.sizes import LANES


class BFloatType(ir.Type):
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloatType)

    def __hash__(self) -> int:
        return hash(BFloatType)


BF16X32 = ir.VectorType(BFloatType(), 2 * LANES)


@operation(SAME, SAME)
def round_bf16(builder, a):
    """Return `a` rounded half away from zero to what bfloat16 can hold."""
    width = a.type.count
    bits = builder.add(builder.bitcast(a, ir.VectorType(I32, width)), constant(0x8000, I32, width))
    return builder.bitcast(builder.and_(bits, constant(-0x10000, I32, width)), a.type)


@operation(types.void, ANY, INDEX, ANY)
def store_halves(builder, pairs, index, vector):
    """Store a vector that `round_bf16` has rounded as consecutive bfloat16 numbers, from number `index` on."""
    width = vector.type.count
    words = builder.bitcast(vector, ir.VectorType(I16, 2 * width))
    pairs.store(index, builder.lanes(words, range(1, 2 * width, 2)), align=2, unit=I16)


@operation(types.void, ANY, INDEX, INDEX, ANY)
def scatter_halves(builder, pairs, index, stride, vector):
    """Store 16 numbers that `round_bf16` has rounded as pairs, at elements `stride` apart, from `index` on."""
    bits = builder.bitcast(vector, ir.VectorType(I32, LANES))
    for i in range(LANES // 2):
        even, odd = (builder.extract_element(bits, I32(2 * i + half)) for half in range(2))
        pair = builder.or_(builder.lshr(even, I32(16)), odd)
        pairs.store(builder.apart(index, stride, i), pair, align=4)


@operation(types.void, ANY, INDEX, types.float32)
def store_half(builder, pairs, index, value):
    """Store one float, rounded half away from zero, as bfloat16 number `index`."""
    bits = builder.add(builder.bitcast(value, I32), I32(0x8000))
    pairs.store(index, builder.trunc(builder.lshr(bits, I32(16)), I16), align=2, unit=I16)


@operation(types.float32, ANY, INDEX)
def load_half(builder, pairs, index):
    """Return bfloat16 number `index`."""
    half = pairs.load(index, I16, align=2, unit=I16)
    return builder.bitcast(builder.shl(builder.zext(half, I32), I32(16)), F32)


def dot2(builder: Emitter, sums: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """Emit ``vdpbf16ps``: 32 products and 16 sums."""
    a, b = builder.bitcast(a, BF16X32), builder.bitcast(b, BF16X32)
    return builder.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", F32X16, sums, a, b)


def odd_elements(builder: Emitter, pairs: ir.Value) -> ir.Value:
    """Emit the odd elements of pairs, as floats."""
    return builder.bitcast(builder.and_(pairs, constant(-0x10000, I32)), F32X16)


def even_elements(builder: Emitter, pairs: ir.Value) -> ir.Value:
    """Emit the even elements of pairs, as floats."""
    return builder.bitcast(builder.shl(pairs, constant(16, I32)), F32X16)
