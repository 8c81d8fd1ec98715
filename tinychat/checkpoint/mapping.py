"""Rows of a tensor inside a file, as a view of mapped memory."""

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tinychat.errors import CheckpointError

# float32, float16 or bfloat16; numpy's own annotations do not know the last.
FloatArray = NDArray[Any]

FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
FLOATS = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
INTEGERS = ("uint8", "int32", "uint32", "int64")
DTYPES: dict[str, np.dtype[Any]] = FLOATS | {name: np.dtype(name).newbyteorder("<") for name in INTEGERS}
DTYPES["float8_e4m3fn"] = FLOAT8


def map_rows(path: Path, dtype: str, offset: int, shape: tuple[int, ...], start: int, stop: int) -> FloatArray:
    """Map rows of a row-major tensor of this `shape` at a byte `offset` of a file; a scalar counts as one row.

    Each call maps only what it returns, and the map goes with the array: a conversion that walks through a checkpoint
    never holds more of it in memory than the rows in hand. `dtype` is a key of `DTYPES`. The array [stop - start,
    *shape[1:]] is aligned, in C order and private: writing never reaches the file.
    """
    part = (stop - start, *shape[1:]) if shape else ()
    row_bytes = math.prod(shape[1:]) * DTYPES[dtype].itemsize
    try:
        if math.prod(part) == 0:
            return np.empty(part, DTYPES[dtype])
        # mode "c", since a read-only array is another type to Numba and compiles everything twice
        rows = np.memmap(path, DTYPES[dtype], mode="c", offset=offset + start * row_bytes, shape=part)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be mapped (was it changed meanwhile?): {error}") from None
    # A header of odd length leaves its tensors misaligned, which is yet another type to Numba.
    aligned: FloatArray = np.require(rows, requirements=["A"]).view(np.ndarray)
    return aligned
