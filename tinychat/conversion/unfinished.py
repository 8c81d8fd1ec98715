"""The folder in which a conversion works: beside its target, and with a journal of what is finished.

A conversion that fails removes it. One that was killed leaves it; the next one of the same checkpoint in the same way
finds it by its name, checks what the journal lists against the file, and goes on from there.
"""

import io
import json
import os
import shutil
import stat
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.checkpoint import TEXT_FILES
from tinychat.errors import ConversionError
from tinychat.file_lock import try_lock
from tinychat.files import read_small

# A conversion writes all the time.
_STALE_SECONDS = 24 * 3600.0
_LARGEST_JOURNAL = 256 << 20
_LARGEST_TEXT_FILE = 64 << 20
_AT_ONCE = 1 << 20
Array = NDArray[np.generic]


class _Entry(TypedDict):
    """A line of the journal: what was written of a layer of a linear, and what is to be remembered of it."""

    linear: str
    layer: int
    parts: list[tuple[str, int, int, int]]  # tensor, first byte, bytes, CRC-32
    note: list[float]


class WorkFolder:
    """One conversion's folder.

    Attributes
    ----------
    folder : Path
    model : Path
        A folder in it, which becomes the target.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = folder / "model"
        self.model.mkdir(exist_ok=True)

    def read(self, name: str) -> dict[str, object]:
        """Return the bytes that an earlier try wrote under a name; nothing if it did not come so far, or is damaged."""
        data = _read_checked(self.folder / name)
        return {} if data is None else dict(json.loads(data))

    def write(self, name: str, value: Mapping[str, object]) -> None:
        """Write something that a later try is to find, all of it or nothing."""
        _write_checked(self.folder / name, json.dumps(value).encode())

    def read_arrays(self, name: str) -> dict[str, Array]:
        """Return arrays as `read` returns values."""
        data = _read_checked(self.folder / name)
        if data is None:
            return {}
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return dict(arrays)

    def write_arrays(self, name: str, arrays: Mapping[str, Array]) -> None:
        """Write arrays as `write` does."""
        data = io.BytesIO()
        np.savez(data, **arrays)  # type: ignore[arg-type]
        _write_checked(self.folder / name, data.getvalue())

    def seal(self, name: str) -> None:
        """Note what the files of a folder hold, for `is_sealed`."""
        self.write(f"{name}.sealed", _checksums(self.folder / name))

    def is_sealed(self, name: str) -> bool:
        """Return whether a folder is there, and its files hold what they held when `seal` was called."""
        noted = self.read(f"{name}.sealed")
        try:
            return bool(noted) and noted == _checksums(self.folder / name)
        except OSError:
            return False


def _write_checked(file: Path, data: bytes) -> None:
    """Replace a file by a checksum and data."""
    aside = file.with_name(f"{file.name}.new")
    aside.write_bytes(_with_checksum(data))
    os.replace(aside, file)


def _read_checked(file: Path) -> bytes | None:
    """Return the data of a file that `_write_checked` wrote; None if it is missing or damaged."""
    try:
        return _without_checksum(file.read_bytes())
    except OSError:
        return None


def _with_checksum(data: bytes) -> bytes:
    return b"%08x %b" % (zlib.crc32(data), data)


def _without_checksum(data: bytes) -> bytes | None:
    """Return the value that `_with_checksum` was given; None if either is damaged."""
    return data[9:] if data[:9] == b"%08x " % zlib.crc32(data[9:]) else None


def _checksums(folder: Path) -> dict[str, int]:
    """Return the CRC-32 of each file of a folder by its name."""
    return {file.name: _checksum(file) for file in folder.iterdir()}


def _checksum(file: Path) -> int:
    checksum = 0
    with file.open("rb") as stream:
        while data := stream.read(_AT_ONCE):
            checksum = zlib.crc32(data, checksum)
    return checksum


@contextmanager
def work_for(dst: Path, key: str, keeps: bool = False) -> Iterator[WorkFolder]:
    """Give the folder of a conversion to `dst`: a new one, or that of one to the same key that was killed.

    It is removed at the end. If nothing fails, what is in `WorkFolder.model` has become `dst` by then.

    Parameters
    ----------
    dst : Path
    key : str
        Says what is converted and how: see `key_of`.
    keeps : bool
        Whether Ctrl-C and signals that end the program leave the folder, too.

    Raises
    ------
    ConversionError
        If `dst` exists or cannot be written.
    """
    if dst.exists() or dst.is_symlink():
        raise ConversionError(f"{dst} exists already: remove it, or choose another target")
    try:
        dst.parent.mkdir(parents=True, exist_ok=True)
        folder = dst.parent / f"{_prefix(dst)}{key}"
        _remove_stale(dst, folder)
        folder, lock = _locked(dst, folder)
        work = WorkFolder(folder)
    except OSError as error:
        raise ConversionError(f"{dst} cannot be written ({error.strerror}): choose another target") from None
    is_kept = False
    try:
        yield work
        work.model.chmod(0o755)
        os.replace(work.model, dst)
    except OSError as error:
        if dst.exists():
            raise ConversionError(f"{dst} exists now: another program has made it in the meantime") from None
        reason = error.strerror or error
        raise ConversionError(
            f"{dst} cannot be written ({reason}): free some space, or choose another target"
        ) from None
    except (KeyboardInterrupt, SystemExit):
        is_kept = keeps
        raise
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked(dst: Path, folder: Path) -> tuple[Path, int]:
    """Return a work folder and the open file that locks it: `folder`, or a new one where others have that."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = os.lstat(folder)
    # What somebody else has put there would become the model.
    if stat.S_ISDIR(status.st_mode) and (not hasattr(os, "geteuid") or status.st_uid == os.geteuid()):
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        if try_lock(lock):
            return folder, lock
        os.close(lock)
    folder = Path(tempfile.mkdtemp(prefix=_prefix(dst), dir=dst.parent))
    return folder, os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)


