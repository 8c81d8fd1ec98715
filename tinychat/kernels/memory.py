"""Loads and stores by flat element of a C-contiguous array, and arrays from their addresses.

Float arrays are float32, or uint16 for float16, which Numba does not have on CPUs: numbers widen when loaded and are
rounded half to even when stored.
"""

import itertools

from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model
from numba.np import arrayobj

from tinychat import processor
from tinychat.kernels.intrinsics import (
    ANY,
    F16,
    F32,
    F32X16,
    I8,
    I16,
    I32,
    I32X16,
    I64,
    INDEX,
    U8X32,
    U8X64,
    Elements,
    Emitter,
    constant,
    f32x16,
    f32x64,
    i32x16,
    operation,
    u8x32,
    u8x64,
)
from tinychat.kernels.setup import ISA
from tinychat.kernels.sizes import LANES

CONVERTS_HALVES = ISA != "generic" or processor.architecture() == processor.ARM


class KindType(types.Opaque):
    """The type of an argument that only has the types of arrays: compiled code finds these by `from_pointers`.

    Python would look at each array that it passes to compiled code, for about a microsecond.
    """

    def __init__(self, kind):
        self.kind = kind
        super().__init__(f"KindOf({kind})")

    @property
    def key(self):
        """The identity of the type."""
        return self.kind


register_model(KindType)(models.OpaqueModel)


@intrinsic
def from_pointers(typingctx, like, pointers):
    """Return a tuple of arrays, of numbers, or of such tuples, of which `pointers_of` made `pointers`.

    like : a tuple of the same types, or an argument of its `KindType`. The caller keeps the arrays alive.
    """
    like_kind = like.kind if isinstance(like, KindType) else like

    def codegen(context, builder, signature, arguments):
        data = arrayobj.make_array(signature.args[1])(context, builder, arguments[1]).data
        indices = itertools.count()

        def next_number():
            return builder.load(builder.gep(data, [I64(next(indices))]))

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

    return like_kind(like, pointers), codegen


def elements_at(element: types.Number):
    """Make the function that returns numbers of a type from an address on, as an array of unknown length."""
    elements = types.Array(element, 1, "C")

    @intrinsic
    def array_at(typingctx, address):
        def codegen(context, builder, signature, arguments):
            return array_from(context, builder, elements, arguments[0], [I64(0)])

        return elements(address), codegen

    return array_at


numbers_at, floats_at = elements_at(types.int64), elements_at(types.float32)


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


def load_floats(builder: Emitter, array: Elements, index: ir.Value) -> ir.Value:
    """Emit the load of 16 consecutive numbers as floats: of float32, float16 (uint16), int8, or exponents (uint8)."""
    if array.dtype == types.uint16:
        return extend_half(builder, array.load(index, ir.VectorType(I16, LANES), align=2))
    if array.dtype == types.uint8:
        return powers_of_two(builder, array.load(index, ir.VectorType(I8, LANES), align=1))
    if array.dtype == types.int8:
        return builder.sitofp(array.load(index, ir.VectorType(I8, LANES), align=1), F32X16)
    return array.load(index, F32X16, align=4)


def powers_of_two(builder: Emitter, exponents: ir.Value) -> ir.Value:
    """Emit 2 to the power of bytes less 127, as floats; 0 for 0."""
    return builder.bitcast(builder.shl(builder.zext(exponents, I32X16), constant(23, I32)), F32X16)


@operation(f32x16, ANY, INDEX)
def load_f32(builder, array, index):
    """Load 16 consecutive numbers as floats, from flat element `index`."""
    return load_floats(builder, array, index)


@operation(f32x64, ANY, INDEX)
def load_f32x64(builder, array, index):
    """Load 64 consecutive float32, from flat element `index`."""
    return array.load(index, f32x64.register, align=4)


@operation(types.void, ANY, INDEX, ANY)
def store_f32(builder, array, index, vector):
    """Store a vector of consecutive floats, from flat element `index`; only 16 at a time as float16."""
    if array.dtype == types.uint16:
        array.store(index, truncate_half(builder, vector), align=2)
    else:
        array.store(index, vector, align=4)


@operation(types.void, ANY, INDEX, INDEX, f32x16)
def scatter_f32(builder, array, index, stride, vector):
    """Store the lanes of a vector as float32 elements `stride` apart, from flat element `index` on."""
    for i in range(LANES):
        array.store(builder.apart(index, stride, i), builder.extract_element(vector, I32(i)), align=4)


@operation(types.void, ANY, INDEX, types.float32)
def store_one(builder, array, index, value):
    """Store a single float at flat element `index`, rounded as a vector would be."""
    if array.dtype == types.uint16:
        array.store(index, builder.extract_element(truncate_half(builder, builder.splat(value)), I32(0)), align=2)
    else:
        array.store(index, value, align=4)


