"""One safetensors file: the safetensors package opens and checks it, tensors are mapped row by row.

The package's slices are not used: they are copies, and what was read of the file stays in memory until it is closed.
With them the conversion of a model of 1.1 billion weights took 269 MiB, not 228.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from tinychat.checkpoint.mapping import FloatArray, map_rows
from tinychat.errors import CheckpointError
from tinychat.files import open_regular
from tinychat.json_file import one_line

# The package takes 100 MB, which can become 2 GiB of memory; published headers have one megabyte at most.
MAX_HEADER_BYTES = 16 << 20
MAX_DIMENSIONS = 8

READABLE = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Numbers that are of no use without others, which say how they count.
INTEGERS = {"U8": "uint8", "I32": "int32", "U32": "uint32", "I64": "int64", "F8_E4M3": "float8_e4m3fn"}


class SafetensorsEntry(NamedTuple):
    """A tensor of a file; `begin` counts bytes from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int


class SafetensorsFile:
    """The tensors of one ``.safetensors`` file, its header read and checked now, its data only by `read`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            data_start = _data_start(path)
            with safe_open(path, framework="np") as file:
                self._entries = _entries(path, file, data_start)
        except SafetensorError as error:
            what = one_line(str(error), 240)
            raise CheckpointError(f"{path} is truncated or not safetensors: {what}; download it again") from None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None

    def names(self) -> frozenset[str]:
        """Return the names of all tensors."""
        return frozenset(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor of `names`."""
        return self._entries[name].shape

    def read(self, name: str, start: int, stop: int) -> FloatArray:
        """Map rows ``start..stop-1`` of a tensor of `names`."""
        dtype, shape, begin = self._entries[name]
        if dtype not in READABLE:
            what = f"tensor {one_line(name)!r} is {dtype}; only {', '.join(READABLE)} can be read"
            raise CheckpointError(f"{self.path}: {what}")
        return map_rows(self.path, READABLE[dtype], begin, shape, start, stop)

    def read_integers(self, name: str) -> NDArray[Any]:
        """Map a tensor of `names` that holds whole numbers of 8, 32 or 64 bits, or float8."""
        dtype, shape, begin = self._entries[name]
        if dtype not in INTEGERS:
            raise CheckpointError(f"{self.path}: tensor {one_line(name)!r} is {dtype}; expected whole numbers")
        return map_rows(self.path, INTEGERS[dtype], begin, shape, 0, shape[0] if shape else 1)


def check_shapes(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> SafetensorsFile:
    """Open a file that must have the tensors of these names and shapes, and no others; CheckpointError if not."""
    file = SafetensorsFile(path)
    found = {name: file.shape(name) for name in file.names()}
    if found != dict(shapes):
        raise CheckpointError(f"{path} holds {one_line(str(found), 120)}; expected {dict(shapes)}")
    return file


def read_floats(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[np.float32]]:
    """Return the tensors of a small file, by their names and shapes, as float32; errors as of `check_shapes`."""
    file = check_shapes(path, shapes)
    return {name: file.read(name, 0, shape[0]).astype(np.float32) for name, shape in shapes.items()}


def _data_start(path: Path) -> int:
    """Return where the header ends by its own length; refuse what is no regular file or has a header too long."""
    with open_regular(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if MAX_HEADER_BYTES < length <= file.seek(0, 2) - 8:
            raise CheckpointError(f"{path} has a header of more than {MAX_HEADER_BYTES >> 20} MiB; refused")
    return 8 + length


def _entries(path: Path, file: Any, data_start: int) -> dict[str, SafetensorsEntry]:
    """Return the tensors by name: the package has checked that they lie one behind another up to the file's end."""
    entries: dict[str, SafetensorsEntry] = {}
    begin = data_start
    for name in file.offset_keys():
        tensor = file.get_slice(name)
        dtype, shape = tensor.get_dtype(), tuple(tensor.get_shape())
        if len(shape) > MAX_DIMENSIONS:
            raise CheckpointError(f"{path}: tensor {one_line(name)!r} has more than {MAX_DIMENSIONS} dimensions")
        entries[name] = SafetensorsEntry(dtype, shape, begin)
        # Types are named by the bits of a value, as BF16 and F8_E4M3 are, all but BOOL.
        bits = re.search(r"\d+", dtype)
        begin += math.prod(shape) * (int(bits[0]) if bits else 8) // 8
    if begin != path.stat().st_size:
        raise CheckpointError(f"{path} was changed while it was read; try again")
    return entries
