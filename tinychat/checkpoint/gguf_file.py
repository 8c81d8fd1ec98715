"""GGUF files, the format of llama.cpp: metadata, and tensors in its many types, read as numbers.

Layout (github.com/ggml-org/ggml, docs/gguf.md): ``GGUF``, a version, two counts, metadata as keys with typed values,
the tensors' names, sizes, types and offsets, then their data, aligned. The package `gguf` knows the types of the
tensors and turns their blocks into numbers. It trusts a file's counts and lengths; here, each is checked against what
is left of the file before it is used.
"""

import math
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.gguf import MAGIC, PART, parts_of
from tinychat.checkpoint.gguf_codes import FORMS, codes_of
from tinychat.checkpoint.group_codes import GroupCodes
from tinychat.checkpoint.mapping import FloatArray, map_rows
from tinychat.errors import CheckpointError
from tinychat.files import open_regular
from tinychat.json_file import one_line
from tinychat.models.kept import Form

_VERSIONS = (2, 3)
_LENGTH = struct.Struct("<Q")
_MOST_ENTRIES = 1 << 16
_MOST_AXES = 4
_STRING, _ARRAY = 8, 9
_BOOL = 7
# By their numbers in the file.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "?", 10: "Q", 11: "q", 12: "d"}
_USUAL_ALIGNMENT = 32
# Plain numbers, by the type's number in the file; bfloat16 is 30.
_PLAIN = {0: "float32", 1: "float16", 30: "bfloat16"}


@dataclass(frozen=True)
class GgufTensor:
    """A tensor: its shape in rows and columns, as numpy has it, the number of its type, and where it begins."""

    shape: tuple[int, ...]
    type: int
    offset: int


