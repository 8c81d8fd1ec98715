"""GGUF files, the format of llama.cpp: tensors of its many types, read as numbers; one file, or all parts of one.

`gguf_types` turns the blocks of types into numbers; `gguf_header` reads where they lie.
"""

import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.gguf import PART, parts_of
from tinychat.checkpoint.gguf_codes import codes_of, form_of
from tinychat.checkpoint.gguf_header import TensorEntry, read_header
from tinychat.checkpoint.gguf_ollama import in_llama_cpp_form
from tinychat.checkpoint.gguf_types import I2_S, numbers_of, type_of
from tinychat.checkpoint.group_codes import GroupCodes, in_22_bits
from tinychat.checkpoint.mapping import FloatArray, map_rows
from tinychat.checkpoint.tensors import Tensor
from tinychat.errors import CheckpointError, UnsupportedModelError
from tinychat.json_file import one_line
from tinychat.models.passthrough import Form

# Plain numbers, by the type's number in the file; bfloat16 is 30.
_PLAIN = {0: "float32", 1: "float16", 30: "bfloat16"}


class GgufTensor(Tensor):
    """A tensor of a GGUF file; the rows of one of three axes are those of all its matrices, one below the other."""

    def __init__(self, path: Path, name: str, entry: TensorEntry) -> None:
        self.path, self._name = path, name
        self._shape, self._type, self._offset = entry.shape, entry.type, entry.offset
        self._rows = (entry.shape[0] * entry.shape[1], entry.shape[2]) if len(entry.shape) == 3 else entry.shape

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the file."""
        return self._shape

    def check_readable(self) -> None:
        """Refuse a type that cannot be read."""
        if not _is_readable(self._type):
            raise UnsupportedModelError(
                f"{self.path}: tensor {one_line(self._name)!r} has type {self.kind}, which is not supported;"
                " get the model in another one, such as Q8_0"
            )

    def read(self, start: int, stop: int) -> FloatArray:
        """Return rows ``start..stop-1``: float32, or float16 or bfloat16 where it is stored so."""
        if self._type in _PLAIN:
            return map_rows(self.path, _PLAIN[self._type], self._offset, self._rows, start, stop)
        # The caller reports what is not finite.
        with np.errstate(all="ignore"):
            numbers = numbers_of(self.blocks(start, stop), self._type)
            return numbers * self._scale if self._type == I2_S else numbers

    @property
    def kind(self) -> str:
        """Name of the type, as "Q4_K"."""
        return type_of(self._type).name

    @property
    def form(self) -> Form | None:
        """Form of the codes; None for types that no form holds."""
        return form_of(self._type)

    def read_codes(self, start: int, stop: int) -> GroupCodes:
        """Return rows ``start..stop-1`` as codes."""
        found = codes_of(self.blocks(start, stop), self._type)
        return found.times(self._scale) if self._type == I2_S else found

    def blocks(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Return the bytes of rows ``start..stop-1``."""
        return map_rows(self.path, "uint8", self._offset, self._shape_of_blocks, start, stop)

    @property
    def _shape_of_blocks(self) -> tuple[int, ...]:
        found = type_of(self._type)
        return (*self._rows[:-1], self._rows[-1] // found.columns * found.bytes)

    @property
    def _scale(self) -> np.float32:
        """Scale of a whole tensor, which stands behind its blocks, in 22 bits."""
        behind = self._offset + math.prod(self._shape_of_blocks)
        return in_22_bits(map_rows(self.path, "float32", behind, (1,), 0, 1)[0])


class GgufFile:
    """One GGUF file, with the `metadata` and `tensors` of its header; errors as of `read_header`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata, entries = read_header(path)
        in_llama_cpp_form(self.metadata, entries)
        self.tensors = {name: GgufTensor(path, name, entry) for name, entry in entries.items()}


@cache
def _is_readable(kind: int) -> bool:
    """Return whether weights of a type can be read; those that llama.cpp only computes with cannot."""
    if kind in _PLAIN:
        return True
    try:
        found = type_of(kind)
        numbers_of(np.zeros((1, 256 // found.columns * found.bytes), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


_OPENED: WeakValueDictionary[tuple[int, ...], GgufFile] = WeakValueDictionary()


def open_gguf(path: Path) -> list[GgufFile]:
    """Open a GGUF file, or all files of one that is split, the first of which has the metadata."""
    first = _opened(path)
    count = first.metadata.get("split.count", 1)
    if type(count) is not int or count <= 1:
        return [first]
    files: list[GgufFile] = []
    seen: set[str] = set()
    for part in _parts(path, count):
        file = _opened(part)
        if file in files:
            raise CheckpointError(f"{part} is the same file as another part of {path.name}: download it again")
        if twice := seen & file.tensors.keys():
            name = one_line(min(twice))
            raise CheckpointError(f"{part} has tensor {name!r}, as another part of {path.name} has: download it again")
        files.append(file)
        seen |= file.tensors.keys()
    return files


def _opened(path: Path) -> GgufFile:
    """Return a file, the same one while it is in use: a vocabulary takes long to read."""
    try:
        status = os.stat(path)
    except OSError:
        return GgufFile(path)
    key = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    return _OPENED.get(key) or _OPENED.setdefault(key, GgufFile(path))


def _parts(path: Path, count: int) -> Iterator[Path]:
    """Yield the files of a split one; each name ends in ``-00001-of-00003.gguf``."""
    named = PART.fullmatch(path.stem)
    if named is None or int(named[3]) != count:
        raise CheckpointError(f"{path} is one of {count} parts, but its name does not say which: give it its name back")
    for file in parts_of(path):
        if not file.is_file():
            raise CheckpointError(f"{file} is missing, a part of {path.name}: download it too")
        yield file
