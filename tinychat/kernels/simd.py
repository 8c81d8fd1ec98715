"""Vectors as values of a jitted function: ``f32x16``, ``i32x16``, ``u8x64``, and ``f32x64``, four registers at once.

Each operation is a few lines of LLVM IR. Vectors are as wide on every processor: where registers are narrower LLVM
splits them, so one kernel source and one weight layout serve all. A lane is an output row, a key or a channel; lanes
meet only in `sum_lanes` and `max_lanes`, in a fixed order.
"""

import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import PrimitiveModel, register_default
from numba.extending import intrinsic

from tinychat.kernels.jit import always_inline
from tinychat.kernels.sizes import LANES

F32 = ir.FloatType()
F16 = ir.HalfType()
I8, I16, I32 = (ir.IntType(bits) for bits in (8, 16, 32))
F32X16 = ir.VectorType(F32, 16)
I32X16 = ir.VectorType(I32, 16)
U8X64 = ir.VectorType(I8, 64)


class Vector(types.Type):
    """A SIMD register as a Numba type."""

    def __init__(self, name: str, register: ir.VectorType):
        self.register = register
        super().__init__(name)


@register_default(Vector)
class VectorModel(PrimitiveModel):
    """Numba keeps a vector as the LLVM vector it is."""

    def __init__(self, manager: Any, fe_type: Vector):
        super().__init__(manager, fe_type, fe_type.register)


f32x16 = Vector("f32x16", F32X16)
f32x64 = Vector("f32x64", ir.VectorType(F32, 64))
i32x16 = Vector("i32x16", I32X16)
u8x64 = Vector("u8x64", U8X64)


FLOATS = object()  # stands for the float vector, of whatever width, that the first argument is


def operation(result: Any, *operands: Any) -> Callable[..., Any]:
    """Make a jitted operation of a function that emits its IR."""

    def decorate(emit: Callable[..., ir.Value]) -> Any:
        def typed(typingctx, *arguments):
            wanted = [arguments[0] if kind is FLOATS else kind for kind in operands]

            def codegen(context, builder, signature, values):
                cast = zip(values, signature.args, wanted)
                return emit(builder, *(context.cast(builder, v, given, want) for v, given, want in cast))

            return (arguments[0] if result is FLOATS else result)(*arguments), codegen

        typed.__name__, typed.__doc__ = emit.__name__, emit.__doc__
        # Numba counts the arguments by the signature: emit's, whose first is the builder.
        typed.__signature__ = inspect.signature(emit)
        return intrinsic(typed)

    return decorate


def call(builder: ir.IRBuilder, name: str, result: ir.Type, *values: ir.Value) -> ir.Value:
    """Call an LLVM intrinsic."""
    function_type = ir.FunctionType(result, [value.type for value in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), values)


def splat(builder: ir.IRBuilder, value: ir.Value, lanes: int = LANES) -> ir.Value:
    """Emit a vector whose lanes all hold `value`."""
    vector = ir.VectorType(value.type, lanes)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, I32(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))


def constant(value: float, element: ir.Type = F32, lanes: int = LANES) -> ir.Constant:
    """Emit a vector constant."""
    return ir.Constant(ir.VectorType(element, lanes), [value] * lanes)


@operation(f32x16, types.float32)
def splat_f32(builder, value):
    """Return a vector of 16 times `value`."""
    return splat(builder, value)


@operation(i32x16, types.int32)
def splat_i32(builder, value):
    """Return a vector of 16 times `value`."""
    return splat(builder, value)


@operation(FLOATS, FLOATS, FLOATS)
def add(builder, a, b):
    """Return ``a + b``."""
    return builder.fadd(a, b)


@operation(FLOATS, FLOATS, FLOATS)
def subtract(builder, a, b):
    """Return ``a - b``."""
    return builder.fsub(a, b)


@operation(FLOATS, FLOATS, FLOATS)
def multiply(builder, a, b):
    """Return ``a * b``."""
    return builder.fmul(a, b)


@operation(FLOATS, FLOATS, FLOATS)
def divide(builder, a, b):
    """Return ``a / b``."""
    return builder.fdiv(a, b)


