"""Reading files that others wrote: regular files only, within a size; and replacing our own."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import BinaryIO

from tinychat.errors import TextError
from tinychat.file_lock import try_lock

# Half a gigabyte of text is more than any context, and a week of perplexity.
MAX_TEXT_BYTES = 512 << 20
HAS_NUL = "holds NUL bytes, so it is not text: convert it first"
"""The end of an error about bytes that are valid UTF-8, as UTF-16 and many binary files are, but no text."""
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
# A pipe would wait for its writer; regular files know no such flag. Windows has neither.
_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)

# Readers of small files, and what looks for viruses in a new one, are soon done.
_RENAMING_SECONDS = 2.0
_PAUSE_SECONDS = 0.02


@contextmanager
def replacing(path: Path, is_private: bool = True) -> Iterator[BinaryIO]:
    """Yield a file to write that replaces `path` in one step at the end, and is gone if anything goes wrong.

    Only its owner may read a private one; another one has the rights of the file that it replaces, or those that the
    user's new files have. `OSError` if it cannot be written.
    """
    # One name for each process: two must not write into each other's file.
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # Nobody else may open the new text of a private file before it has that file's rights.
        mode = 0o600 if is_private or path.exists() else 0o666
        # No link that somebody has put there is followed.
        with open(aside, "wb", opener=lambda name, flags: os.open(name, flags | _NO_LINK, mode)) as file:
            if not is_private and hasattr(os, "fchmod"):
                with suppress(OSError):
                    os.fchmod(file.fileno(), path.stat().st_mode & 0o777)
            # It ends with the process: see `unfinished_bytes`.
            try_lock(file.fileno())
            yield file
        replace(aside, path)
    finally:
        # Still there only if something went wrong, Ctrl-C included.
        with suppress(OSError):
            aside.unlink()


def write_new(path: Path, text: str) -> None:
    """Write a new file, whole or not at all; `OSError` if there is one, or it cannot be written."""
    file = path.open("x", encoding="utf-8", newline="\n")
    try:
        with file:
            file.write(text)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise


def replace(source: Path, target: Path) -> None:
    """Rename a file or folder, over a file that is there: on Windows again and again while somebody reads that.

    `OSError` if it cannot be renamed, there after `_RENAMING_SECONDS`.
    """
    until = monotonic() + _RENAMING_SECONDS
    while True:
        try:
            return os.replace(source, target)
        except PermissionError:
            # Elsewhere an open file can be replaced, so this is a matter of rights.
            if sys.platform != "win32" or monotonic() >= until:
                raise
        sleep(_PAUSE_SECONDS)


def unfinished_bytes(folder: Path, names: str) -> int:
    """Return the bytes that living processes write by `replacing`; remove the files of killed ones.

    `names` is a pattern of the files' names, as in "*.cache".
    """
    size = 0
    for aside in folder.glob(f".{names}.*.tmp"):
        with suppress(OSError):
            with open_regular(aside) as file:
                is_left = try_lock(file.fileno())
                size += 0 if is_left else os.fstat(file.fileno()).st_size
            if is_left:
                aside.unlink()
    return size


def open_regular(path: Path, beneath: Path | None = None) -> BinaryIO:
    """Open a regular file for reading in binary; `OSError` for a folder, a pipe or a device.

    `beneath` is a folder above it: then no part of the path between them is followed if it is, or becomes, a link.
    """
    if beneath is None or os.open not in os.supports_dir_fd:
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | _AT_ONCE))
    else:
        parts = path.relative_to(beneath).parts or (".",)
        file = open(path, "rb", opener=lambda _, flags: _open_parts(beneath, parts, flags | _AT_ONCE))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def _open_parts(folder: Path, parts: tuple[str, ...], flags: int) -> int:
    """Open a file below a folder one part of its path after the other; a link is an `OSError`."""
    *folders, name = parts
    folder_flags = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
    number = os.open(folder, folder_flags)
    try:
        for part in folders:
            inner = os.open(part, folder_flags | _NO_LINK, dir_fd=number)
            os.close(number)
            number = inner
        return os.open(name, flags | _NO_LINK, dir_fd=number)
    finally:
        os.close(number)


def read_small(path: Path, limit: int) -> bytes:
    """Return the contents of a regular file; `OSError` if it has more than `limit` bytes, checked first."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise _too_large(path, limit)
        return read_up_to(file, path, limit)


def read_stream(path: Path, limit: int) -> bytes:
    """Return the contents of a file, pipe or device that a person named; ``<(command)`` of a shell is a pipe.

    `OSError` if it holds more than `limit` bytes.
    """
    with open(path, "rb") as file:
        return read_up_to(file, path, limit)


def read_text(path: Path, limit: int = MAX_TEXT_BYTES) -> str:
    """Return the text of a file, pipe or device that a person named.

    `TextError` if it cannot be read, is not text in UTF-8, has a NUL byte, or holds more than `limit` bytes.
    """
    try:
        text = read_stream(path, limit).decode("utf-8")
    except OSError as error:
        raise TextError(f"{path} cannot be read: {error.strerror or error}; check the path") from None
    except ValueError:
        raise TextError(f"{path} is not a text in UTF-8: convert it first") from None
    if "\0" in text:
        raise TextError(f"{path} {HAS_NUL}")
    return text


def read_up_to(file: BinaryIO, path: Path, limit: int) -> bytes:
    """Return the rest of an open file, whose errors name `path`; `OSError` if it has more than `limit` bytes."""
    data = file.read(limit + 1)
    if len(data) > limit:
        raise _too_large(path, limit)
    return data


def _too_large(path: Path, limit: int) -> OSError:
    return OSError(errno.EFBIG, f"it is larger than {limit >> 20} MiB", str(path))
