"""GGUF files, the format of llama.cpp: tensors of its many types, read as numbers; one file, or all parts of one.

The package `gguf` turns the blocks of its types into numbers; `gguf_header` reads where they lie.
"""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.gguf import PART, parts_of
from tinychat.checkpoint.gguf_codes import FORMS, codes_of
from tinychat.checkpoint.gguf_header import bytes_of, read_header
from tinychat.checkpoint.group_codes import GroupCodes
from tinychat.checkpoint.mapping import FloatArray, map_rows
from tinychat.errors import CheckpointError, UnsupportedModelError
from tinychat.json_file import one_line
from tinychat.models.passthrough import Form

# Plain numbers, by the type's number in the file; bfloat16 is 30.
_PLAIN = {0: "float32", 1: "float16", 30: "bfloat16"}


def matrix_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape in which rows are counted: of the matrices of all experts, one below the other."""
    return (shape[0] * shape[1], shape[2]) if len(shape) == 3 else shape


class GgufFile:
    """One GGUF file, with the `metadata` and `tensors` of its header; errors as of `read_header`.

    The rows of a tensor of three axes are those of all its matrices.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata, self.tensors = read_header(path)

    def check_readable(self, name: str) -> None:
        """Refuse a tensor whose type cannot be read."""
        if not _is_readable(self.tensors[name].type):
            raise UnsupportedModelError(
                f"{self.path}: tensor {one_line(name)!r} has type {self.kind(name)}, which is not supported;"
                " get the model in another one, such as Q8_0"
            )

    def read(self, name: str, start: int, stop: int) -> FloatArray:
        """Return rows ``start..stop-1`` of a tensor: float32, or float16 or bfloat16 where it is stored so."""
        tensor = self.tensors[name]
        if tensor.type in _PLAIN:
            return map_rows(self.path, _PLAIN[tensor.type], tensor.offset, matrix_of(tensor.shape), start, stop)
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        rows = self._blocks(name, start, stop)
        # The caller reports what is not finite.
        with np.errstate(all="ignore"):
            numbers: FloatArray = dequantize(rows, GGMLQuantizationType(tensor.type))
        return numbers.astype(np.float32, copy=False)

    def kind(self, name: str) -> str:
        """Return the name of a tensor's type, as "Q4_K"."""
        from gguf import GGMLQuantizationType

        return GGMLQuantizationType(self.tensors[name].type).name

    def form(self, name: str) -> Form | None:
        """Return the form of a tensor's codes; None for types that no form holds."""
        return FORMS.get(self.kind(name))

    def read_codes(self, name: str, start: int, stop: int) -> GroupCodes:
        """Return rows ``start..stop-1`` of a tensor that has a form, as codes."""
        return codes_of(self._blocks(name, start, stop), self.kind(name))

    def _blocks(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        """Return the bytes of some rows."""
        tensor = self.tensors[name]
        blocks = (*matrix_of(tensor.shape)[:-1], bytes_of(tensor.shape[-1:], tensor.type))
        return map_rows(self.path, "uint8", tensor.offset, blocks, start, stop)


@cache
def _is_readable(kind: int) -> bool:
    """Return whether weights of a type can be read; those that llama.cpp only computes with cannot."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    if kind in _PLAIN:
        return True
    try:
        dequantize(np.zeros((1, bytes_of((256,), kind)), np.uint8), GGMLQuantizationType(kind))
    except NotImplementedError:
        return False
    return True


_OPENED: WeakValueDictionary[tuple[int, ...], GgufFile] = WeakValueDictionary()


def open_gguf(path: Path) -> list[GgufFile]:
    """Open a GGUF file, or all files of one that is split, the first of which has the metadata.

    Raises
    ------
    CheckpointError, UnsupportedModelError
        If one is missing or damaged, is another's link, or has a tensor that another has.
    """
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
