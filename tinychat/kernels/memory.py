"""Loads and stores of vectors, by flat element of a C-contiguous array.

Float arrays are float32, or uint16 standing for float16, which Numba does not have on CPUs: values widen when
loaded and are rounded half to even when stored.
"""

import itertools

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model
from numba.np import arrayobj

from tinychat.kernels.setup import ISA
from tinychat.kernels.simd import F16, F32, F32X16, I8, I16, I32, I32X16, constant, f32x16, f32x64, splat
from tinychat.kernels.sizes import LANES

HAS_F16C = ISA != "generic"


def element_pointer(context, builder, array_type, array, index, pointee: ir.Type) -> ir.Value:
    """Emit the address of the flat element `index` of a C-contiguous array."""
    data = arrayobj.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), pointee.as_pointer())


class KindType(types.Opaque):
    """Stands for arrays of which a compiled function only needs the types: it finds them by `from_pointers`.

    Python would look at each array that it passes to compiled code, for about a microsecond.
    """

    def __init__(self, kind):
        self.kind = kind
        super().__init__(f"KindOf({kind})")

    @property
    def key(self):
        """What it is told from others by."""
        return self.kind


register_model(KindType)(models.OpaqueModel)


@intrinsic
def from_pointers(typingctx, like, places):
    """Return a tuple of arrays, of numbers, or of such tuples, from where `pointers_of` found them.

    like : a tuple of the same types, or what is of its `KindType`. Whoever wrote the places keeps the arrays alive.
    """
    like_kind = like.kind if isinstance(like, KindType) else like

    def codegen(context, builder, signature, arguments):
        data = arrayobj.make_array(signature.args[1])(context, builder, arguments[1]).data
        indices = itertools.count()

        def next_number():
            return builder.load(builder.gep(data, [ir.Constant(ir.IntType(64), next(indices))]))

        def build(kind):
            if isinstance(kind, types.Array):
                if kind.layout != "C":
                    raise TypeError(f"{kind} is not C-contiguous")
                address, *shape = (next_number() for _ in range(1 + kind.ndim))
                return array_from(context, builder, kind, address, shape)
            if isinstance(kind, types.BaseTuple):
                return context.make_tuple(builder, kind, [build(part) for part in kind.types])
            if isinstance(kind, types.Float):
                number = builder.bitcast(next_number(), ir.DoubleType())
                return context.cast(builder, number, types.float64, kind)
            return context.cast(builder, next_number(), types.int64, kind)

        return build(like_kind)

    return like_kind(like, places), codegen


@intrinsic
def numbers_at(typingctx, address):
    """Return int64 numbers from an address on, as an array whose length nobody knows."""
    numbers = types.Array(types.int64, 1, "C")

    def codegen(context, builder, signature, arguments):
        return array_from(context, builder, numbers, arguments[0], [ir.Constant(ir.IntType(64), 0)])

    return numbers(address), codegen


def array_from(context, builder, kind: types.Array, address: ir.Value, shape: list[ir.Value]) -> ir.Value:
    """Emit a C-contiguous array of that type at an address, which does not own its memory."""
    array = arrayobj.make_array(kind)(context, builder)
    itemsize = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    strides = [itemsize]
    for length in shape[:0:-1]:
        strides.insert(0, builder.mul(strides[0], length))
    data = builder.inttoptr(address, array.data.type)
    arrayobj.populate_array(array, data, shape, strides, itemsize, meminfo=None)
    return array._getvalue()


@intrinsic
def load_f32(typingctx, array, index):
    """Load 16 consecutive floats, from flat element `index`."""
    half = array.dtype == types.uint16

    def codegen(context, builder, signature, arguments):
        stored = ir.VectorType(I16 if half else F32, LANES)
        pointer = element_pointer(context, builder, signature.args[0], *arguments, stored)
        vector = builder.load(pointer, align=2 if half else 4)
        return extend_half(builder, vector) if half else vector

    return f32x16(array, types.intp), codegen


@intrinsic
def load_f32x64(typingctx, array, index):
    """Load 64 consecutive float32, from flat element `index`."""

    def codegen(context, builder, signature, arguments):
        pointer = element_pointer(context, builder, signature.args[0], *arguments, f32x64.register)
        return builder.load(pointer, align=4)

    return f32x64(array, types.intp), codegen


@intrinsic
def store_f32(typingctx, array, index, vector):
    """Store a vector of consecutive floats, from flat element `index`; only 16 at a time as float16."""
    half = array.dtype == types.uint16

    def codegen(context, builder, signature, arguments):
        container, position, value = arguments
        stored = truncate_half(builder, value) if half else value
        pointer = element_pointer(context, builder, signature.args[0], container, position, stored.type)
        builder.store(stored, pointer, align=2 if half else 4)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), codegen


@intrinsic
def scatter_f32(typingctx, array, index, stride, vector):
    """Store the lanes of a vector as float32 elements `stride` apart, from flat element `index` on."""

    def codegen(context, builder, signature, arguments):
        container, first, step, value = arguments
        for i in range(LANES):
            place = builder.add(first, builder.mul(step, ir.Constant(step.type, i)))
            pointer = element_pointer(context, builder, signature.args[0], container, place, F32)
            builder.store(builder.extract_element(value, I32(i)), pointer, align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, vector), codegen


