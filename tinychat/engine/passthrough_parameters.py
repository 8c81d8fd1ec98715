"""Weights of the kernels over the tensors of passthrough linears (`models.passthrough`)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinychat.kernels.weights import AFFINE_KINDS, CODE_BITS, MixedWeight, Table4Weight
from tinychat.models.architectures import linears
from tinychat.models.folder import ModelFolder
from tinychat.models.layout import LANES
from tinychat.models.passthrough import Form

AFFINE: dict[int, Any] = {CODE_BITS[kind]: kind for kind in AFFINE_KINDS if kind is not Table4Weight}


def passthrough_weight(folder: ModelFolder, name: str) -> Any:
    """Return a passthrough linear as one of the affine weights of `kernels.weights`."""
    passthrough, tensors = dict(folder.quantization.passthrough)[name], folder.tensors
    (linear,) = [linear for linear in linears(folder.config) if linear.name == name]
    stack = linear.stack
    bias = tensors.get(f"{name}.bias", np.zeros((*stack, 0), np.float32))
    parts = [(kind_of(form), affine_arrays(tensors, name, form)) for form in passthrough.forms]
    if len(parts) == 1:
        ((kind, arrays),) = parts
        if stack:
            arrays = [array.reshape(*stack, len(array) // linear.shards, *array.shape[1:]) for array in arrays]
        return kind(*arrays, bias)
    indices = block_indices(passthrough.blocks(linear.rows))
    none = np.zeros(0, np.float32)
    four, eight = (kind(*arrays, none) for kind, arrays in parts)
    return MixedWeight(indices.reshape(*stack, -1), four, eight, bias)


def kind_of(form: Form) -> Any:
    """Return the weight of `kernels.weights` that has a form."""
    return Table4Weight if form.table else AFFINE[form.bits]


def affine_arrays(tensors: dict[str, NDArray[Any]], name: str, form: Form) -> list[NDArray[Any]]:
    """Return the arrays of a linear's codes of one form, blocks first."""
    parts = ("packed", "scales", "factors", "table") if form.table else ("packed", "scales", "factors")
    packed, scales, *others = (tensors[f"{name}.{part}{form.bits}"] for part in parts)
    none = np.zeros((len(packed), 0, LANES), scales.dtype)
    return [packed, scales, tensors.get(f"{name}.offsets{form.bits}", none), *others]


def block_indices(by_layer: list[list[int]]) -> NDArray[np.int32]:
    """Return `MixedWeight.indices` of blocks whose codes have 4 or 8 bits."""
    bits = np.array(by_layer)
    flat, indices = bits.reshape(-1), np.empty(bits.size, np.int32)
    indices[flat == 4] = np.arange((flat == 4).sum())
    indices[flat == 8] = -1 - np.arange((flat == 8).sum())
    return indices.reshape(bits.shape)
