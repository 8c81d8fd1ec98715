"""The header of a GGUF file: metadata, and where each tensor lies, read within limits of memory and time.

Layout (github.com/ggml-org/ggml, docs/gguf.md): ``GGUF``, a version, two counts, metadata as keys with typed values,
the tensors' names, sizes, types and offsets, then their data, aligned. The package `gguf` trusts a file's counts and
lengths; here, each is checked against the rest of the file, and against the limits below, before it is used.
"""

import math
import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.gguf import MAGIC
from tinychat.checkpoint.gguf_types import OLDER_Q2_0, Q2_0, type_of
from tinychat.errors import CheckpointError, UnsupportedModelError
from tinychat.files import open_regular
from tinychat.json_file import one_line

# The header of a vocabulary of 262,144 tokens and 514,906 merges has 16 MB.
MAX_HEADER_BYTES = 256_000_000
MAX_TEXT_BYTES = 32_000_000
MAX_STRINGS = 1 << 20
_MAX_ENTRIES = 1 << 16
_MAX_AXES = 4
_VERSIONS = (2, 3)
_LENGTH = struct.Struct("<Q")
_STRING, _ARRAY = 8, 9
# By their numbers in the file.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True)
class TensorEntry:
    """A tensor: its shape in rows and columns, as numpy has it, the number of its type, and where it begins."""

    shape: tuple[int, ...]
    type: int
    offset: int


def read_header(path: Path) -> tuple[dict[str, Any], dict[str, TensorEntry]]:
    """Return metadata and tensors of a GGUF file.

    Values of the metadata are numbers, truth values, strings, bytes that are not UTF-8, lists of these two, and arrays
    of numbers or truth values [N], views of the file.
    """
    with _reader_of(path) as reader:
        count, entries = reader.counts()
        metadata = reader.metadata(entries)
        return metadata, reader.tensors(count, metadata.get("general.alignment", _DEFAULT_ALIGNMENT))


def read_beginning(path: Path) -> dict[str, Any]:
    """Return the metadata before the tokenizer's, None for each array: enough to tell the kind of model."""
    with _reader_of(path) as reader:
        _, entries = reader.counts()
        return reader.metadata(entries, beginning=True)


def bytes_of(shape: tuple[int, ...], kind: int) -> int:
    """Return the size of a tensor of this shape and type."""
    found = type_of(kind)
    return math.prod(shape) // found.columns * found.bytes + found.tail


