"""Vectors as values of a device function: ``f32x16``, ``i32x16``, ``u8x64``, and ``f32x64``, four registers at once.

The operators ``+ - * /``, and ``<< >>`` of integers, work lane by lane; a number beside a vector is in all of its
lanes. A lane is an output row, a key or a channel; lanes meet only in `sum_lanes` and `max_lanes`, in a fixed order.
"""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import lower_builtin, type_callable

from tinychat.kernels.intrinsics import (
    ANY,
    F32,
    F32X16,
    I32,
    I32X16,
    I64,
    INDEX,
    SAME,
    Elements,
    Emitter,
    Vector,
    constant,
    f32x16,
    f32x64,
    i32x16,
    operation,
)
from tinychat.kernels.jit import always_inline
from tinychat.kernels.sizes import LANES

# The LLVM instructions of operators, by the type of the lanes.
_OPERATORS = {
    operator.add: {types.float32: "fadd", types.int32: "add"},
    operator.sub: {types.float32: "fsub", types.int32: "sub"},
    operator.mul: {types.float32: "fmul"},
    operator.truediv: {types.float32: "fdiv"},
    operator.lshift: {types.int32: "shl"},
    operator.rshift: {types.int32: "ashr"},
}


def _define(function: Callable[[Any, Any], Any], instructions: dict[types.Type, str]) -> None:
    """Define an operator of two vectors, or of a vector and a number."""

    @type_callable(function)
    def typer_of(context):
        def typer(a, b):
            vectors = {kind for kind in (a, b) if isinstance(kind, Vector)}
            kind = vectors.pop() if len(vectors) == 1 else None
            return kind if kind is not None and kind.lane in instructions else None

        return typer

    def lower(context, builder, signature, arguments):
        kind = signature.return_type
        a, b = (context.cast(builder, value, given, kind) for value, given in zip(arguments, signature.args))
        return getattr(builder, instructions[kind.lane])(a, b)

    for operands in ((Vector, Vector), (Vector, types.Number), (types.Number, Vector)):
        lower_builtin(function, *operands)(lower)


for _function, _instructions in _OPERATORS.items():
    _define(_function, _instructions)


@operation(SAME, SAME)
def swapped(builder, a):
    """Return the lanes in pairs, of each the second first."""
    return builder.lanes(a, [lane ^ 1 for lane in range(a.type.count)])


@operation(f32x16, types.float32)
def splat_f32(builder, value):
    """Return 16 times `value`."""
    return builder.splat(value)


@operation(i32x16, types.int32)
def splat_i32(builder, value):
    """Return 16 times `value`."""
    return builder.splat(value)


@operation(SAME, SAME, SAME, SAME)
def fma(builder, a, b, c):
    """Return ``a * b + c``, rounded once."""
    return builder.fused(a, b, c)


@operation(SAME, SAME)
def lane_numbers(builder, a):
    """Return a vector as wide as `a` of the numbers 0, 1, 2, ..."""
    return ir.Constant(a.type, list(range(a.type.count)))


