"""Packs one linear layer of a checkpoint, in slabs of rows that fit into memory."""

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
Sums = tuple[float, float]
"""Sums of the squares of the errors, and of the weights."""


def pack_linear(
    tensors: Tensors, linear: Linear, shard: int, quantization: Quantization
) -> tuple[dict[str, Array], Sums]:
    """Return the arrays of one shard by their fields in `kernels.weights`, each weight quantized by itself."""
    dtype = quantization.dtype_of(linear.name)
    N, K = padded(sum(linear.rows), LANES), padded(linear.columns, quantization.column_multiple)
    arrays: dict[str, Array]
    if dtype == "f32":
        arrays, sums = {"values": _values(tensors, linear, shard, N, K)}, (0.0, 0.0)
    else:
        arrays, sums = _codes(tensors, linear, shard, N, K, 4 if dtype == "int4" else 8, quantization.group_size)
    if linear.bias:
        arrays["bias"] = read_bias(tensors, linear, shard)
    return arrays, sums


def _codes(
    tensors: Tensors, linear: Linear, shard: int, N: int, K: int, bits: int, group_size: int
) -> tuple[dict[str, Array], Sums]:
    packed = np.empty((N // LANES, K * bits // 32, LANES, 4), np.uint8)
    scales = np.empty((N // LANES, K // group_size, LANES), np.int8)
    row_scales = np.empty((N // LANES, LANES), np.float32)
    squared_error = squared_weights = 0.0
    for name, block, rows in slabs(tensors, linear, shard):
        sums = np.zeros((cores.THREADS, 2))
        part = slice(block, block + padded(len(rows), LANES) // LANES)
        cores.run_shares(quantize_share, rows, bits, INT4_ENDS, packed[part], scales[part], row_scales[part], sums)
        check_finite(sums, name)
        squared_error += float(sums[:, 0].sum())
        squared_weights += float(sums[:, 1].sum())
    arrays: dict[str, Array] = {"packed": packed, "scales": scales, "row_scales": row_scales}
    return arrays | ({"table": INT4_TABLE} if bits == 4 else {}), (squared_error, squared_weights)


def _values(tensors: Tensors, linear: Linear, shard: int, N: int, K: int) -> Array:
    values = np.empty((N // LANES, K, LANES), np.float32)
    for name, block, rows in slabs(tensors, linear, shard):
        part = values[block : block + padded(len(rows), LANES) // LANES]
        arrange_rows(rows, part)
        check_finite(part, name)
    return values


def relative_error(sums: Iterable[Sequence[float]]) -> float:
    """Return the relative root-mean-square error of weights by the sums of their shards."""
    errors, weights = np.sum([*sums], axis=0)
    return round(float(errors / weights) ** 0.5, 5) if weights else 0.0


def read_bias(tensors: Tensors, linear: Linear, shard: int) -> NDArray[np.float32]:
    """Return a linear's finite bias, float32 [N], padded with zeros."""
    bias = np.zeros(padded(sum(linear.rows), LANES), np.float32)
    start = 0
    for source, rows in zip(linear.names(shard), linear.rows):
        name = f"{source}.bias"
        bias[start : start + rows] = tensors.read(name).astype(np.float32)
        check_finite(bias[start : start + rows], name)
        start += rows
    return bias


def pack_codes(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Arrange codes [N, K] for `kernels.weights`: N a multiple of 16, K of a line's columns; of one bit 0 and 2."""
    N, K = codes.shape
    parts = codes.reshape(N // LANES, LANES, K * bits // 32, 8 // bits, 4).transpose(3, 0, 2, 1, 4)
    packed = np.zeros(parts.shape[1:], np.uint8)
    for q, part in enumerate(parts):
        packed |= (part >> (bits == 1)) << bits * q
    return packed


def weight_names(linear: Linear, shard: int) -> list[str]:
    """Return the checkpoint's names of the weights that make up a linear."""
    return [f"{source}.weight" for source in linear.names(shard)]


def slabs(tensors: Tensors, linear: Linear, shard: int) -> Iterator[tuple[str, int, Array]]:
    """Yield (weight name, first row block, rows) of a linear from the top: float32, or uint16 as bits of bfloat16.

    Weights that do not end on a row block are joined first.
    """
    names = weight_names(linear, shard)
    if shares_blocks(linear):
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


def shares_blocks(linear: Linear) -> bool:
    """Return whether weights meet within a block of rows."""
    return any(rows % LANES for rows in linear.rows[:-1])


def as_rows(rows: Array) -> Array:
    """Return bfloat16 as its bits, anything else as float32."""
    return rows.view(np.uint16) if rows.dtype.name == "bfloat16" else rows.astype(np.float32, copy=False)


def check_finite(values: Array, name: str) -> None:
    """Refuse values that are NaN or infinite, naming their tensor."""
    if not np.isfinite(values).all():
        raise ConversionError(
            f"{name} holds values that are not finite, or too large to quantize:"
            " download the checkpoint again, or keep the model in f32"
        )