def key_of(checkpoint: Path, *settings: object) -> str:
    """Return a name for the conversion of a checkpoint folder in one way, by its files and the settings.

    Text files count by their content, weights by place, size and time; those of the hub's cache by their commit.
    """
    digest = sha256()
    place = checkpoint.resolve()
    for file in sorted(checkpoint.iterdir()):
        if file.name in TEXT_FILES:
            with suppress(OSError):
                digest.update(file.name.encode() + b"\0" + read_small(file, _LARGEST_TEXT_FILE))
        elif place.parent.name != "snapshots":
            real = file.resolve()
            status = real.stat() if real.exists() else None
            digest.update(
                f"\n{real} {status and (status.st_size, status.st_mtime_ns)}".encode("utf-8", "surrogateescape")
            )
    if place.parent.name == "snapshots":
        digest.update(str(place).encode("utf-8", "surrogateescape"))
    try:
        program = version("tinychat")
    except PackageNotFoundError:
        program = ""
    digest.update(repr((program, *settings)).encode())
    return digest.hexdigest()[:12]


def _prefix(dst: Path) -> str:
    """Return how the names of a target's work folders begin: no person would name a folder so."""
    return f".{dst.name}.converting-"


def _remove_stale(dst: Path, own: Path) -> None:
    """Remove what killed conversions to `dst` left, other than `own`, if nothing was written there for a day."""
    prefix, limit = _prefix(dst), time.time() - _STALE_SECONDS
    try:
        folders = [*dst.parent.iterdir()]
    except OSError:
        # Such a folder can be written to, but not listed.
        return
    for folder in folders:
        if folder.name.startswith(prefix) and folder != own and not folder.is_symlink() and _touched(folder) < limit:
            shutil.rmtree(folder, ignore_errors=True)


