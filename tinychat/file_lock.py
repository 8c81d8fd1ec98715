"""File locks between processes, which end with the process, however it ends."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_SECONDS_BETWEEN_TRIES = 0.1
_HELD_BY_ANOTHER = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
# Windows keeps others from reading the bytes that are locked: one far behind the end of any file is.
_BYTE = 1 << 40


def try_lock(file_number: int) -> bool:
    """Lock an open file for this process, without waiting; return False if another process has it.

    The lock ends when the file is closed. File systems without locks grant it to everybody.
    """
    try:
        if sys.platform == "win32":
            position = os.lseek(file_number, 0, os.SEEK_CUR)
            os.lseek(file_number, _BYTE, os.SEEK_SET)
            try:
                msvcrt.locking(file_number, msvcrt.LK_NBLCK, 1)
            finally:
                os.lseek(file_number, position, os.SEEK_SET)
        else:
            fcntl.flock(file_number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _HELD_BY_ANOTHER
    return True


@contextmanager
def locked(path: Path, waiting: Callable[[], object]) -> Iterator[None]:
    """Hold the lock of a file, made for it and gone afterwards; `waiting` is called before a wait."""
    file_number = open_locked(path)
    if file_number is None:
        waiting()
    while file_number is None:
        time.sleep(_SECONDS_BETWEEN_TRIES)
        file_number = open_locked(path)
    try:
        yield
    finally:
        _unlock(path, file_number)


@contextmanager
def locked_within(path: Path, seconds: float, pause: Callable[[], object]) -> Iterator[bool]:
    """Hold the lock of a file, or go on without it after so many seconds; yields whether it is held.

    For locks that only save work: whoever holds one may have been stopped. `pause` is called again and again during the
    wait, and takes some time.
    """
    until = time.monotonic() + seconds
    while (file_number := open_locked(path)) is None and time.monotonic() < until:
        pause()
    try:
        yield file_number is not None
    finally:
        if file_number is not None:
            _unlock(path, file_number)


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of a file; a killed one leaves the file."""
    try:
        file_number = os.open(path, os.O_RDWR)
    except OSError:
        return False
    is_free = try_lock(file_number)
    os.close(file_number)
    return not is_free


def is_file_at(path: Path, file_number: int) -> bool:
    """Return whether an open file is still the one of this name."""
    try:
        return os.path.samestat(os.fstat(file_number), os.stat(path))
    except OSError:
        return False


def open_locked(path: Path) -> int | None:
    """Open a file, made if it is missing, with its lock; None if another process has that."""
    file_number = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if try_lock(file_number) and is_file_at(path, file_number):
        return file_number
    os.close(file_number)
    return None


def _unlock(path: Path, file_number: int) -> None:
    # Unlinked first: whoever opened it meanwhile finds that it is no longer the file of this name.
    if sys.platform != "win32":
        with suppress(OSError):
            path.unlink()
    os.close(file_number)
    if sys.platform == "win32":
        # There, an open file cannot be unlinked, so nobody else has it open if this works.
        with suppress(OSError):
            path.unlink()
