"""bfloat16: the upper half of a float32, two to a 32-bit lane, and the product of two such pairs.

A lane of *pairs*, carried as uint32, holds an even element in its low half and the odd one after it in its high half.
A step of a product adds the products of both, each rounded once, odd element first: that is how Intel's reference
defines AVX-512 BF16's ``vdpbf16ps``, and what two fused multiply-adds of the widened elements compute. The bits are the
same, save that the instruction takes factors, sums and results below 2**-126 for zero.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np import arrayobj

from tinychat.kernels.simd import F32, F32X16, FLOATS, I16, I32, call, constant, operation
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


def half_pointer(context, builder, array_type, array, index) -> ir.Value:
    """Emit the address of bfloat16 number `index` of an array of pairs."""
    data = arrayobj.make_array(array_type)(context, builder, array).data
    return builder.gep(builder.bitcast(data, I16.as_pointer()), [index])


@operation(FLOATS, FLOATS)
def round_bf16(builder, a):
    """Return `a` rounded half away from zero to what bfloat16 can hold."""
    width = a.type.count
    bits = builder.add(builder.bitcast(a, ir.VectorType(I32, width)), constant(0x8000, I32, width))
    return builder.bitcast(builder.and_(bits, constant(-0x10000, I32, width)), a.type)


@intrinsic
def store_halves(typingctx, pairs, index, vector):
    """Store a vector that `round_bf16` has rounded as consecutive bfloat16 numbers, from number `index` on."""
    width = vector.register.count

    def codegen(context, builder, signature, arguments):
        container, first, value = arguments
        words = builder.bitcast(value, ir.VectorType(I16, 2 * width))
        upper = ir.Constant(ir.VectorType(I32, width), list(range(1, 2 * width, 2)))
        halves = builder.shuffle_vector(words, words, upper)
        pointer = half_pointer(context, builder, signature.args[0], container, first)
        builder.store(halves, builder.bitcast(pointer, halves.type.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.void(pairs, types.intp, vector), codegen


@intrinsic
def scatter_halves(typingctx, pairs, index, stride, vector):
    """Store 16 numbers that `round_bf16` has rounded as pairs, at elements `stride` apart, from `index` on."""

    def codegen(context, builder, signature, arguments):
        container, first, step, value = arguments
        bits = builder.bitcast(value, ir.VectorType(I32, LANES))
        data = arrayobj.make_array(signature.args[0])(context, builder, container).data
        for i in range(LANES // 2):
            even, odd = (builder.extract_element(bits, I32(2 * i + half)) for half in range(2))
            pair = builder.or_(builder.lshr(even, I32(16)), odd)
            place = builder.add(first, builder.mul(step, ir.Constant(step.type, i)))
            builder.store(pair, builder.gep(data, [place]), align=4)
        return context.get_dummy_value()

    return types.void(pairs, types.intp, types.intp, vector), codegen


@intrinsic
def store_half(typingctx, pairs, index, value):
    """Store one float, rounded half away from zero, as bfloat16 number `index`."""

    def codegen(context, builder, signature, arguments):
        container, position, stored = arguments
        bits = builder.add(builder.bitcast(stored, I32), I32(0x8000))
        half = builder.trunc(builder.lshr(bits, I32(16)), I16)
        builder.store(half, half_pointer(context, builder, signature.args[0], container, position), align=2)
        return context.get_dummy_value()

    return types.void(pairs, types.intp, types.float32), codegen


@intrinsic
def load_half(typingctx, pairs, index):
    """Return bfloat16 number `index`."""

    def codegen(context, builder, signature, arguments):
        half = builder.load(half_pointer(context, builder, signature.args[0], *arguments), align=2)
        return builder.bitcast(builder.shl(builder.zext(half, I32), I32(16)), F32)

    return types.float32(pairs, types.intp), codegen


def dot2(builder: ir.IRBuilder, sums: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """Emit ``vdpbf16ps``: 32 products and 16 sums."""
    a, b = builder.bitcast(a, BF16X32), builder.bitcast(b, BF16X32)
    return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", F32X16, sums, a, b)


def odd_elements(builder: ir.IRBuilder, pairs: ir.Value) -> ir.Value:
    """Emit the odd elements of pairs, as floats."""
    return builder.bitcast(builder.and_(pairs, constant(-0x10000, I32)), F32X16)


def even_elements(builder: ir.IRBuilder, pairs: ir.Value) -> ir.Value:
    """Emit the even elements of pairs, as floats."""
    return builder.bitcast(builder.shl(pairs, constant(16, I32)), F32X16)