def _touched(folder: Path) -> float:
    """Return when anything in a folder was written last, in seconds since the epoch; now if that is not known."""
    try:
        return max(path.stat().st_mtime for path in [folder, *folder.rglob("*")])
    except OSError:
        return time.time()


class JournaledWriter:
    """A weight file that is written shard by shard; a journal beside it lists which are finished.

    Parameters
    ----------
    file : Path
        Made anew, unless it has this header and size already.
    journal : Path
    header : bytes
    offsets : Mapping
        Where each tensor begins.
    total : int
        Bytes of all tensors.

    Attributes
    ----------
    done : int
        Bytes that were written, or found to be finished.
    """

    def __init__(self, file: Path, journal: Path, header: bytes, offsets: Mapping[str, int], total: int) -> None:
        self.done = 0
        self._offsets = offsets
        self._entries: dict[tuple[str, int], _Entry] = {}
        if file.is_file() and file.stat().st_size == len(header) + total:
            self._stream = file.open("r+b")
            if self._stream.read(len(header)) == header:
                self._entries = _read_journal(journal)
        else:
            self._stream = file.open("w+b")
        with ExitStack() as stack:
            stack.callback(self._stream.close)
            self._stream.seek(0)
            self._stream.write(header)
            self._stream.truncate(len(header) + total)
            self._stream.flush()
            self._journal = journal.open("ab" if self._entries else "wb")
            stack.callback(self._journal.close)
            # The last line may lack its end.
            self._journal.write(b"\n")
            # Closed with the block that this is used in.
            self._close = stack.pop_all().close

    def __enter__(self) -> "JournaledWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def write(self, linear: str, layer: int, arrays: Mapping[str, Array], note: Sequence[float]) -> None:
        """Write one layer of a linear, and list it in the journal with what is to be remembered of it."""
        parts = ((f"{linear}.{name}", layer * data.nbytes, data) for name, data in arrays.items())
        self.write_parts(linear, layer, parts, note)

    def write_parts(
        self, linear: str, layer: int, parts: Iterable[tuple[str, int, Array]], note: Sequence[float] = ()
    ) -> None:
        """Do the same for parts of tensors: name of a tensor, the byte of it that some data begins at, and the data."""
        written = []
        for tensor, offset, data in parts:
            self.write_tensor(tensor, data, offset)
            written.append((tensor, offset, data.nbytes, zlib.crc32(data.data)))
        self._stream.flush()
        entry: _Entry = {"linear": linear, "layer": layer, "parts": written, "note": list(note)}
        self._journal.write(_with_checksum(json.dumps(entry).encode()) + b"\n")
        self._journal.flush()

    def write_tensor(self, tensor: str, data: Array, offset: int = 0) -> None:
        """Write a part of a tensor, as it is soon made again."""
        self._stream.seek(self._offsets[tensor] + offset)
        self._stream.write(data.data)
        self.done += data.nbytes

    def finished(self, linear: str, layer: int) -> list[float] | None:
        """Return what was remembered of a layer of a linear that an earlier try has written; None if it has not.

        What the file holds must be what was written: not all of it may have reached the disk.
        """
        entry = self._entries.pop((linear, layer), None)
        if entry is None:
            return None
        size = 0
        for tensor, offset, length, checksum in entry["parts"]:
            self._stream.seek(self._offsets[tensor] + offset)
            if zlib.crc32(self._stream.read(length)) != checksum:
                return None
            size += length
        self.done += size
        return entry["note"]


def _read_journal(file: Path) -> dict[tuple[str, int], _Entry]:
    """Return the entries of a journal, but those that are damaged."""
    try:
        lines = read_small(file, _LARGEST_JOURNAL).splitlines()
    except OSError:
        return {}
    entries: list[_Entry] = [json.loads(text) for text in map(_without_checksum, lines) if text]
    return {(entry["linear"], entry["layer"]): entry for entry in entries}
