"""One linear layer of a checkpoint, packed: which rows go where, in pieces that fit into memory."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.tensors import Tensors
from tinychat.conversion import cores
from tinychat.errors import ConversionError
from tinychat.kernels.quantize import INT4_ENDS, INT4_TABLE, arrange_rows, quantize_share
from tinychat.models.layout import LANES, Quantization, padded
from tinychat.models.tensors import Linear

SLAB_ROWS = 4096
Array = NDArray[np.generic]


class Packer:
    """Packs linear layers, each weight quantized by itself, and sums up the error."""

    def __init__(self, quantization: Quantization) -> None:
        self.quantization = quantization
        self._squared_error = self._squared_weights = 0.0

    def pack(self, tensors: Tensors, linear: Linear, layer: int) -> dict[str, Array]:
        """Return the arrays of one layer, by the names of their fields in `kernels.weights`.

        Raises
        ------
        ConversionError
            If a weight is not finite, or too large to be squared.
        """
        N = padded(sum(linear.rows), LANES)
        K = padded(linear.columns, self.quantization.column_multiple)
        arrays = (
            self._values(tensors, linear, layer, N, K)
            if self.quantization.dtype_of(linear.name) == "f32"
            else (self._codes(tensors, linear, layer, N, K))
        )
        if linear.bias:
            arrays["bias"] = read_bias(tensors, linear, layer)
        return arrays

    def take_sums(self) -> tuple[float, float]:
        """Return the sums of the squares of the errors, and of the weights, packed since the last call."""
        sums = self._squared_error, self._squared_weights
        self._squared_error = self._squared_weights = 0.0
        return sums

    def _codes(self, tensors: Tensors, linear: Linear, layer: int, N: int, K: int) -> dict[str, Array]:
        bits = 4 if self.quantization.dtype_of(linear.name) == "int4" else 8
        packed = np.empty((N // LANES, K * bits // 32, LANES, 4), np.uint8)
        scales = np.empty((N // LANES, K // self.quantization.group_size, LANES), np.int8)
        row_scales = np.empty((N // LANES, LANES), np.float32)
        for name, block, rows in slabs(tensors, linear, layer):
            sums = np.zeros((cores.THREADS, 2))
            part = slice(block, block + padded(len(rows), LANES) // LANES)
            cores.run_shares(quantize_share, rows, bits, INT4_ENDS, packed[part], scales[part], row_scales[part], sums)
            check_finite(sums, name)
            self._squared_error += float(sums[:, 0].sum())
            self._squared_weights += float(sums[:, 1].sum())
        arrays: dict[str, Array] = {"packed": packed, "scales": scales, "row_scales": row_scales}
        return arrays | ({"table": INT4_TABLE} if bits == 4 else {})

    def _values(self, tensors: Tensors, linear: Linear, layer: int, N: int, K: int) -> dict[str, Array]:
        values = np.empty((N // LANES, K, LANES), np.float32)
        for name, block, rows in slabs(tensors, linear, layer):
            part = values[block : block + padded(len(rows), LANES) // LANES]
            arrange_rows(rows, part)
            check_finite(part, name)
        return {"values": values}


def relative_error(sums: Iterable[Sequence[float]]) -> float:
    """Return the relative root-mean-square error of weights of which `Packer.take_sums` gave these sums."""
    errors, weights = np.sum([*sums], axis=0)
    return round(float(errors / weights) ** 0.5, 5) if weights else 0.0


def read_bias(tensors: Tensors, linear: Linear, layer: int) -> NDArray[np.float32]:
    """Return a linear's bias, float32 [N], padded with zeros.

    Raises
    ------
    ConversionError
        If it is not finite.
    """
    bias = np.zeros(padded(sum(linear.rows), LANES), np.float32)
    start = 0
    for source, rows in zip(linear.names(layer), linear.rows):
        name = f"{source}.bias"
        bias[start : start + rows] = tensors.read(name).astype(np.float32)
        check_finite(bias[start : start + rows], name)
        start += rows
    return bias


def pack_codes(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Arrange codes [N, K] of 4 or 8 bits as `kernels.weights` holds them: N a multiple of 16, K of 8."""
    N, K = codes.shape
    if bits == 4:
        low, high = codes.reshape(N // LANES, LANES, K // 8, 2, 4).transpose(3, 0, 2, 1, 4)
        return np.ascontiguousarray(low | high << 4)
    return np.ascontiguousarray(codes.reshape(N // LANES, LANES, K // 4, 4).transpose(0, 2, 1, 3))


def slabs(tensors: Tensors, linear: Linear, layer: int) -> Iterator[tuple[str, int, Array]]:
    """Yield (weight name, first row block, rows) for a linear, top to bottom.

    Rows are float32, or uint16 that stands for bfloat16. Stacked weights that do not end on a row block are
    joined first.
    """
    names = [f"{source}.weight" for source in linear.names(layer)]
    if any(rows % LANES for rows in linear.rows[:-1]):
        parts = [tensors.read(name) for name in names]
        if len({part.dtype for part in parts}) > 1:
            parts = [part.astype(np.float32) for part in parts]
        yield " + ".join(names), 0, as_rows(np.concatenate(parts))
        return
    block = 0
    for name, count in zip(names, linear.rows):
        for start in range(0, count, SLAB_ROWS):
            stop = min(start + SLAB_ROWS, count)
            rows = as_rows(tensors.read(name, linear.first + start, linear.first + stop))
            yield name, block, rows
            block += padded(len(rows), LANES) // LANES


def as_rows(rows: Array) -> Array:
    """Return bfloat16 as its bits, anything else as float32."""
    return rows.view(np.uint16) if rows.dtype.name == "bfloat16" else rows.astype(np.float32, copy=False)


def check_finite(values: Array, name: str) -> None:
    """Raise if a value is NaN or infinite.

    Raises
    ------
    ConversionError
        Naming the tensor.
    """
    if not np.isfinite(values).all():
        raise ConversionError(
            f"{name} holds values that are not finite, or too large to quantize:"
            " download the checkpoint again, or keep the model in f32"
        )
