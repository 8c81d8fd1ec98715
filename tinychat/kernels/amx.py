"""Tile registers of Intel's processors (AMX): eight of 1 KB, and products of them.

LLVM allocates none of them: operations name them by number. Registers 0 to 3 hold sums, int32, 16 tokens x 16 rows of a
weight; 4 and 5 activations, 16 tokens x the columns of a product; 6 and 7 weights, a line of 16 rows x 4 columns for
each 4 of these. The first operand of each operation is the thread's buffer, in which a model of these instructions
keeps the registers (`amx_model`).
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils

from tinychat.kernels import amx_model
from tinychat.kernels.intrinsics import ANY, I8, INDEX, operation
from tinychat.kernels.setup import AMX, INSTRUCTION_SET

VOID = ir.VoidType()
ACTIVATIONS, WEIGHTS = (4, 5), (6, 7)


MODEL = {
    "ldtilecfg": amx_model.configure,
    "tilerelease": amx_model.release,
    "tilezero": amx_model.zero,
    "tileloadd64": amx_model.load,
    "tilestored64": amx_model.store,
    "tdpbssd": amx_model.multiply,
    "tdpbf16ps": amx_model.multiply_pairs,
}


def instruction(name):
    """Return the emitter of a tile instruction, of registers by number and other operands, or of a model of it."""

    def emit(builder, buffer, *operands):
        values = [I8(each) if isinstance(each, int) else each for each in operands]
        builder.intrinsic(f"llvm.x86.{name}", VOID, *values)

    return emit if INSTRUCTION_SET == AMX else MODEL[name]


load_configuration, release, zero, load, store, multiply, multiply_pairs = map(instruction, MODEL)


def configuration(columns: int) -> bytes:
    """Return the shapes of the registers for products of so many columns, as the processor reads them."""
    table = bytearray(64)
    table[0] = 1
    for tile in range(8):
        table[16 + 2 * tile] = columns if tile in ACTIVATIONS else 64
        table[48 + tile] = columns // 4 if tile in WEIGHTS else 16
    return bytes(table)


def configure_for(columns):
    """Make the operation that configures the registers for products of so many columns."""

    @operation(types.void, ANY)
    def configure(builder, buffer):
        """Give the registers their shapes."""
        table = ir.Constant(ir.ArrayType(I8, 64), bytearray(configuration(columns)))
        place = cgutils.global_constant(builder.module, f"tinychat.tiles.{columns}", table)
        load_configuration(builder, buffer, builder.bitcast(place, I8.as_pointer()))

    return configure


configure_16, configure_32, configure_64 = configure_for(16), configure_for(32), configure_for(64)


@operation(types.void, ANY)
def release_registers(builder, buffer):
    """Clear registers and configuration: a thread that uses none is switched faster."""
    release(builder, buffer)


def load_of(tile):
    """Make the operation that loads a register."""

    @operation(types.void, ANY, ANY, INDEX, INDEX)
    def load_tile(builder, buffer, array, index, stride):
        """Load rows that are `stride` bytes apart from byte `index` of an array."""
        load(builder, buffer, tile, array.pointer(index, I8, I8), stride)

    return load_tile


def store_of(tile):
    """Make the operation that stores a register."""

    @operation(types.void, ANY, INDEX)
    def store_sums(builder, buffer, index):
        """Store 16 rows of 64 bytes, from float `index` of the buffer."""
        store(builder, buffer, tile, buffer.pointer(index, I8), ir.Constant(ir.IntType(64), 64))

    return store_sums


def zero_of(tile):
    """Make the operation that clears a register."""

    @operation(types.void, ANY)
    def zero_sums(builder, buffer):
        """Clear a register."""
        zero(builder, buffer, tile)

    return zero_sums


def product_of(sums, activations, weights):
    """Make the operation that adds the product of two registers to a third."""

    @operation(types.void, ANY)
    def add_product(builder, buffer):
        """Add the product of signed bytes."""
        multiply(builder, buffer, sums, activations, weights)

    return add_product
