"""A layer of stacked weights, the sizes of a weight, and the lines of its codes."""

from typing import NamedTuple

import numpy as np
from numba import types

from tinychat.kernels.codes import codes_of_one_bit, codes_of_two_bits, high_codes, load_table, low_codes
from tinychat.kernels.intrinsics import i32x8
from tinychat.kernels.jit import always_inline_by_type, by_type, is_kind
from tinychat.kernels.memory import load_half_line, load_line, load_line_again
from tinychat.kernels.sizes import LOADS_AGAIN
from tinychat.kernels.weights import (
    ACTIVATION_GROUP,
    AFFINE_KINDS,
    CODE_BITS,
    TABLE_SIZE,
    ZERO,
    Affine1Weight,
    Affine2Weight,
    Affine4Weight,
    Affine8Weight,
    Float32Weight,
    Int4Weight,
    Looped,
    MixedWeight,
    PerLayer,
    Table4Weight,
)

ZERO_CODE = np.int32(ZERO)


@by_type
def layer_of(stacked, layer):
    """Return element `layer` of a tuple of arrays, or of such tuples, stacked over the layers or over their runs."""
    classes = {}

    def element(kind, name, index):
        if isinstance(kind, types.Array):
            return f"{name}[{index}]"
        if kind.instance_class is Looped:
            return element(kind.types[1], f"{name}.part", f"{name}.indices[{index}]")
        classes[kind.instance_class.__name__] = kind.instance_class
        if kind.instance_class is MixedWeight:
            return f"MixedWeight({name}.indices[{index}], {name}.four, {name}.eight, {name}.bias[{index}])"
        indices = [index] * len(kind.fields)
        if kind.instance_class is PerLayer:
            at = f"{name}.indices[{index}]"
            # Of the type that a layer does not have it gets the first, which is not read.
            indices = [index, f"max({at}, 0)", f"max(-1 - {at}, 0)"]
        found = zip(kind.types, kind.fields, indices)
        parts = ", ".join(element(part, f"{name}.{field}", at) for part, field, at in found)
        return f"{kind.instance_class.__name__}({parts})"

    return eval(f"lambda stacked, layer: {element(stacked, 'stacked', 'layer')}", classes)


@by_type
def columns(weight):
    """Return K, padding included."""
    if is_kind(weight, *CODE_BITS):
        of_line = 32 // CODE_BITS[weight.instance_class]
        return lambda weight: weight.packed.shape[1] * of_line
    if is_kind(weight, MixedWeight):
        return lambda weight: weight.four.packed.shape[1] * 8
    return lambda weight: weight.values.shape[1]


@by_type
def input_group(weight):
    """Return how many columns of a quantized weight's input share a scale: no more than columns of the weight do."""
    if is_kind(weight, MixedWeight):
        return lambda weight: min(input_group(weight.four), input_group(weight.eight))
    if is_kind(weight, *AFFINE_KINDS):
        return lambda weight: min(ACTIVATION_GROUP, columns(weight) // weight.scales.shape[1])
    return lambda weight: columns(weight) // weight.scales.shape[1]


@by_type
def code_of_zero(weight):
    """Return the code that counts as 0 where an affine weight has neither offsets nor a table; 0 with offsets."""
    if is_kind(weight, Affine8Weight):
        return lambda weight: ZERO_CODE
    middle = 8 if is_kind(weight, Affine4Weight) else 1
    return lambda weight: np.int32(middle if weight.offsets.shape[1] == 0 else 0)


@by_type
def out_blocks(weight):
    """Return the number of row blocks, N/16."""
    if is_kind(weight, Float32Weight):
        return lambda weight: weight.values.shape[0]
    if is_kind(weight, MixedWeight):
        return lambda weight: weight.indices.shape[0]
    return lambda weight: weight.packed.shape[0]


class TableRows(NamedTuple):
    """Lines of codes, and the table of a row block in a register."""

    packed: np.ndarray
    table: object


@always_inline_by_type
def rows_of(weight, block):
    """Return the lines of a weight for products with a row block: with its table, if there is any."""

    def with_table(weight, block):
        return TableRows(weight.packed, load_table(weight.table, 0))

    def with_tables(weight, block):
        return TableRows(weight.packed, load_table(weight.table, block * TABLE_SIZE))

    def plain(weight, block):
        return weight

    return {Int4Weight: with_table, Table4Weight: with_tables}.get(weight.instance_class, plain)


@always_inline_by_type
def load_for(sums, packed, first):
    """Load what the rows of some sums have of a line, from byte `first` on."""
    load = load_half_line if sums.dtype == i32x8 else load_line
    return lambda sums, packed, first: load(packed, first)


@always_inline_by_type
def codes_of_line(weight, line):
    """Return the lines of codes that a line of a weight of one, two or four bits holds."""
    if is_kind(weight, Affine1Weight):
        return lambda weight, line: codes_of_one_bit(line)
    if is_kind(weight, Affine2Weight):
        return lambda weight, line: codes_of_two_bits(line)
    return lambda weight, line: (low_codes(line), high_codes(line))


@always_inline_by_type
def load_again_for(sums, line, packed, first):
    """Return `line`, which `load_for` has loaded; load it again where sums take the registers."""
    if LOADS_AGAIN and sums.dtype != i32x8:
        return lambda sums, line, packed, first: load_line_again(packed, first)
    return lambda sums, line, packed, first: line
