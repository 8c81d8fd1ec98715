"""Where rows are: files and folders of this machine, stdin, and addresses that fsspec opens."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tinychat.errors import SettingError, TinychatError
from tinychat.files import replacing
from tinychat.installing import install_command

_NAME = re.compile(r"\.(jsonl|csv|parquet)(?:\.(gz|zst))?$", re.IGNORECASE)


class Format(NamedTuple):
    """The format of a file, by the end of its name: JSON Lines where that says nothing else."""

    kind: str = "jsonl"
    compression: str = ""

    @property
    def is_table(self) -> bool:
        """Whether all rows have the same columns."""
        return self.kind != "jsonl"


@dataclass(frozen=True)
class Location:
    """A path, an address such as ``s3://bucket/rows.parquet``, or - for stdin and stdout."""

    name: str

    def __str__(self) -> str:
        return self.name

    @property
    def is_stream(self) -> bool:
        """Whether this is stdin or stdout."""
        return self.name == "-"

    @property
    def is_remote(self) -> bool:
        """Whether fsspec opens it."""
        return "://" in self.name

    @property
    def path(self) -> Path:
        """The path on this machine."""
        return Path(self.name)

    @property
    def base_name(self) -> str:
        """The last part of the name."""
        return self.name.rstrip("/").rpartition("/")[2] if self.is_remote else self.path.name

    @cached_property
    def format(self) -> Format:
        """The format by the name; `SettingError` for compressed Parquet, which is compressed inside."""
        found = _NAME.search(self.name)
        if found is None:
            return Format()
        kind, compression = found[1].lower(), (found[2] or "").lower()
        if kind == "parquet" and compression:
            raise SettingError(f"{self}: Parquet is compressed inside; leave out .{compression}")
        return Format(kind, compression)

    @property
    def exists(self) -> bool:
        """Whether there is a file or folder."""
        if not self.is_remote:
            return self.path.exists()
        with self._opened() as (system, inside):
            return bool(system.exists(inside))

    @property
    def is_folder(self) -> bool:
        """Whether this is a folder."""
        if not self.is_remote:
            return self.path.is_dir()
        with self._opened() as (system, inside):
            return bool(system.isdir(inside))

    @property
    def can_be_read_again(self) -> bool:
        """Whether reading starts at the beginning each time, unlike that of a pipe."""
        return self.is_remote or (not self.is_stream and (self.path.is_dir() or self.path.is_file()))

    def files(self) -> list[Location]:
        """Return this file, or the files with rows of this folder by name.

        Names that begin with a dot or an underscore, and other ends than those of the formats, are left out.
        `SettingError` if none is left.
        """
        if self.is_stream or not self.is_folder:
            return [self]
        if self.is_remote:
            with self._opened() as (system, inside):
                names = [system.unstrip_protocol(name) for name in system.ls(inside, detail=False)]
        else:
            names = [str(path) for path in self.path.iterdir()]
        found = [Location(name) for name in sorted(names) if _NAME.search(name)]
        if not (shown := [file for file in found if file.base_name[0] not in "._"]):
            raise SettingError(f"{self} has no files that end with .jsonl, .csv or .parquet: give another folder")
        return shown

    def child(self, name: str) -> Location:
        """Return the file of this name in this folder."""
        return Location(f"{self.name.rstrip('/')}/{name}" if self.is_remote else str(self.path / name))

    @property
    def parent(self) -> Location:
        """The folder of this file."""
        return Location(self.name.rstrip("/").rpartition("/")[0] if self.is_remote else str(self.path.parent))

    def require(self) -> None:
        """Raise the error of opening it, if there is no such file."""
        if self.is_remote:
            with self._opened() as (system, inside):
                system.info(inside)
        elif not self.is_stream:
            self.path.stat()

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the file for reading in binary; stdin stays open."""
        if self.is_stream:
            yield sys.stdin.buffer
        elif self.is_remote:
            with self._opened() as (system, inside):
                file = system.open(inside, "rb")
            with file:
                yield file
        else:
            with open(self.path, "rb") as file:
                yield file

    @contextmanager
    def replacing(self) -> Iterator[BinaryIO]:
        """Yield a file that replaces this one at the end, and is gone if anything goes wrong.

        For an address it is a temporary file of the working folder, which is uploaded.
        """
        if not self.is_remote:
            with replacing(self.path, is_private=False) as file:
                yield file
            return
        with tempfile.TemporaryDirectory(prefix=".upload-", dir=".") as folder:
            local = Path(folder) / self.base_name
            with open(local, "wb") as file:
                yield file
            with self._opened() as (system, inside):
                system.makedirs(inside.rpartition("/")[0], exist_ok=True)
                system.put_file(str(local), inside)

    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, str]]:
        """Yield the file system of an address, and the name in it; turn their errors into one line that names it."""
        try:
            yield self._in_file_system
        except TinychatError:
            raise
        # Each protocol's package has errors of its own.
        except Exception as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise SettingError(f"{self} cannot be used: {reason}; check the address and its package") from None

    @cached_property
    def _in_file_system(self) -> tuple[Any, str]:
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise SettingError(f"{self} needs the package fsspec: {install_command('fsspec')}") from None
        found: tuple[Any, str] = url_to_fs(self.name)
        return found


def arrow() -> Any:
    """Import pyarrow, an optional dependency, with its Parquet; `SettingError` with a remedy if it is missing."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise SettingError(f"Parquet and .zst need the package pyarrow: {install_command('pyarrow')}") from None
    return pyarrow