@operation(types.float32, ANY, INDEX)
def load_one(builder, array, index):
    """Load a single float from flat element `index`."""
    if array.dtype == types.uint16:
        vector = extend_half(builder, builder.splat(array.load(index, I16, align=2)))
        return builder.extract_element(vector, I32(0))
    if array.dtype == types.uint8:
        vector = powers_of_two(builder, builder.splat(array.load(index, I8, align=1)))
        return builder.extract_element(vector, I32(0))
    return array.load(index, F32, align=4)


@operation(types.void, ANY, INDEX, types.int32)
def store_byte(builder, array, index, value):
    """Store the low byte of an integer as byte `index`."""
    array.store(index, builder.trunc(value, I8), align=1, unit=I8)


@operation(types.void, ANY, INDEX, i32x16)
def store_codes(builder, codes, index, vector):
    """Store 16 integers as consecutive bytes, from flat element `index` of an array of int8 or uint8."""
    codes.store(index, builder.trunc(vector, ir.VectorType(I8, LANES)), align=1)


@operation(types.int8, ANY, INDEX)
def load_byte(builder, array, index):
    """Return byte `index`, signed."""
    return array.load(index, I8, align=1, unit=I8)


@operation(u8x64, ANY, INDEX)
def load_line(builder, array, index):
    """Load a line of 64 bytes, from byte `index`."""
    return array.load(index, U8X64, align=1)


@operation(u8x64, ANY, INDEX)
def load_line_again(builder, array, index):
    """Load a line that was loaded before, and whose register has another use meanwhile."""
    return array.load_again(index, U8X64, align=1)


@operation(u8x32, ANY, INDEX)
def load_half_line(builder, array, index):
    """Load the 32 bytes that half a row block has of a line."""
    return array.load(index, U8X32, align=1)


@operation(types.void, ANY, INDEX)
def prefetch(builder, array, index):
    """Prefetch the cache line of flat element `index`; an address past the end is harmless."""
    emit_prefetch(builder, array.pointer(index, I8), 3)


@operation(types.void, ANY, INDEX)
def prefetch_far(builder, array, index):
    """Prefetch a cache line into the second-level cache."""
    emit_prefetch(builder, array.pointer(index, I8), 2)


@operation(types.int64, ANY, INDEX)
def address_of(builder, array, index):
    """Return the address of flat element `index`."""
    return builder.ptrtoint(array.pointer(index, I8), I64)


@operation(types.void, types.int64)
def prefetch_address(builder, address):
    """Prefetch a cache line into the second-level cache by its address; any address is harmless."""
    emit_prefetch(builder, builder.inttoptr(address, I8.as_pointer()), 2)


@operation(types.void, ANY, INDEX)
def prefetch_to_write(builder, array, index):
    """Prefetch the cache line of flat element `index` for a store; an address past the end is harmless."""
    emit_prefetch(builder, array.pointer(index, I8), 3, writes=1)


def emit_prefetch(builder: Emitter, pointer: ir.Value, locality: int, writes: int = 0) -> None:
    """Emit a prefetch; locality : 3 for all levels, 2 for all but the first; writes : 1 for a store, 0 for a load."""
    data = I32(1)
    builder.intrinsic("llvm.prefetch.p0", ir.VoidType(), pointer, I32(writes), I32(locality), data)


def extend_half(builder: Emitter, bits: ir.Value) -> ir.Value:
    """Emit float16 -> float32, exactly."""
    if CONVERTS_HALVES:
        return builder.fpext(builder.bitcast(bits, ir.VectorType(F16, LANES)), F32X16)
    # Shift exponent and mantissa, then multiply by 2**112 to correct the exponent's bias;
    # the multiplication is exact and handles subnormal numbers. Infinity and NaN have an exponent of their own.
    wide = builder.zext(bits, I32X16)
    sign = builder.shl(builder.and_(wide, constant(0x8000, I32)), constant(16, I32))
    magnitude = builder.shl(builder.and_(wide, constant(0x7FFF, I32)), constant(13, I32))
    scaled = builder.bitcast(builder.fmul(builder.bitcast(magnitude, F32X16), constant(2.0**112)), I32X16)
    endless = builder.icmp_unsigned(">=", magnitude, constant(0x0F800000, I32))
    value = builder.select(endless, builder.or_(magnitude, constant(0x7F800000, I32)), scaled)
    return builder.bitcast(builder.or_(value, sign), F32X16)


def truncate_half(builder: Emitter, vector: ir.Value) -> ir.Value:
    """Emit float32 -> float16, rounded half to even; infinite from 65520 on."""
    if CONVERTS_HALVES:
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
