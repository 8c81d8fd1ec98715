"""Packed weights of linear layers, and their activations in the order of the tiles.

Weight [N, K], N padded to 16, K to the group. A weight is ``row_scale * scale * value``: a float for each row, a whole
number for each row and group of columns, and the value of its code. A 64-byte line holds whole columns of 16 rows, a
lane is a row:

    Int4Weight   packed uint8 [N/16, K/8, 16, 4]: byte (b, j, r, i) holds the code of row 16b+r, column 8j+i in its
                 low nibble, of column 8j+4+i in its high nibble; code c has the value ``table[c]``, int8 [16]
    Int8Weight   packed uint8 [N/16, K/4, 16, 4]: byte (b, j, r, i) is the code of row 16b+r, column 4j+i;
                 code c has the value ``c - 128``
    Float32Weight values float32 [N/16, K, 16]

Of these, `scales` is int8 [N/16, K/group_size, 16], `row_scales` float32 [N/16, 16]; `bias` float32 [N], or [0] for
none.

In native (passthrough) quantization a weight is ``f * scale * c + h * offset``, with scale and offset of a group of
columns, and factors f and h of a span of such groups (`models.passthrough`):

    Affine1Weight  packed uint8 [N/16, K/32, 16, 4]: bit q of byte (b, j, r, i) is the code of row 16b+r, column
                   32j+4q+i; c is -1 for 0, and 1 for 1
    Affine2Weight  packed uint8 [N/16, K/16, 16, 4]: bits 2q and 2q+1 of byte (b, j, r, i) are the code of row 16b+r,
                   column 16j+4q+i; c is the code minus 1, or the code where there are offsets
    Affine4Weight  packed as in Int4Weight; c is the code minus 8, or the code where there are offsets
    Affine8Weight  packed as in Int8Weight; c is the code minus 128
    Table4Weight   packed as in Int4Weight; c is ``table[code]`` of the row block, int8 [N/16, 16]

`scales` and `offsets` are [N/16, K/group, 16] of int8, float32, or uint16 for float16; scales also uint8 for powers of
two, an exponent plus 127, of which 0 means 0. `factors` float32 [N/16, K/span, 2, 16], first those of the scales.
Weights without offsets have [N/16, 0, 16] of them: of one bit all.

Stacked over layers, each array has one more axis in front. Sums of groups of up to 256 columns do not overflow.
"""

from typing import Any, NamedTuple

import numpy as np

ZERO = 128
# Values of codes of four bits.
TABLE_SIZE = 16
# Columns of the input of an affine weight that share a scale, at most.
ACTIVATION_GROUP = 32
# Bits of the finer part of an activation that has two.
FINE_BITS = 7
# Whether a linear adds to what is there. Not literals, for each of which kernels would be compiled once more.
STORE, ADD = np.bool_(False), np.bool_(True)


class Int4Weight(NamedTuple):
    """Four-bit codes, two to a byte."""

    packed: np.ndarray
    scales: np.ndarray
    row_scales: np.ndarray
    table: np.ndarray
    bias: np.ndarray


class Int8Weight(NamedTuple):
    """Eight-bit codes."""

    packed: np.ndarray
    scales: np.ndarray
    row_scales: np.ndarray
    bias: np.ndarray


class Affine1Weight(NamedTuple):
    """One-bit codes with scales."""

    packed: np.ndarray
    scales: np.ndarray
    offsets: np.ndarray
    factors: np.ndarray
    bias: np.ndarray


class Affine2Weight(NamedTuple):
    """Two-bit codes with scales and, perhaps, offsets."""

    packed: np.ndarray
    scales: np.ndarray
    offsets: np.ndarray
    factors: np.ndarray
    bias: np.ndarray


class Affine4Weight(NamedTuple):
    """Four-bit codes with scales and, perhaps, offsets."""

    packed: np.ndarray
    scales: np.ndarray
    offsets: np.ndarray
    factors: np.ndarray
    bias: np.ndarray


class Affine8Weight(NamedTuple):
    """Eight-bit codes with scales and, perhaps, offsets."""

    packed: np.ndarray
    scales: np.ndarray
    offsets: np.ndarray
    factors: np.ndarray
    bias: np.ndarray