class HeaderReader:
    """Reads a header from its beginning; refuses a length beyond the file before it uses it."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data, self._path = data, path
        self._position = 0
        self._end = min(len(data), MAX_HEADER_BYTES)
        self._string_count, self._text_bytes = 0, 0

    def counts(self) -> tuple[int, int]:
        """Read the file's beginning; return the numbers of tensors and of entries of metadata."""
        if self._take(len(MAGIC)) != MAGIC:
            raise self._damaged("does not begin with GGUF")
        version = self._number("I")
        if version not in _VERSIONS:
            raise CheckpointError(f"{self._path} has version {version} of GGUF; versions 2 and 3 are supported")
        tensors, entries = self._count(24), self._count(13)
        if max(tensors, entries) > _MAX_ENTRIES:
            raise self._damaged(f"has more than {_MAX_ENTRIES} entries")
        return tensors, entries

    def metadata(self, entries: int, beginning: bool = False) -> dict[str, Any]:
        """Read the metadata; its `beginning` ends before the tokenizer's keys, and has None for arrays."""
        found: dict[str, Any] = {}
        for _ in range(entries):
            key = self._name()
            if beginning and key.startswith("tokenizer."):
                break
            if key in found:
                raise self._damaged(f"has the key {one_line(key)!r} twice")
            kind = self._number("I")
            if kind == _ARRAY:
                found[key] = self._array(skipped=beginning)
            else:
                found[key] = self._string() if kind == _STRING else self._number(self._letter(kind))
        return found

    def tensors(self, count: int, alignment: object) -> dict[str, TensorEntry]:
        """Read the tensors' entries, which end the header."""
        entries = [self._tensor() for _ in range(count)]
        if type(alignment) is not int or not 1 <= alignment <= 1 << 16:
            raise self._damaged("has a general.alignment that cannot be")
        begin = -(-self._position // alignment) * alignment
        found: dict[str, TensorEntry] = {}
        for name, tensor in _with_older_types(entries):
            if tensor.shape[-1] % type_of(tensor.type).columns:
                raise self._damaged(f"gives tensor {one_line(name)!r} a shape that it cannot have")
            offset = begin + tensor.offset
            if name in found:
                raise self._damaged(f"has two tensors {one_line(name)!r}")
            if offset + bytes_of(tensor.shape, tensor.type) > len(self._data):
                raise self._damaged(f"ends within tensor {one_line(name)!r}")
            found[name] = TensorEntry(tensor.shape, tensor.type, offset)
        return found

    def _tensor(self) -> tuple[str, TensorEntry]:
        """Read a tensor's name and entry; its offset counts from the end of the header."""
        name = self._name()
        axes = self._number("I")
        if not 1 <= axes <= _MAX_AXES:
            raise self._damaged(f"gives tensor {one_line(name)!r} {axes} axes")
        # The fastest axis comes first there.
        shape = tuple(self._number("Q") for _ in range(axes))[::-1]
        kind, offset = self._number("I"), self._number("Q")
        block = _block_of(kind, name, self._path)
        if 0 in shape or (axes == 1 and block > 1) or math.prod(shape) > 1 << 48:
            raise self._damaged(f"gives tensor {one_line(name)!r} a shape that it cannot have")
        return name, TensorEntry(shape, kind, offset)

    def _array(self, skipped: bool) -> NDArray[Any] | list[str | bytes] | None:
        kind = self._number("I")
        if kind == _STRING:
            return self._strings(skipped)
        dtype = np.dtype(f"<{self._letter(kind)}")
        count, begin = self._count(dtype.itemsize), self._position
        self._skip(count * dtype.itemsize)
        if skipped:
            return None
        return np.frombuffer(self._data, dtype, count, begin)

    def _strings(self, skipped: bool) -> list[str | bytes] | None:
        """Read an array of strings; a vocabulary and its merges are some hundred thousand."""
        count = self._count(_LENGTH.size)
        self._string_count += count
        if self._string_count > MAX_STRINGS:
            raise self._refused(f"more than {MAX_STRINGS} texts")
        first = position = self._position
        last = min(self._end, first + count * _LENGTH.size + MAX_TEXT_BYTES - self._text_bytes)
        unpack, data = _LENGTH.unpack_from, self._data
        found: list[bytes] = []
        for _ in range(count):
            begin = position + _LENGTH.size
            if begin > last:
                raise self._beyond(begin)
            position = begin + unpack(data, position)[0]
            if position > last:
                raise self._beyond(position)
            if not skipped:
                found.append(data[begin:position])
        self._position = position
        self._text_bytes += position - first - count * _LENGTH.size
        return None if skipped else [_decoded(each) for each in found]

    def _name(self) -> str:
        value = self._string()
        if isinstance(value, bytes):
            raise self._damaged("has a name that is not UTF-8")
        return value

    def _string(self) -> str | bytes:
        size = self._count(1)
        self._text_bytes += size
        if self._text_bytes > MAX_TEXT_BYTES:
            raise self._beyond(self._position + size)
        return _decoded(self._take(size))

    def _letter(self, kind: int) -> str:
        """Return the letter of `struct` for a type of numbers."""
        if kind not in _SCALARS:
            raise self._damaged(f"has a value of unknown type {kind}")
        return _SCALARS[kind]

    def _count(self, least_bytes: int) -> int:
        """Read the number of things that have so many bytes at least."""
        count: int = self._number("Q")
        if count * least_bytes > len(self._data) - self._position:
            raise self._damaged("counts more than it holds")
        return count

    def _number(self, letter: str) -> Any:
        return struct.unpack(f"<{letter}", self._take(struct.calcsize(f"<{letter}")))[0]

    def _take(self, size: int) -> bytes:
        begin = self._position
        self._skip(size)
        return self._data[begin : self._position]

    def _skip(self, size: int) -> None:
        if size > self._end - self._position:
            raise self._beyond(self._position + size)
        self._position += size

    def _beyond(self, position: int) -> CheckpointError:
        """Return the error of a header that would end at a position."""
        if position > len(self._data):
            return self._damaged("ends within its header")
        if position > MAX_HEADER_BYTES:
            return self._refused(f"more than {MAX_HEADER_BYTES // 10**6} MB")
        return self._refused(f"more than {MAX_TEXT_BYTES // 10**6} MB of text")

    def _refused(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._path} has a header of {what}, which no model needs; get the file elsewhere")

    def _damaged(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self._path} {why}: the file is damaged, download it again")


def _with_older_types(entries: list[tuple[str, TensorEntry]]) -> list[tuple[str, TensorEntry]]:
    """Return the entries of a file whose Q2_0 may be the older one: each takes less there than the other would."""
    starts = sorted({tensor.offset for _, tensor in entries})
    room = {start: end - start for start, end in pairwise(starts)}

    def is_older(tensor: TensorEntry) -> bool:
        return tensor.type == Q2_0 and bytes_of(tensor.shape, Q2_0) > room.get(tensor.offset, math.inf)

    if not any(is_older(tensor) for _, tensor in entries):
        return entries
    return [(name, replace(each, type=OLDER_Q2_0) if each.type == Q2_0 else each) for name, each in entries]


def _decoded(data: bytes) -> str | bytes:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


def _block_of(kind: int, name: str, path: Path) -> int:
    """Return the number of weights in a block of a type."""
    try:
        return type_of(kind).columns
    except (ValueError, KeyError):
        raise UnsupportedModelError(
            f"{path}: tensor {one_line(name)!r} has type {kind}, which is not supported; get the model in another one"
        ) from None


@contextmanager
def _reader_of(path: Path) -> Iterator[HeaderReader]:
    try:
        with open_regular(path) as file:
            # Not closed here: arrays of the metadata are views of it.
            yield HeaderReader(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise CheckpointError(f"{path} cannot be read: {reason}") from None
