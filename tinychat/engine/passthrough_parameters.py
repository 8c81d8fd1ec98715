"""Weights of the kernels over the tensors of passthrough linears (`models.passthrough`)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinychat.kernels.weights import AFFINE_KINDS, CODE_BITS, MixedWeight
from tinychat.models.architectures import linears
from tinychat.models.folder import ModelFolder
from tinychat.models.layout import LANES

AFFINE: dict[int, Any] = {CODE_BITS[kind]: kind for kind in AFFINE_KINDS}


def passthrough_weight(folder: ModelFolder, name: str) -> Any:
    """Return a passthrough linear as one of the affine weights of `kernels.weights`."""
    passthrough, tensors = dict(folder.quantization.passthrough)[name], folder.tensors
    (linear,) = [linear for linear in linears(folder.config) if linear.name == name]
    stack = linear.stack
    bias = tensors.get(f"{name}.bias", np.zeros((*stack, 0), np.float32))
    parts = {form.bits: affine_arrays(tensors, name, form.bits) for form in passthrough.forms}
    if len(parts) == 1:
        ((bits, arrays),) = parts.items()
        if stack:
            arrays = [array.reshape(*stack, len(array) // linear.shards, *array.shape[1:]) for array in arrays]
        return AFFINE[bits](*arrays, bias)
    indices = block_indices(passthrough.blocks(linear.rows))
    none = np.zeros(0, np.float32)
    four, eight = (AFFINE[bits](*arrays, none) for bits, arrays in parts.items())
    return MixedWeight(indices.reshape(*stack, -1), four, eight, bias)


def affine_arrays(tensors: dict[str, NDArray[Any]], name: str, bits: int) -> list[NDArray[Any]]:
    """Return the arrays of a linear's codes of one size, blocks first."""
    packed, scales, factors = (tensors[f"{name}.{part}{bits}"] for part in ("packed", "scales", "factors"))
    none = np.zeros((len(packed), 0, LANES), scales.dtype)
    return [packed, scales, tensors.get(f"{name}.offsets{bits}", none), factors]


def block_indices(by_layer: list[list[int]]) -> NDArray[np.int32]:
    """Return `MixedWeight.indices` of blocks whose codes have 4 or 8 bits."""
    bits = np.array(by_layer)
    flat, indices = bits.reshape(-1), np.empty(bits.size, np.int32)
    indices[flat == 4] = np.arange((flat == 4).sum())
    indices[flat == 8] = -1 - np.arange((flat == 8).sum())
    return indices.reshape(bits.shape)