def larger(builder: Emitter, a: ir.Value, b: ir.Value) -> ir.Value:
    """Emit the larger of each lane; `b` where either is NaN."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@operation(SAME, SAME, SAME)
def maximum(builder, a, b):
    """Return the larger of each lane; `b` where either is NaN."""
    return larger(builder, a, b)


@operation(SAME, SAME, SAME)
def minimum(builder, a, b):
    """Return the smaller of each lane; `b` where either is NaN."""
    return builder.select(builder.fcmp_ordered("<", a, b), a, b)


@operation(f32x16, f32x16)
def absolute(builder, a):
    """Return ``|a|``."""
    return builder.intrinsic("llvm.fabs.v16f32", F32X16, a)


@operation(f32x16, f32x16)
def nearest(builder, a):
    """Return `a` rounded half to even."""
    return builder.intrinsic("llvm.rint.v16f32", F32X16, a)


@operation(i32x16, f32x16)
def to_i32(builder, a):
    """Return the integers of whole numbers."""
    return builder.fptosi(a, I32X16)


@operation(SAME, SAME, SAME)
def shift_exponent(builder, a, n):
    """Return ``a * 2**n`` where both are normal numbers; n : a whole number plus `ROUNDER`."""
    whole = ir.VectorType(I32, a.type.count)
    steps = builder.shl(builder.bitcast(n, whole), constant(23, I32, a.type.count))
    return builder.bitcast(builder.add(builder.bitcast(a, whole), steps), a.type)


def lanes_between(builder: Emitter, width: int, start: ir.Value, stop: ir.Value) -> ir.Value:
    """Emit a mask of the lanes in start..stop."""
    lanes = ir.Constant(ir.VectorType(I32, width), list(range(width)))
    after = builder.icmp_signed(">=", lanes, builder.splat(start, width))
    before = builder.icmp_signed("<", lanes, builder.splat(stop, width))
    return builder.and_(after, before)


@operation(SAME, SAME, types.int32, types.int32)
def zero_outside(builder, a, start, stop):
    """Return `a` with 0 in every lane outside start..stop."""
    inside = lanes_between(builder, a.type.count, start, stop)
    return builder.select(inside, a, constant(0.0, F32, a.type.count))


@operation(SAME, SAME, types.int32, types.int32, types.float32)
def fill_outside(builder, a, start, stop, value):
    """Return `a` with `value` in every lane outside start..stop."""
    width = a.type.count
    return builder.select(lanes_between(builder, width, start, stop), a, builder.splat(value, width))


def halve(builder: Emitter, vector: ir.Value, combine: Callable[..., ir.Value]) -> ir.Value:
    """Emit the reduction of all lanes: upper half onto lower half until one is left."""
    width = vector.type.count
    while width > 1:
        width //= 2
        lower, upper = range(width), range(width, 2 * width)
        vector = combine(builder.lanes(vector, lower), builder.lanes(vector, upper))
    return builder.extract_element(vector, I32(0))


@operation(types.float32, SAME)
def sum_lanes(builder, a):
    """Return the sum of the lanes, by halves."""
    return halve(builder, a, builder.fadd)


@operation(types.int32, i32x16)
def sum_lanes_i32(builder, a):
    """Return the sum of the lanes."""
    return halve(builder, a, builder.add)


@operation(types.float32, SAME)
def max_lanes(builder, a):
    """Return the largest lane."""
    return halve(builder, a, partial(larger, builder))


def joined_quarters(builder: Emitter, vector: ir.Value, combine: Callable[..., ir.Value]) -> ir.Value:
    """Emit the combination of the first and third quarter with that of the second and fourth, lane by lane."""
    first, second, third, fourth = builder.parts(vector, LANES)
    return combine(combine(first, third), combine(second, fourth))


@operation(f32x16, f32x64)
def sum_quarters(builder, a):
    """Return the sums of the four numbers that are 16 lanes apart."""
    return joined_quarters(builder, a, builder.fadd)


@operation(f32x16, f32x64)
def max_quarters(builder, a):
    """Return the largest of the four numbers that are 16 lanes apart."""
    return joined_quarters(builder, a, partial(larger, builder))


def halve_rows(builder: Emitter, array: Elements, index: ir.Value, combine: Callable[..., ir.Value]) -> ir.Value:
    """Emit a vector of the reductions of 16 vectors, from flat element `index` on, each as `halve` reduces it."""
    rows = [array.load(builder.add(index, I64(r * LANES)), F32X16, align=4) for r in range(LANES)]
    width = LANES
    while width > 1:
        # The lower half of each row of one vector and of another, beside the upper ones.
        starts = [first + side for first in range(0, LANES, width) for side in (0, LANES)]
        width //= 2
        lower, upper = ([start + half + i for start in starts for i in range(width)] for half in (0, width))
        pairs = zip(rows[: len(rows) // 2], rows[len(rows) // 2 :])
        rows = [combine(builder.chosen(*pair, lower), builder.chosen(*pair, upper)) for pair in pairs]
    return rows[0]


@operation(f32x16, ANY, INDEX)
def sum_of_rows(builder, array, index):
    """Return the sums of 16 vectors, from flat element `index` on, each that of `sum_lanes`."""
    return halve_rows(builder, array, index, builder.fadd)


@operation(f32x16, ANY, INDEX)
def max_of_rows(builder, array, index):
    """Return the largest lanes of 16 vectors, from flat element `index` on."""
    return halve_rows(builder, array, index, partial(larger, builder))


LOG2_E = 1.4426950408889634
# Added to a float below 2**22 it rounds that to a whole number, which is in the sum's lowest bits.
ROUNDER = 1.5 * 2.0**23


@always_inline
def exp2(x):
    """Return ``2 ** x`` within 1 ulp, for x clamped to -126..127; NaN stays."""
    return exp2_up_to_127(minimum(127.0, x))


@always_inline
def exp2_up_to_127(x):
    """Return the same for x <= 127.

    ``x = n + r`` with n whole and |r| <= 1/2; ``2**r`` is the polynomial of degree 6 of least relative error (2e-9)
    that is exact at 0, and n is added to its exponent.
    """
    n, r = whole_and_rest(x)
    p = fma(1.5353366727503806e-4, r, 1.3398879796102435e-3)
    p = fma(p, r, 9.618437382550778e-3)
    p = fma(p, r, 5.550332453862628e-2)
    p = fma(p, r, 0.24022647912831646)
    p = fma(p, r, 0.6931472028663254)
    p = fma(p, r, 1.0)
    return shift_exponent(p, n)


@always_inline
def coarse_exp2_up_to_127(x):
    """Return ``2 ** x`` within a relative 3e-6, for x <= 127 clamped to -126: the polynomial is of degree 4."""
    n, r = whole_and_rest(x)
    p = fma(9.582853144190549e-3, r, 5.59064260641599e-2)
    p = fma(p, r, 0.2402409861874121)
    p = fma(p, r, 0.6931241932471852)
    p = fma(p, r, 1.0)
    return shift_exponent(p, n)


@always_inline
def whole_and_rest(x):
    """Return the whole number nearest to x, at least -126, plus `ROUNDER`; and what is left of x."""
    x = maximum(-126.0, x)
    n = x + ROUNDER
    return n, x - (n - ROUNDER)


@always_inline
def sigmoid(v):
    """Return ``1 / (1 + exp(-v))`` of 16 numbers."""
    return 1.0 / (exp2(v * -LOG2_E) + 1.0)


@always_inline
def softplus(v):
    """Return ``ln(1 + exp(v))`` of 16 numbers: the larger of v and 0, and ``ln(1 + u)`` with ``u = exp(-|v|)``.

    The latter is ``2 artanh(u / (2 + u))``, whose series ends at the 15th power: u / (2 + u) is 1/3 at most.
    """
    u = exp2(maximum(v, 0.0 - v) * -LOG2_E)
    s = u / (u + 2.0)
    square = s * s
    p = fma(square, 1.0 / 15.0, 1.0 / 13.0)
    p = fma(p, square, 1.0 / 11.0)
    p = fma(p, square, 1.0 / 9.0)
    p = fma(p, square, 1.0 / 7.0)
    p = fma(p, square, 1.0 / 5.0)
    p = fma(p, square, 1.0 / 3.0)
    p = fma(p, square, 1.0)
    return maximum(v, 0.0) + s * 2.0 * p
