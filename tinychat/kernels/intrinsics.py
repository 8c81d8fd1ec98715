"""Device functions that emit their own LLVM IR: the decorator `operation`, and the types of vectors.

Vectors are as wide on every processor: where registers are narrower LLVM splits them, so one kernel source and one
weight layout serve all.
"""

import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import PrimitiveModel, register_default
from numba.extending import intrinsic, lower_cast
from numba.np import arrayobj

from tinychat.kernels.sizes import LANES

F16, F32 = ir.HalfType(), ir.FloatType()
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F32X16 = ir.VectorType(F32, 16)
I32X16 = ir.VectorType(I32, 16)
U8X64 = ir.VectorType(I8, 64)


class Vector(types.Type):
    """A SIMD register as a Numba type, of float32 or int32 lanes, or bytes."""

    def __init__(self, name: str, register: ir.VectorType, lane: types.Number):
        self.register, self.lane = register, lane
        super().__init__(name)


@register_default(Vector)
class VectorModel(PrimitiveModel):
    """A vector in Numba's code: the LLVM vector itself."""

    def __init__(self, manager: Any, fe_type: Vector):
        super().__init__(manager, fe_type, fe_type.register)


f32x16 = Vector("f32x16", F32X16, types.float32)
f32x64 = Vector("f32x64", ir.VectorType(F32, 64), types.float32)
i32x16 = Vector("i32x16", I32X16, types.int32)
u8x64 = Vector("u8x64", U8X64, types.uint8)


@lower_cast(types.Number, Vector)
def splat_number(context, builder, given, wanted, value):
    """Cast a number to a vector: into all lanes."""
    return splat(builder, context.cast(builder, value, given, wanted.lane), wanted.register.count)


SAME = object()  # the type of the first operand that is no number
ANY = object()  # whatever type an operand has
INDEX = types.intp


class Elements:
    """A C-contiguous array, by its flat elements."""

    def __init__(self, context: Any, builder: ir.IRBuilder, array_type: types.Array, array: ir.Value) -> None:
        self.builder = builder
        self.dtype = array_type.dtype
        self._data = arrayobj.make_array(array_type)(context, builder, array).data

    def pointer(self, index: ir.Value, pointee: ir.Type, unit: ir.Type | None = None) -> ir.Value:
        """Emit the address of a flat element; unit : what `index` counts, where that is not the array's elements."""
        data = self._data if unit is None else self.builder.bitcast(self._data, unit.as_pointer())
        return self.builder.bitcast(self.builder.gep(data, [index]), pointee.as_pointer())

    def load(self, index: ir.Value, pointee: ir.Type, align: int, unit: ir.Type | None = None) -> ir.Value:
        """Emit a load from a flat element."""
        return self.builder.load(self.pointer(index, pointee, unit), align=align)

    def store(self, index: ir.Value, value: ir.Value, align: int, unit: ir.Type | None = None) -> None:
        """Emit a store from a flat element on."""
        self.builder.store(value, self.pointer(index, value.type, unit), align=align)


def operation(result: Any, *operands: Any) -> Callable[..., Any]:
    """Make a device function of ``emit(builder, *values)``, which emits its IR.

    result, operands : Numba types, to which operands are cast, `SAME` or `ANY`; `result` may be a function of the types
    of the operands. An array reaches `emit` as `Elements`, a tuple as a list; a tuple is returned as a list.
    """

    def decorate(emit: Callable[..., Any]) -> Any:
        def typed(typingctx, *given):
            same = next((own for own in given if not isinstance(own, types.Number)), None)
            wanted = [same if kind is SAME else own if kind is ANY else kind for kind, own in zip(operands, given)]
            returned = same if result is SAME else result
            if not isinstance(returned, types.Type):
                returned = result(*wanted)

            def codegen(context, builder, signature, values):
                operands = zip(values, signature.args, wanted)
                emitted = emit(builder, *(_operand(context, builder, *each) for each in operands))
                if emitted is None:
                    return context.get_dummy_value()
                return cgutils.pack_array(builder, emitted) if isinstance(emitted, list) else emitted

            return returned(*given), codegen

        typed.__name__, typed.__doc__ = emit.__name__, emit.__doc__
        # Numba counts the arguments by the signature: emit's, whose first is the builder.
        typed.__signature__ = inspect.signature(emit)
        return intrinsic(typed)

    return decorate


def _operand(context: Any, builder: ir.IRBuilder, value: ir.Value, given: types.Type, wanted: types.Type) -> Any:
    if isinstance(wanted, types.Array):
        return Elements(context, builder, wanted, value)
    if isinstance(wanted, types.BaseTuple):
        return [builder.extract_value(value, i) for i in range(len(wanted))]
    return context.cast(builder, value, given, wanted)


def call(builder: ir.IRBuilder, name: str, result: ir.Type, *values: ir.Value) -> ir.Value:
    """Emit a call of an LLVM intrinsic or a C function."""
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


def lanes_of(builder: ir.IRBuilder, vector: ir.Value, lanes: range) -> ir.Value:
    """Emit a vector of some lanes of another."""
    return builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes)))


def joined(builder: ir.IRBuilder, low: ir.Value, high: ir.Value) -> ir.Value:
    """Emit a vector of the lanes of two."""
    count = 2 * low.type.count
    return builder.shuffle_vector(low, high, ir.Constant(ir.VectorType(I32, count), list(range(count))))


def apart(builder: ir.IRBuilder, first: ir.Value, stride: ir.Value, step: int) -> ir.Value:
    """Emit ``first + step * stride``."""
    return builder.add(first, builder.mul(stride, I64(step)))
