"""Reading files that others wrote: regular files only, and no more of them than they may have."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

# A pipe would wait for its writer; regular files know no such flag. Windows has neither.
_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading in binary, if it is a regular one.

    Raises
    ------
    OSError
        It cannot be opened, or is a folder, a pipe or a device.
    """
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | _AT_ONCE))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def read_small(path: Path, limit: int) -> bytes:
    """Return what a regular file holds, its size checked first.

    Parameters
    ----------
    path : Path
    limit : int
        Bytes that it may have.

    Raises
    ------
    OSError
        It cannot be read, is not a regular file, or is larger.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise _too_large(path, limit)
        return _read_up_to(file, path, limit)


def read_stream(path: Path, limit: int) -> bytes:
    """Return what a file, pipe or device holds that a person named; ``<(command)`` of a shell is a pipe.

    Raises
    ------
    OSError
        It cannot be read, or holds more than `limit` bytes.
    """
    with open(path, "rb") as file:
        return _read_up_to(file, path, limit)


def _read_up_to(file: BinaryIO, path: Path, limit: int) -> bytes:
    data = file.read(limit + 1)
    if len(data) > limit:
        raise _too_large(path, limit)
    return data


def _too_large(path: Path, limit: int) -> OSError:
    return OSError(errno.EFBIG, f"it is larger than {limit >> 20} MiB", str(path))
