"""One PyTorch ``.bin`` file of the zip format (since PyTorch 1.6), its tensors mapped without torch."""

import math
import struct
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.mapping import DTYPES, FLOATS, INTEGERS, FloatArray, map_rows
from tinychat.checkpoint.tensor_pickle import Storage, TensorRecord, read_tensor_pickle
from tinychat.errors import CheckpointError
from tinychat.files import open_regular
from tinychat.json_file import one_line

# The pickle of a 70-billion-parameter model has about 100 kB; each byte can cost one object.
_MAX_PICKLE_BYTES = 4 << 20
_LITTLE = b"little"
_ZIP_BEGINNING = b"PK\x03\x04"
_LOCAL_HEADER_BYTES = 30
_REMEDY = "load it with torch and save it as safetensors"


class PytorchFile:
    """The tensors of one ``.bin`` file, its pickle and directory read and checked now, its data only by `read`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open_regular(path) as file:
                self._entries, pickle = _read_archive(path, file)
        except (zipfile.BadZipFile, NotImplementedError, struct.error, ValueError, EOFError) as error:
            raise CheckpointError(f"{path} is damaged: {one_line(str(error))}; download it again") from None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
        self._records = read_tensor_pickle(pickle, str(path))
        if not self._records:
            raise CheckpointError(f"{path} holds no tensors at its top level; {_REMEDY}")
        for name, record in self._records.items():
            _check_extent(f"{path}: tensor {one_line(name)!r}", record)

    def names(self) -> frozenset[str]:
        """Return the names of all tensors."""
        return frozenset(self._records)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor of `names`."""
        return self._records[name].shape

    def read(self, name: str, start: int, stop: int) -> FloatArray:
        """Map rows ``start..stop-1`` of a tensor of `names`; a transposed one is copied."""
        return self._read(name, start, stop, FLOATS)

    def read_integers(self, name: str) -> NDArray[Any]:
        """Map a tensor of `names` that holds whole numbers of 8, 32 or 64 bits."""
        shape = self.shape(name)
        return self._read(name, 0, shape[0] if shape else 1, INTEGERS)

    def _read(self, name: str, start: int, stop: int, dtypes: Collection[str]) -> NDArray[Any]:
        record = self._records[name]
        data_start = self._data_start(name, record.storage, dtypes)
        dtype = record.storage.dtype
        if _is_row_major(record):
            begin = data_start + record.offset * DTYPES[dtype].itemsize
            return map_rows(self.path, dtype, begin, record.shape, start, stop)
        size = record.storage.size
        whole = map_rows(self.path, dtype, data_start, (size,), 0, size)
        # The stride of a dimension of one item means nothing, and may be any number.
        strides = [stride * whole.itemsize if size > 1 else 0 for size, stride in zip(record.shape, record.stride)]
        window = np.lib.stride_tricks.as_strided(whole[record.offset :], record.shape, strides)
        return np.ascontiguousarray(window[start:stop])

    def _data_start(self, name: str, storage: Storage, dtypes: Collection[str]) -> int:
        """Find a storage in the file, once its type and length are known to be right."""
        where = f"{self.path}: tensor {one_line(name)!r}"
        if storage.dtype not in dtypes:
            raise CheckpointError(f"{where} is {storage.dtype}; only {', '.join(dtypes)} can be read")
        if storage.key not in self._entries:
            raise CheckpointError(f"{where} has no data in the file; download it again")
        begin, size = self._entries[storage.key]
        if storage.size * DTYPES[storage.dtype].itemsize > size:
            raise CheckpointError(f"{where} needs more data than the {size} bytes in the file")
        return begin


def _read_archive(path: Path, file: IO[bytes]) -> tuple[dict[str, tuple[int, int]], bytes]:
    """Return where each storage's bytes begin and how many they are, and the pickle."""
    file_size = file.seek(0, 2)
    file.seek(0)
    beginning = file.read(4)
    if beginning != _ZIP_BEGINNING:
        old = beginning[:1] == b"\x80"
        kind = "in the format before PyTorch 1.6" if old else "no PyTorch checkpoint"
        raise CheckpointError(f"{path} is {kind}; {_REMEDY if old else 'download it again'}")
    with zipfile.ZipFile(file) as archive:
        roots = [name.removesuffix("/data.pkl") for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(roots) != 1:
            raise CheckpointError(f"{path} is a zip file, but no PyTorch checkpoint; download it again")
        (root,) = roots
        for info in archive.infolist():
            is_stored = info.compress_type == zipfile.ZIP_STORED and info.compress_size == info.file_size
            if not is_stored or info.flag_bits & 1:
                raise CheckpointError(f"{path}: {one_line(info.filename)} is compressed or encrypted; refused")
        if archive.getinfo(f"{root}/data.pkl").file_size > _MAX_PICKLE_BYTES:
            raise CheckpointError(f"{path}: its index is larger than {_MAX_PICKLE_BYTES >> 20} MiB; refused")
        pickle = archive.read(f"{root}/data.pkl")
        order = f"{root}/byteorder"
        if order in archive.namelist() and not _is_little(archive, order):
            raise CheckpointError(f"{path} was saved on a big-endian machine; {_REMEDY}")
        prefix = f"{root}/data/"
        entries = {
            info.filename[len(prefix) :]: _stored_bytes(file, info, file_size)
            for info in archive.infolist()
            if info.filename.startswith(prefix)
        }
    return entries, pickle


def _is_little(archive: zipfile.ZipFile, order: str) -> bool:
    """Return whether the archive's word for the order of bytes is "little"; one of any length is not read."""
    return archive.getinfo(order).file_size == len(_LITTLE) and archive.read(order) == _LITTLE


def _stored_bytes(file: IO[bytes], info: zipfile.ZipInfo, file_size: int) -> tuple[int, int]:
    """Return begin and length of an entry, by its local header: the directory does not have them."""
    file.seek(info.header_offset)
    header = file.read(_LOCAL_HEADER_BYTES)
    if len(header) != _LOCAL_HEADER_BYTES or header[:4] != _ZIP_BEGINNING:
        raise ValueError(f"{info.filename} is not where the directory says")
    name_bytes, extra_bytes = struct.unpack_from("<HH", header, 26)
    begin = info.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes
    if begin + info.file_size > file_size:
        raise ValueError(f"{info.filename} reaches beyond the end of the file")
    return begin, info.file_size


def _check_extent(where: str, record: TensorRecord) -> None:
    """Check that a tensor lies in its storage and has no more values: strides of zero could claim any size."""
    count = math.prod(record.shape)
    last = sum((size - 1) * stride for size, stride in zip(record.shape, record.stride)) if count else 0
    if count > record.storage.size or (count and record.offset + last >= record.storage.size):
        raise CheckpointError(f"{where} is larger than its storage; download it again")


def _is_row_major(record: TensorRecord) -> bool:
    strides = [math.prod(record.shape[axis + 1 :]) for axis in range(len(record.shape))]
    return all(size == 1 or found == stride for size, found, stride in zip(record.shape, record.stride, strides))