@intrinsic
def store_one(typingctx, array, index, value):
    """Store a single float at flat element `index`, rounded as a vector would be."""
    half = array.dtype == types.uint16

    def codegen(context, builder, signature, arguments):
        container, position, stored = arguments
        if half:
            stored = builder.extract_element(truncate_half(builder, splat(builder, stored)), I32(0))
        pointer = element_pointer(context, builder, signature.args[0], container, position, stored.type)
        builder.store(stored, pointer, align=2 if half else 4)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.float32), codegen


@intrinsic
def load_one(typingctx, array, index):
    """Load a single float from flat element `index`."""
    half = array.dtype == types.uint16

    def codegen(context, builder, signature, arguments):
        stored = I16 if half else F32
        pointer = element_pointer(context, builder, signature.args[0], *arguments, stored)
        value = builder.load(pointer, align=2 if half else 4)
        return builder.extract_element(extend_half(builder, splat(builder, value)), I32(0)) if half else value

    return types.float32(array, types.intp), codegen


@intrinsic
def store_code(typingctx, codes, index, value):
    """Store one int8 as flat element `index`."""

    def codegen(context, builder, signature, arguments):
        container, position, stored = arguments
        builder.store(stored, element_pointer(context, builder, signature.args[0], container, position, I8), align=1)
        return context.get_dummy_value()

    return types.void(codes, types.intp, types.int8), codegen


@intrinsic
def load_code(typingctx, codes, index):
    """Return flat element `index` of an array of int8."""

    def codegen(context, builder, signature, arguments):
        return builder.load(element_pointer(context, builder, signature.args[0], *arguments, I8), align=1)

    return types.int8(codes, types.intp), codegen


def prefetch_codegen(locality: int):
    """Return code that asks for the cache line of an element: 3 for all levels, 2 for all but the first."""

    def codegen(context, builder, signature, arguments):
        pointer = element_pointer(context, builder, signature.args[0], *arguments, I8)
        read, data = I32(0), I32(1)
        function_type = ir.FunctionType(ir.VoidType(), [pointer.type, I32, I32, I32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        builder.call(function, [pointer, read, I32(locality), data])
        return context.get_dummy_value()

    return codegen


@intrinsic
def prefetch(typingctx, array, index):
    """Ask for the cache line of flat element `index`; an address past the end is harmless."""
    return types.void(array, types.intp), prefetch_codegen(3)


@intrinsic
def prefetch_far(typingctx, array, index):
    """Ask for a cache line that is wanted only after more than the first-level cache holds."""
    return types.void(array, types.intp), prefetch_codegen(2)


def extend_half(builder: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """Emit float16 -> float32, exactly."""
    if HAS_F16C:
        return builder.fpext(builder.bitcast(bits, ir.VectorType(F16, LANES)), F32X16)
    # Shift exponent and mantissa into place, then multiply by 2**112 to correct the exponent's bias;
    # the multiplication is exact and handles subnormal numbers. Infinity and NaN have an exponent of their own.
    wide = builder.zext(bits, I32X16)
    sign = builder.shl(builder.and_(wide, constant(0x8000, I32)), constant(16, I32))
    magnitude = builder.shl(builder.and_(wide, constant(0x7FFF, I32)), constant(13, I32))
    scaled = builder.bitcast(builder.fmul(builder.bitcast(magnitude, F32X16), constant(2.0**112)), I32X16)
    endless = builder.icmp_unsigned(">=", magnitude, constant(0x0F800000, I32))
    value = builder.select(endless, builder.or_(magnitude, constant(0x7F800000, I32)), scaled)
    return builder.bitcast(builder.or_(value, sign), F32X16)


def truncate_half(builder: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    """Emit float32 -> float16, rounded half to even; infinite from 65520 on."""
    if HAS_F16C:
        return builder.bitcast(builder.fptrunc(vector, ir.VectorType(F16, LANES)), ir.VectorType(I16, LANES))
    bits = builder.bitcast(vector, I32X16)
    sign = builder.and_(builder.lshr(bits, constant(16, I32)), constant(0x8000, I32))
    magnitude = builder.and_(bits, constant(0x7FFFFFFF, I32))
    # Normal: rebase the exponent, add half an ulp (less one when even), drop 13 bits.
    odd = builder.and_(builder.lshr(magnitude, constant(13, I32)), constant(1, I32))
    rebased = builder.add(magnitude, constant((-112 << 23) + 0xFFF, I32))
    normal = builder.lshr(builder.add(rebased, odd), constant(13, I32))
    # Subnormal: adding 0.5 puts the 10 bits that remain at the mantissa's end, rounded by the hardware.
    shifted = builder.fadd(builder.bitcast(magnitude, F32X16), constant(0.5))
    subnormal = builder.sub(builder.bitcast(shifted, I32X16), constant(0x3F000000, I32))
    small = builder.icmp_unsigned("<", magnitude, constant(0x38800000, I32))
    finite = builder.select(small, subnormal, normal)
    # Of a NaN the quiet bit stays: enough to be one.
    is_nan = builder.icmp_unsigned(">", magnitude, constant(0x7F800000, I32))
    endless = builder.select(is_nan, constant(0x7E00, I32), constant(0x7C00, I32))
    too_large = builder.icmp_unsigned(">=", magnitude, constant(0x477FF000, I32))
    rounded = builder.or_(builder.select(too_large, endless, finite), sign)
    return builder.trunc(rounded, ir.VectorType(I16, LANES))