def matrix_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape in which rows are counted: of the matrices of all experts, one below the other."""
    return (shape[0] * shape[1], shape[2]) if len(shape) == 3 else shape


class GgufFile:
    """One GGUF file, its header read and checked. The rows of a tensor of three axes are those of all its matrices.

    Parameters
    ----------
    path : Path

    Attributes
    ----------
    metadata : dict
        Values by their keys: numbers, truth values, strings, bytes that are not UTF-8, or lists of these.
    tensors : dict of str to GgufTensor

    Raises
    ------
    CheckpointError
        If the file cannot be read, is damaged, or has tensors of a type that is not known.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _reader_of(path) as reader:
            self._size = len(reader.data)
            self._read_header(reader)

    def read(self, name: str, start: int, stop: int) -> FloatArray:
        """Return rows ``start..stop-1`` of a tensor: float32, or float16 or bfloat16 where it is stored so."""
        tensor = self.tensors[name]
        if tensor.type in _PLAIN:
            return map_rows(self.path, _PLAIN[tensor.type], tensor.offset, matrix_of(tensor.shape), start, stop)
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        rows = self._blocks(name, start, stop)
        # What is not finite is reported by whoever uses it.
        with np.errstate(all="ignore"):
            numbers: FloatArray = dequantize(rows, GGMLQuantizationType(tensor.type))
        return numbers.astype(np.float32, copy=False)

    def kind(self, name: str) -> str:
        """Return the name of a tensor's type, as "Q4_K"."""
        from gguf import GGMLQuantizationType

        return GGMLQuantizationType(self.tensors[name].type).name

    def form(self, name: str) -> Form | None:
        """Return how a tensor's codes can be kept; None for types that no form holds."""
        return FORMS.get(self.kind(name))

    def read_codes(self, name: str, start: int, stop: int) -> GroupCodes:
        """Return rows ``start..stop-1`` of a tensor that has a form, as codes."""
        return codes_of(self._blocks(name, start, stop), self.kind(name))

    def _blocks(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        """Return the bytes of some rows."""
        tensor = self.tensors[name]
        blocks = (*matrix_of(tensor.shape)[:-1], _bytes_of(tensor.shape[-1:], tensor.type))
        return map_rows(self.path, "uint8", tensor.offset, blocks, start, stop)

    def _read_header(self, reader: "_Reader") -> None:
        tensors, entries = reader.counts()
        self.metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = reader.text()
            self.metadata[key] = reader.value(reader.number("I"))
        found = [reader.tensor() for _ in range(tensors)]
        alignment = self.metadata.get("general.alignment", _USUAL_ALIGNMENT)
        if type(alignment) is not int or not 1 <= alignment <= 1 << 16:
            raise reader.damaged("has an alignment that cannot be")
        begin = -(-reader.position // alignment) * alignment
        self.tensors: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in found:
            if begin + offset + _bytes_of(shape, kind) > self._size:
                raise reader.damaged(f"ends within tensor {one_line(name)!r}")
            self.tensors[name] = GgufTensor(shape, kind, begin + offset)


class _Reader:
    """Reads a header from its beginning; what would lie beyond the file is refused before it is looked at."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self._path = data, path
        self.position = 0

    def damaged(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self._path} {why}: the file is damaged, download it again")

    def counts(self) -> tuple[int, int]:
        """Read the file's beginning; return how many tensors and entries of metadata there are."""
        if self.take(len(MAGIC)) != MAGIC:
            raise self.damaged("does not begin with GGUF")
        version = self.number("I")
        if version not in _VERSIONS:
            raise CheckpointError(f"{self._path} has version {version} of GGUF; versions 2 and 3 are supported")
        tensors, entries = self.count(24), self.count(13)
        if max(tensors, entries) > _MOST_ENTRIES:
            raise self.damaged(f"has more than {_MOST_ENTRIES} entries")
        return tensors, entries

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.position:
            raise self.damaged("ends within its header")
        self.position += size
        return self.data[self.position - size : self.position]

    def number(self, kind: str) -> Any:
        return struct.unpack(f"<{kind}", self.take(struct.calcsize(f"<{kind}")))[0]

    def count(self, least_bytes: int) -> int:
        """Read a count of things that have so many bytes at least."""
        count: int = self.number("Q")
        if count * least_bytes > len(self.data) - self.position:
            raise self.damaged("counts more than it holds")
        return count

    def string(self) -> str | bytes:
        return _decoded(self.take(self.count(1)))

    def strings(self, count: int) -> list[str | bytes]:
        """Read that many strings; a vocabulary and its merges are some hundred thousand."""
        data, end, found = self.data, len(self.data), list[str | bytes]()
        for _ in range(count):
            begin = self.position + _LENGTH.size
            if begin > end:
                raise self.damaged("ends within its header")
            (size,) = _LENGTH.unpack(data[self.position : begin])
            if size > end - begin:
                raise self.damaged("counts more than it holds")
            self.position = begin + size
            found.append(_decoded(data[begin : self.position]))
        return found

    def text(self) -> str:
        value = self.string()
        if isinstance(value, bytes):
            raise self.damaged("has a name that is not UTF-8")
        return value

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.number(self._scalar(kind))
        inner = self.number("I")
        if inner == _STRING:
            return self.strings(self.count(8))
        letter = self._scalar(inner)
        size = struct.calcsize(f"<{letter}")
        count = self.count(size)
        return list(struct.unpack(f"<{count}{letter}", self.take(count * size)))

    def _scalar(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise self.damaged(f"has a value of unknown type {kind}")
        return _SCALARS[kind]

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Return name, shape, type and offset of the next tensor."""
        name = self.text()
        axes = self.number("I")
        if not 1 <= axes <= _MOST_AXES:
            raise self.damaged(f"gives tensor {one_line(name)!r} {axes} axes")
        # The fastest axis comes first there.
        shape = tuple(self.number("Q") for _ in range(axes))[::-1]
        kind, offset = self.number("I"), self.number("Q")
        block, _ = _block_of(kind, name, self._path)
        if shape[-1] % block or (axes == 1 and block > 1) or math.prod(shape) > 1 << 48:
            raise self.damaged(f"gives tensor {one_line(name)!r} a shape that it cannot have")
        return name, shape, kind, offset


def _decoded(data: bytes) -> str | bytes:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


_OPENED: WeakValueDictionary[tuple[int, ...], GgufFile] = WeakValueDictionary()


@contextmanager
def _reader_of(path: Path) -> Iterator[_Reader]:
    try:
        with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield _Reader(data, path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise CheckpointError(f"{path} cannot be read: {reason}") from None


def read_beginning(path: Path) -> dict[str, Any]:
    """Return the metadata before the tokenizer's: what kind of model a file holds, without its long lists.

    Raises
    ------
    CheckpointError
        If the file cannot be read, or is damaged so far.
    """
    metadata: dict[str, Any] = {}
    with _reader_of(path) as reader:
        _, entries = reader.counts()
        for _ in range(entries):
            key = reader.text()
            if key.startswith("tokenizer."):
                break
            metadata[key] = reader.value(reader.number("I"))
    return metadata


def _block_of(kind: int, name: str, path: Path) -> tuple[int, int]:
    """Return how many numbers and bytes a block of a type has."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        return GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except (ValueError, KeyError):
        raise CheckpointError(f"{path}: tensor {one_line(name)!r} has type {kind}, which is not supported") from None


def _bytes_of(shape: tuple[int, ...], kind: int) -> int:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    return math.prod(shape) // block * size


def open_gguf(path: Path) -> list[GgufFile]:
    """Open a GGUF file, or all files of one that is split, the first of which has the metadata.

    Raises
    ------
    CheckpointError
        If one is missing or damaged.
    """
    first = _opened(path)
    count = first.metadata.get("split.count", 1)
    if type(count) is not int or count <= 1:
        return [first]
    return [_opened(part) for part in _parts(path, count)]


def _opened(path: Path) -> GgufFile:
    """Return a file; the same as before if somebody has it still, for to read a vocabulary takes a while."""
    try:
        status = os.stat(path)
    except OSError:
        return GgufFile(path)
    key = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    file = _OPENED.get(key)
    if file is None:
        file = _OPENED[key] = GgufFile(path)
    return file


def _parts(path: Path, count: int) -> Iterator[Path]:
    """Yield the files of a split one; each name ends in ``-00001-of-00003.gguf``."""
    named = PART.fullmatch(path.stem)
    if named is None or int(named[3]) != count:
        raise CheckpointError(f"{path} is one of {count} parts, but its name does not say which: give it its name back")
    for file in parts_of(path):
        if not file.is_file():
            raise CheckpointError(f"{file} is missing, a part of {path.name}: download it too")
        yield file
