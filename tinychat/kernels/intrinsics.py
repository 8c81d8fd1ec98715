"""Device functions that emit their own LLVM IR: the decorator `operation`, and the types of vectors.

Vectors are as wide on every processor: where registers are narrower LLVM splits them, so one kernel source and one
weight layout serve all.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import PrimitiveModel, register_default
from numba.extending import intrinsic, lower_cast
from numba.np import arrayobj

from tinychat import processor
from tinychat.kernels.sizes import LANES

F16, F32 = ir.HalfType(), ir.FloatType()
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F32X16 = ir.VectorType(F32, 16)
I32X8, I32X16 = ir.VectorType(I32, 8), ir.VectorType(I32, 16)
U8X32, U8X64 = ir.VectorType(I8, 32), ir.VectorType(I8, 64)


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
i32x8, i32x16 = Vector("i32x8", I32X8, types.int32), Vector("i32x16", I32X16, types.int32)
u8x32, u8x64 = Vector("u8x32", U8X32, types.uint8), Vector("u8x64", U8X64, types.uint8)


@lower_cast(types.Number, Vector)
def splat_number(context, builder, given, wanted, value):
    """Cast a number to a vector: into all lanes."""
    return Emitter(builder).splat(context.cast(builder, value, given, wanted.lane), wanted.register.count)


# Numbers that are loaded at once and then spread. ARM's instructions take a factor from any lane, while a load into all
# lanes would compete with them for their execution units.
SPLAT_LANES = 4 if processor.architecture() == processor.ARM else 1
SAME = object()  # the type of the first operand that is no number
ANY = object()  # whatever type an operand has
INDEX = types.intp


class Emitter:
    """Numba's IR builder, with the operations of vectors."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self._builder = builder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)

    def intrinsic(self, name: str, result: ir.Type, *values: ir.Value) -> ir.Value:
        """Emit a call of an LLVM intrinsic or a C function."""
        function_type = ir.FunctionType(result, [value.type for value in values])
        return self.call(cgutils.get_or_insert_function(self.module, function_type, name), values)

    def splat(self, value: ir.Value, lanes: int = LANES) -> ir.Value:
        """Emit a vector whose lanes all hold `value`."""
        first = self.insert_element(ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined), value, I32(0))
        return self.shuffle_vector(first, first, constant(0, I32, lanes))

    def lanes(self, vector: ir.Value, lanes: Iterable[int]) -> ir.Value:
        """Emit a vector of some lanes of another."""
        return self.chosen(vector, vector, lanes)

    def parts(self, vector: ir.Value, lanes: int) -> list[ir.Value]:
        """Emit the parts of a vector, of so many lanes each."""
        count = vector.type.count
        return [self.lanes(vector, range(i, i + lanes)) for i in range(0, count, lanes)] if count > lanes else [vector]

    def joined(self, *parts: ir.Value) -> ir.Value:
        """Emit a vector of the lanes of 1, 2, 4 or 8 others."""
        while len(parts) > 1:
            lanes = range(2 * parts[0].type.count)
            parts = tuple(self.chosen(*pair, lanes) for pair in zip(parts[::2], parts[1::2]))
        return parts[0]

    def chosen(self, first: ir.Value, second: ir.Value, lanes: Iterable[int]) -> ir.Value:
        """Emit a vector of some lanes of two, which are numbered one after another."""
        numbers = list(lanes)
        return self.shuffle_vector(first, second, ir.Constant(ir.VectorType(I32, len(numbers)), numbers))

    def fused(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """Emit ``a * b + c`` of float vectors, rounded once."""
        return self.intrinsic(f"llvm.fma.v{a.type.count}f32", a.type, a, b, c)

    def apart(self, first: ir.Value, stride: ir.Value, step: int) -> ir.Value:
        """Emit ``first + step * stride``."""
        return self.add(first, self.mul(stride, I64(step)))


class VolatileLoad(ir.LoadInstr):
    """A volatile load, for which llvmlite's builder has no argument."""

    def descr(self, buf: list[str]) -> None:
        """Append the instruction's text."""
        super().descr(buf)
        buf[-1] = buf[-1].replace("load", "load volatile", 1)


class Elements:
    """A C-contiguous array, by its flat elements."""

    def __init__(self, context: Any, builder: Emitter, array_type: types.Array, array: ir.Value) -> None:
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

    def load_again(self, index: ir.Value, pointee: ir.Type, align: int) -> ir.Value:
        """Emit a load that LLVM does not replace by what an earlier one has loaded, which would keep a register."""
        instruction = VolatileLoad(self.builder.block, self.pointer(index, pointee))
        instruction.align = align
        self.builder._insert(instruction)
        return instruction

    def splat(self, index: ir.Value, element: ir.Type) -> ir.Value:
        """Emit the load of one 4-byte element into all 16 lanes."""
        return self.builder.splat(self.load(index, element, align=4))

    def splats(
        self, first: ir.Value, count: int, element: ir.Type, unit: int = 1, lanes: int = LANES
    ) -> list[ir.Value]:
        """Emit the loads of `count` consecutive 4-byte numbers of `unit` elements, each into all lanes of a vector."""
        together, align = SPLAT_LANES, 4 // unit
        found: list[ir.Value] = []
        while len(found) < count:
            at = self.builder.add(first, I64(len(found) * unit))
            together = next(size for size in (together, 2, 1) if size <= count - len(found))
            if together == 1:
                found.append(self.builder.splat(self.load(at, element, align), lanes))
                continue
            several = self.load(at, ir.VectorType(element, together), align)
            found += [self.builder.lanes(several, [i] * lanes) for i in range(together)]
        return found

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
                emitter = Emitter(builder)
                emitted = emit(emitter, *(_operand(context, emitter, *each) for each in operands))
                if emitted is None:
                    return context.get_dummy_value()
                return cgutils.pack_array(builder, emitted) if isinstance(emitted, list) else emitted

            return returned(*given), codegen

        typed.__name__, typed.__doc__ = emit.__name__, emit.__doc__
        # Numba counts the arguments by the signature: emit's, whose first is the builder.
        typed.__signature__ = inspect.signature(emit)
        return intrinsic(typed)

    return decorate


def _operand(context: Any, builder: Emitter, value: ir.Value, given: types.Type, wanted: types.Type) -> Any:
    if isinstance(wanted, types.Array):
        return Elements(context, builder, wanted, value)
    if isinstance(wanted, types.BaseTuple):
        return [builder.extract_value(value, i) for i in range(len(wanted))]
    return context.cast(builder, value, given, wanted)


def constant(value: float, element: ir.Type = F32, lanes: int = LANES) -> ir.Constant:
    """Return a vector constant."""
    return ir.Constant(ir.VectorType(element, lanes), [value] * lanes)
