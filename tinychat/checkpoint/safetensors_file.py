"""One safetensors file, its header checked in full, its tensors mapped row by row.

The header is parsed here rather than by the safetensors library: its numpy side has no bfloat16
before ml_dtypes is imported and copies each slice, whereas a map of just the asked rows costs neither time
nor memory, and ours names the file and the tensor in every error.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from numpy.typing import NDArray

from tinychat.checkpoint.mapping import FloatArray, map_rows
from tinychat.errors import CheckpointError
from tinychat.files import open_regular
from tinychat.json_file import one_line, parse_json_object

# The format allows 100 MB, which take 2.5 GiB once parsed; published headers have one megabyte at most.
MAX_HEADER_BYTES = 16 << 20
MAX_DIMENSIONS = 8

# A name that is not here can be listed, but not measured or read.
DTYPE_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
}
READABLE = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
INTEGERS = {"U8": "uint8", "I32": "int32", "U32": "uint32", "I64": "int64"}


@dataclass(frozen=True, slots=True)
class SafetensorsEntry:
    """Where one tensor lies: `begin` and `end` count bytes from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """The tensors of one ``.safetensors`` file.

    Parameters
    ----------
    path : Path
        Its header is read and checked now, its data only by `read`.

    Raises
    ------
    CheckpointError
        If the file is missing, truncated, or its header contradicts itself or the file's length.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries = read_header(path)

    def names(self) -> frozenset[str]:
        """Return the names of all tensors."""
        return frozenset(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor of `names`."""
        return self._entries[name].shape

    def read(self, name: str, start: int, stop: int) -> FloatArray:
        """Map rows ``start..stop-1`` of a tensor of `names`."""
        entry = self._entries[name]
        if entry.dtype not in READABLE:
            raise CheckpointError(
                f"{self.path}: tensor {one_line(name)!r} is {one_line(entry.dtype)};"
                f" only {', '.join(READABLE)} can be read"
            )
        return map_rows(self.path, READABLE[entry.dtype], entry.begin, entry.shape, start, stop)

    def read_integers(self, name: str) -> NDArray[Any]:
        """Map a tensor of `names` that holds whole numbers of 8, 32 or 64 bits."""
        entry = self._entries[name]
        if entry.dtype not in INTEGERS:
            raise CheckpointError(
                f"{self.path}: tensor {one_line(name)!r} is {one_line(entry.dtype)}; expected whole numbers"
            )
        rows = entry.shape[0] if entry.shape else 1
        return map_rows(self.path, INTEGERS[entry.dtype], entry.begin, entry.shape, 0, rows)


def read_header(path: Path) -> dict[str, SafetensorsEntry]:
    """Read and check the header of a safetensors file; raises as `SafetensorsFile` does."""
    try:
        with open_regular(path) as file:
            file_size = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if MAX_HEADER_BYTES < length <= file_size - 8:
                raise CheckpointError(f"{path} has a header of more than {MAX_HEADER_BYTES >> 20} MiB; refused")
            if file_size < 8 or length > file_size - 8:
                what = f"{file_size} bytes, a header of {length}"
                raise CheckpointError(f"{path} is truncated or not safetensors: {what}; download it again")
            header = parse_json_object(file.read(length), f"{path} (header)")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    header.pop("__metadata__", None)
    data_start = 8 + length
    entries = {name: _read_entry(path, name, value, data_start) for name, value in header.items()}
    _check_coverage(path, entries, data_start, file_size)
    return entries


def _read_entry(path: Path, name: str, value: object, data_start: int) -> SafetensorsEntry:
    where = f"{path}: tensor {one_line(name)!r}"
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} is described by {type(value).__name__}, not by an object")
    dtype, shape, offsets = (value.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str):
        raise CheckpointError(f"{where} has no dtype")
    if not _is_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise CheckpointError(f"{where} has a shape that is not a list of sizes")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where} has data_offsets that are not [begin, end]")
    begin, end = offsets
    needed = math.prod(shape) * DTYPE_BYTES.get(dtype, 0)
    if dtype in DTYPE_BYTES and needed != end - begin:
        raise CheckpointError(f"{where} needs {needed} bytes for its shape, but holds {end - begin}")
    return SafetensorsEntry(dtype, tuple(shape), data_start + begin, data_start + end)


def _is_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 1 << 62 for size in value)


def _check_coverage(path: Path, entries: dict[str, SafetensorsEntry], data_start: int, file_size: int) -> None:
    """Check that the tensors lie one behind another up to the end of the file, as the format demands."""
    position = data_start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != position:
            kind = "overlaps the one before it" if entry.begin < position else "leaves a gap before it"
            raise CheckpointError(f"{path}: tensor {one_line(name)!r} {kind}")
        position = entry.end
    if position != file_size:
        state = "truncated" if position > file_size else "longer than its header says"
        raise CheckpointError(f"{path} is {state}: {file_size} bytes, {position} expected; download it again")