def fused(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """Emit ``a * b + c``, rounded once."""
    return call(builder, f"llvm.fma.v{a.type.count}f32", a.type, a, b, c)


@operation(FLOATS, FLOATS, FLOATS, FLOATS)
def fma(builder, a, b, c):
    """Return ``a * b + c``, rounded once."""
    return fused(builder, a, b, c)


@operation(FLOATS, FLOATS, types.float32)
def like(builder, a, value):
    """Return a vector as wide as `a` of `value` in every lane."""
    return splat(builder, value, a.type.count)


@operation(FLOATS, FLOATS)
def lane_numbers(builder, a):
    """Return a vector as wide as `a` of the numbers 0, 1, 2, ..."""
    return ir.Constant(a.type, list(range(a.type.count)))


@operation(FLOATS, FLOATS, FLOATS)
def maximum(builder, a, b):
    """Return the larger of each lane; `b` where either is NaN."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@operation(FLOATS, FLOATS, FLOATS)
def minimum(builder, a, b):
    """Return the smaller of each lane; `b` where either is NaN."""
    return builder.select(builder.fcmp_ordered("<", a, b), a, b)


@operation(f32x16, f32x16)
def absolute(builder, a):
    """Return ``|a|``."""
    return call(builder, "llvm.fabs.v16f32", F32X16, a)


@operation(f32x16, f32x16)
def nearest(builder, a):
    """Return `a` rounded half to even."""
    return call(builder, "llvm.rint.v16f32", F32X16, a)


@operation(i32x16, f32x16)
def to_i32(builder, a):
    """Return the integers of whole numbers."""
    return builder.fptosi(a, I32X16)


@operation(FLOATS, FLOATS, FLOATS)
def shift_exponent(builder, a, n):
    """Return ``a * 2**n`` where both are normal numbers; n : a whole number plus `ROUNDER`."""
    whole = ir.VectorType(I32, a.type.count)
    steps = builder.shl(builder.bitcast(n, whole), constant(23, I32, a.type.count))
    return builder.bitcast(builder.add(builder.bitcast(a, whole), steps), a.type)


def lanes_between(builder: ir.IRBuilder, width: int, start: ir.Value, stop: ir.Value) -> ir.Value:
    """Emit which lanes lie in start..stop."""
    lanes = ir.Constant(ir.VectorType(I32, width), list(range(width)))
    after = builder.icmp_signed(">=", lanes, splat(builder, start, width))
    before = builder.icmp_signed("<", lanes, splat(builder, stop, width))
    return builder.and_(after, before)


@operation(FLOATS, FLOATS, types.int32, types.int32)
def zero_outside(builder, a, start, stop):
    """Return `a` with 0 in every lane outside start..stop."""
    inside = lanes_between(builder, a.type.count, start, stop)
    return builder.select(inside, a, constant(0.0, F32, a.type.count))


@operation(FLOATS, FLOATS, types.int32, types.int32, types.float32)
def fill_outside(builder, a, start, stop, value):
    """Return `a` with `value` in every lane outside start..stop."""
    width = a.type.count
    return builder.select(lanes_between(builder, width, start, stop), a, splat(builder, value, width))


def halve(builder: ir.IRBuilder, vector: ir.Value, combine: Callable[..., ir.Value]) -> ir.Value:
    """Emit the combination of all lanes: upper half onto lower half until one is left."""
    width = vector.type.count
    while width > 1:
        width //= 2
        lower = ir.Constant(ir.VectorType(I32, width), list(range(width)))
        upper = ir.Constant(ir.VectorType(I32, width), list(range(width, 2 * width)))
        halves = (builder.shuffle_vector(vector, vector, lanes) for lanes in (lower, upper))
        vector = combine(*halves)
    return builder.extract_element(vector, I32(0))


@operation(types.float32, FLOATS)
def sum_lanes(builder, a):
    """Return the sum of the lanes, by halves."""
    return halve(builder, a, builder.fadd)


@operation(types.int32, i32x16)
def sum_lanes_i32(builder, a):
    """Return the sum of the lanes."""
    return halve(builder, a, builder.add)


@operation(types.float32, FLOATS)
def max_lanes(builder, a):
    """Return the largest lane."""
    return halve(builder, a, lambda x, y: builder.select(builder.fcmp_ordered(">", x, y), x, y))


@operation(i32x16, i32x16, i32x16)
def add_i32(builder, a, b):
    """Return ``a + b``."""
    return builder.add(a, b)


@operation(i32x16, i32x16, i32x16)
def subtract_i32(builder, a, b):
    """Return ``a - b``."""
    return builder.sub(a, b)


@operation(i32x16, i32x16, types.int32)
def shift_left(builder, a, bits):
    """Return ``a * 2**bits``."""
    return builder.shl(a, splat(builder, bits))


@operation(i32x16, i32x16, types.int32)
def shift_right(builder, a, bits):
    """Return ``a / 2**bits``, rounded down."""
    return builder.ashr(a, splat(builder, bits))


# Added to a float below 2**22 it rounds that to a whole number, which then stands in the sum's lowest bits.
ROUNDER = 1.5 * 2.0**23


@always_inline
def exp2(x):
    """Return ``2 ** x`` within 1 ulp, for x clamped to -126..127; NaN stays."""
    return exp2_up_to_127(minimum(like(x, 127.0), x))


@always_inline
def exp2_up_to_127(x):
    """Return the same for x that is no more than 127.

    ``x = n + r`` with n whole and |r| <= 1/2; ``2**r`` is the polynomial of degree 6 of least relative error (2e-9)
    that is exact at 0, and n is added to its exponent.
    """
    x = maximum(like(x, -126.0), x)
    n = add(x, like(x, ROUNDER))
    r = subtract(x, subtract(n, like(x, ROUNDER)))
    p = like(x, 1.5353366727503806e-4)
    p = fma(p, r, like(x, 1.3398879796102435e-3))
    p = fma(p, r, like(x, 9.618437382550778e-3))
    p = fma(p, r, like(x, 5.550332453862628e-2))
    p = fma(p, r, like(x, 0.24022647912831646))
    p = fma(p, r, like(x, 0.6931472028663254))
    p = fma(p, r, like(x, 1.0))
    return shift_exponent(p, n)