class Table4Weight(NamedTuple):
    """Four-bit codes of values in tables, with scales and, perhaps, offsets."""

    packed: np.ndarray
    scales: np.ndarray
    offsets: np.ndarray
    factors: np.ndarray
    table: np.ndarray
    bias: np.ndarray


class MixedWeight(NamedTuple):
    """Row blocks in two types, in any order.

    indices : int32 [N/16], or stacked; of each block, its index in `four`, or, from -1 downwards, in `eight`; these
    have the blocks of all layers, one after another, and no bias. Without a table those of four bits have offsets.
    """

    indices: np.ndarray
    four: Affine4Weight | Table4Weight
    eight: Affine8Weight
    bias: np.ndarray


class Float32Weight(NamedTuple):
    """Weights that are not quantized: the reference mode."""

    values: np.ndarray
    bias: np.ndarray


class SplitWeight(NamedTuple):
    """Rows in two types, over the same columns: the first ones as `frequent`, the others as `rest`."""

    frequent: Int8Weight
    rest: Int4Weight


class PerLayer(NamedTuple):
    """A part of which each layer has one of two types, each stacked over the layers that have it.

    indices : int64 [L]; of each layer, its index in `first`, or, from -1 downwards, in `second`.
    """

    indices: np.ndarray
    first: Any
    second: Any


class Looped(NamedTuple):
    """A part of layers that run several times, stacked over the layers.

    indices : int64 [runs]; of each run, its layer.
    """

    indices: np.ndarray
    part: Any


class QuantizedActivations(NamedTuple):
    """The input of a quantized linear; T tokens in tiles of `tokens`, K in the weight's groups.

    codes int8 [T/tokens, K/4, tokens, 4]; scales float32 and corrections int32 [T/tokens, groups, tokens]: the
    start of the sums of a group, for the zero point of the weight's codes (`kernels.inputs`); sums float32 [T/tokens,
    groups, tokens], the sum of a group's codes times its scale, which offsets are multiplied by.
    """

    codes: np.ndarray
    scales: np.ndarray
    corrections: np.ndarray
    sums: np.ndarray


class FineActivations(NamedTuple):
    """The input of an affine linear, to twice as many bits: an activation is ``scale * (128 * code + fine)``.

    The same arrays, and fine int8, -64 to 63, like codes. Corrections are numbers to add, not to begin with.
    """

    codes: np.ndarray
    scales: np.ndarray
    corrections: np.ndarray
    sums: np.ndarray
    fine: np.ndarray


class RowActivations(NamedTuple):
    """The same arrays for tile registers: where a tile has 16 tokens, the codes of each are a row.

    codes int8 [T/16, K/columns, 16, columns] there, of as many columns as a product has: 64, or a group's 32 or 16.
    """

    codes: np.ndarray
    scales: np.ndarray
    corrections: np.ndarray
    sums: np.ndarray


class FineRowActivations(NamedTuple):
    """Activations of two parts for tile registers."""

    codes: np.ndarray
    scales: np.ndarray
    corrections: np.ndarray
    sums: np.ndarray
    fine: np.ndarray


AFFINE_KINDS = (Affine1Weight, Affine2Weight, Affine4Weight, Affine8Weight, Table4Weight)
# Bits of a code; a row has 32 of them in a line.
CODE_BITS = dict(zip((*AFFINE_KINDS, Int4Weight, Int8Weight), (1, 2, 4, 8, 4, 4, 8)))
# Those whose codes are indices into a table.
TABLE_KINDS = (Int4Weight, Table4Weight)
# Those whose codes are small numbers around a zero of their own.
FEW_BITS = (Affine1Weight, Affine2Weight, Affine4Weight)
# Those of two parts, and those for tile registers.
FINE_KINDS = (FineActivations, FineRowActivations)
ROW_KINDS = (RowActivations, FineRowActivations)
# Columns of a product of tile registers, at most.
PRODUCT_COLUMNS = 64


class FloatActivations(NamedTuple):
    """The input of a float32 linear: float32 [T/tokens, K, tokens]."""

    values: np.ndarray
