"""What a linear layer reads: packed weights, and activations in the order the tiles want.

Weight [N, K], N padded to 16, K to the group. A 64-byte line holds whole columns of 16 rows, a lane is a row:

    Int4Weight   packed uint8 [N/16, K/8, 16, 4]: byte (b, j, r, i) holds the code of row 16b+r, column 8j+i in its
                 low nibble, of column 8j+4+i in its high nibble; code 8 stands for 0
    Int8Weight   packed uint8 [N/16, K/4, 16, 4]: byte (b, j, r, i) is the code of row 16b+r, column 4j+i;
                 code 128 stands for 0
    Float32Weight values float32 [N/16, K, 16]

`scales` is float16 (carried as uint16) [N/16, K/group_size, 16]; `bias` float32 [N], or [0] for none.
Stacked over layers, each array has one more axis in front.
"""

from typing import NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from tinychat.kernels.policy import FLAGS, inlined

INT4_ZERO = 8
INT8_ZERO = 128
NARROW_GROUPS = 16


class Int4Weight(NamedTuple):
    """Four-bit codes, two to a byte."""

    packed: np.ndarray
    scales: np.ndarray
    bias: np.ndarray


class Int8Weight(NamedTuple):
    """Eight-bit codes."""

    packed: np.ndarray
    scales: np.ndarray
    bias: np.ndarray


class Float32Weight(NamedTuple):
    """Weights as they are: the reference mode."""

    values: np.ndarray
    bias: np.ndarray


class QuantizedActivations(NamedTuple):
    """The input of a quantized linear; T tokens in tiles of `tokens`, K in groups.

    codes int8 [T/tokens, K/4, tokens, 4], scales float32 [T/tokens, activation groups, tokens],
    seeds int32 [T/tokens, weight groups, tokens]: minus the codes' zero times the group's sum.
    """

    codes: np.ndarray
    scales: np.ndarray
    seeds: np.ndarray


class FloatActivations(NamedTuple):
    """The input of a float32 linear: float32 [T/tokens, K, tokens]."""

    values: np.ndarray


def layer_of(weight, layer):
    """Return layer `layer` of a stacked weight."""
    raise TypeError("only for compiled code")


@overload(layer_of, jit_options=FLAGS)
def overload_layer_of(weight, layer):
    """Choose by the kind of weight."""
    if weight.instance_class is Int4Weight:
        return lambda weight, layer: Int4Weight(weight.packed[layer], weight.scales[layer], weight.bias[layer])
    if weight.instance_class is Int8Weight:
        return lambda weight, layer: Int8Weight(weight.packed[layer], weight.scales[layer], weight.bias[layer])
    return lambda weight, layer: Float32Weight(weight.values[layer], weight.bias[layer])


def columns(weight):
    """Return K, padding included."""
    raise TypeError("only for compiled code")


@overload(columns, jit_options=FLAGS)
def overload_columns(weight):
    """Choose by the kind of weight."""
    if weight.instance_class is Int4Weight:
        return lambda weight: weight.packed.shape[1] * 8
    if weight.instance_class is Int8Weight:
        return lambda weight: weight.packed.shape[1] * 4
    return lambda weight: weight.values.shape[1]


def code_zero(weight):
    """Return the code that stands for 0."""
    raise TypeError("only for compiled code")


@overload(code_zero, jit_options=FLAGS)
def overload_code_zero(weight):
    """Choose by the kind of weight."""
    zero = INT4_ZERO if weight.instance_class is Int4Weight else INT8_ZERO
    return lambda weight: zero


@inlined
def groups_per_activation_scale(groups):
    """Return how many weight groups share one activation scale: the largest of 4, 3, 2, 1 that divides.

    One each in a narrow input: its few products average the codes' errors least, and a small model has time to spare.
    """
    if groups < NARROW_GROUPS:
        return 1
    if groups % 4 == 0:
        return 4
    if groups % 3 == 0:
        return 3
    return 2 if groups % 2 == 0 else 1


def is_weight(kind: types.Type, *classes: type) -> bool:
    """Say whether a Numba type is one of these weights."""
    return getattr(kind, "instance_class", None) in classes
