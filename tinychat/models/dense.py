"""Linear layers of pooled vectors, in the files of an embedding model: see `models.embedder`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tinychat.models.embedder import DENSE_WEIGHTS, DenseStep, Embedder
from tinychat.models.folder import header_of, map_weights
from tinychat.models.layout import TensorSpec
from tinychat.models.portable_math import gelu, tanh

WEIGHT, BIAS = "linear.weight", "linear.bias"
Floats = NDArray[np.float32]
ACTIVATIONS: Mapping[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "tanh": tanh,
    "gelu": gelu,
    "relu": lambda x: np.maximum(x, 0),
}


class DenseLayer(NamedTuple):
    """A linear layer of pooled vectors: float32 [columns, rows], transposed, and its bias, float32 [rows] or zeros.

    `activation` is one of `ACTIVATIONS`, or "" for none.
    """

    weight: Floats
    bias: Floats
    activation: str = ""

    def apply(self, x: Floats) -> Floats:
        """Return the layer's outputs of one vector, float32 [rows]: the same bits on any processor.

        Products are added along the first axis, which NumPy does row after row.
        """
        sums: Floats = np.add.reduce(x[:, None] * self.weight, axis=0, dtype=np.float32)
        if not self.activation:
            return sums + self.bias
        found: Floats = ACTIVATIONS[self.activation]((sums + self.bias).astype(np.float64)).astype(np.float32)
        return found


def dense_shapes(step: DenseStep) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a layer's tensors by their names."""
    shapes: dict[str, tuple[int, ...]] = {WEIGHT: (step.rows, step.columns)}
    return shapes | {BIAS: (step.rows,)} if step.bias else shapes


def read_dense(folder: Path, embedder: Embedder) -> tuple[DenseLayer, ...]:
    """Read the layers of a model folder's embedder; ModelFolderError for a damaged file."""
    return tuple(_read_layer(folder / step.folder / DENSE_WEIGHTS, step) for step in embedder.dense)


def _read_layer(file: Path, step: DenseStep) -> DenseLayer:
    tensors = map_weights(file, specs_of(dense_shapes(step)))
    return layer_of(tensors[WEIGHT], tensors[BIAS] if step.bias else None, step.activation)


def layer_of(matrix: NDArray[np.generic], bias: NDArray[np.generic] | None = None, activation: str = "") -> DenseLayer:
    """Return the layer of a matrix [rows, columns]."""
    bias = np.zeros(len(matrix)) if bias is None else bias
    return DenseLayer(np.ascontiguousarray(matrix.T, np.float32), bias.astype(np.float32), activation)


def dense_file(step: DenseStep, tensors: Mapping[str, Floats]) -> bytes:
    """Return the content of a layer's file."""
    return file_of(dense_shapes(step), tensors)


def file_of(shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Floats]) -> bytes:
    """Return the content of a file of float32 tensors."""
    specs = specs_of(shapes)
    header, _ = header_of(specs)
    return b"".join([header, *(tensors[name].astype("<f4").tobytes() for name in specs)])


def specs_of(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, TensorSpec]:
    """Return the layout of float32 tensors of these shapes."""
    return {name: TensorSpec("F32", shape) for name, shape in shapes.items()}
