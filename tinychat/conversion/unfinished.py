"""The work folder of a conversion: beside its target, and with a journal of finished shards.

A conversion that fails removes it. One that was stopped or killed leaves it; the next one of the same checkpoint and
settings finds it by its name, checks the weight file against the journal, and continues it.
"""

import io
import json
import os
import shutil
import stat
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.checkpoint import MAX_TEXT_FILE_BYTES, TEXT_FILES
from tinychat.errors import ConversionError
from tinychat.file_lock import try_lock
from tinychat.files import read_small, replace
from tinychat.models.folder import header_of
from tinychat.models.layout import TensorSpec
from tinychat.models.score_head import SCORE_WEIGHTS

# A conversion writes all the time.
_STALE_SECONDS = 24 * 3600.0
_LARGEST_JOURNAL = 256 << 20
Array = NDArray[np.generic]
Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) of the model's weights."""


def part_of(progress: Progress | None, before: int, behind: int) -> Progress | None:
    """Return the progress of a file with so many bytes of others before and behind it."""
    if progress is None:
        return None
    return lambda done, total: progress(before + done, before + total + behind)


class _Entry(TypedDict):
    """A line of the journal: the written parts of a layer of a linear, and its note."""

    linear: str
    layer: int
    parts: list[tuple[str, int, int, int]]  # tensor, first byte, bytes, CRC-32
    note: list[float]


class WorkFolder:
    """One conversion's folder; its folder `model` becomes the target."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = folder / "model"
        self.model.mkdir(exist_ok=True)

    def read(self, name: str) -> dict[str, object]:
        """Return the values that an earlier try wrote under a name; nothing if they are missing or damaged."""
        data = self._read(name)
        return {} if data is None else dict(json.loads(data))

    def write(self, name: str, value: Mapping[str, object]) -> None:
        """Write values for a later try, all of them or nothing."""
        self._write(name, json.dumps(value).encode())

    def read_arrays(self, name: str) -> dict[str, Array]:
        """Return arrays as `read` returns values."""
        data = self._read(name)
        if data is None:
            return {}
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return dict(arrays)

    def write_arrays(self, name: str, arrays: Mapping[str, Array]) -> None:
        """Write arrays as `write` does."""
        data = io.BytesIO()
        np.savez(data, **arrays)  # type: ignore[arg-type]
        self._write(name, data.getvalue())

    def _read(self, name: str) -> bytes | None:
        try:
            return _without_checksum((self.folder / name).read_bytes())
        except OSError:
            return None

    def _write(self, name: str, data: bytes) -> None:
        aside = self.folder / f"{name}.new"
        aside.write_bytes(_with_checksum(data))
        replace(aside, self.folder / name)


def _with_checksum(data: bytes) -> bytes:
    return b"%08x %b" % (zlib.crc32(data), data)


def _without_checksum(data: bytes) -> bytes | None:
    """Return data without its checksum; None if either is damaged."""
    return data[9:] if data[:9] == b"%08x " % zlib.crc32(data[9:]) else None


@contextmanager
def work_for(dst: Path, key: str) -> Iterator[WorkFolder]:
    """Yield the folder of a conversion to `dst`: a new one, or that of a stopped one with this key (`key_of`).

    If nothing fails, `WorkFolder.model` becomes `dst` at the end. The folder is removed then, and after errors, but not
    by Ctrl-C and signals that end the program.
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
    remove = True
    try:
        yield work
        work.model.chmod(0o755)
        replace(work.model, dst)
    except OSError as error:
        if dst.exists():
            raise ConversionError(f"{dst} exists now: another program has made it in the meantime") from None
        what = f"cannot be written ({error.strerror or error}): free some space, or choose another target"
        raise ConversionError(f"{dst} {what}") from None
    except (KeyboardInterrupt, SystemExit):
        remove = False
        raise
    finally:
        if remove and sys.platform != "win32":
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
        if remove and sys.platform == "win32":
            # There, the lock's file stays as long as it is open.
            shutil.rmtree(folder, ignore_errors=True)


def _locked(dst: Path, folder: Path) -> tuple[Path, int]:
    """Return a work folder and the open file that locks it: `folder`, or a new one where others have that."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = os.lstat(folder)
    # Another user's files there would become the model.
    if stat.S_ISDIR(status.st_mode) and (not hasattr(os, "geteuid") or status.st_uid == os.geteuid()):
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        if try_lock(lock):
            return folder, lock
        os.close(lock)
    folder = Path(tempfile.mkdtemp(prefix=_prefix(dst), dir=dst.parent))
    return folder, os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)


def key_of(checkpoint: Path, *settings: object) -> str:
    """Return a name for the conversion of a checkpoint folder by its files, the settings and the program's version.

    Text files count by their content, weights by path, size and time; those of the hub's cache by their commit.
    """
    digest, folder = sha256(), checkpoint.resolve()
    is_snapshot = folder.parent.name == "snapshots"
    by_content = {*TEXT_FILES, SCORE_WEIGHTS}
    for name in sorted(by_content):
        with suppress(OSError):
            digest.update(name.encode() + b"\0" + read_small(checkpoint / name, MAX_TEXT_FILE_BYTES))
    for file in sorted(checkpoint.iterdir()):
        if file.name not in by_content and not file.is_dir() and not is_snapshot:
            real = file.resolve()
            status = real.stat() if real.exists() else None
            size_and_time = status and (status.st_size, status.st_mtime_ns)
            digest.update(f"\n{real} {size_and_time}".encode("utf-8", "surrogateescape"))
    if is_snapshot:
        digest.update(str(folder).encode("utf-8", "surrogateescape"))
    try:
        program = version("tinychat")
    except PackageNotFoundError:
        program = ""
    digest.update(repr((program, *settings)).encode())
    return digest.hexdigest()[:12]


def _prefix(dst: Path) -> str:
    """Return the beginning of the names of a target's work folders."""
    return f".{dst.name}.converting-"


def _remove_stale(dst: Path, own: Path) -> None:
    """Remove work folders of `dst` other than `own` that were not written to for a day."""
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
    """Return when anything in a folder was written last, seconds since the epoch; now if that is not known."""
    try:
        return max(path.stat().st_mtime for path in [folder, *folder.rglob("*")])
    except OSError:
        return time.time()


class JournaledWriter:
    """A weight file that is written shard by shard; a journal beside it lists the finished ones.

    `specs` are the file's tensors. A file that has their header and size already is continued.
    """

    def __init__(
        self, file: Path, journal: Path, specs: Mapping[str, TensorSpec], progress: Progress | None = None
    ) -> None:
        self._progress, self._done, self._total = progress, 0, sum(spec.bytes for spec in specs.values())
        header, self._offsets = header_of(specs)
        self._entries: dict[tuple[str, int], _Entry] = {}
        is_continued = file.is_file() and file.stat().st_size == len(header) + self._total
        with ExitStack() as stack:
            self._stream = stack.enter_context(file.open("r+b" if is_continued else "w+b"))
            if is_continued and self._stream.read(len(header)) == header:
                self._entries = _read_journal(journal)
            self._stream.seek(0)
            self._stream.write(header)
            self._stream.truncate(len(header) + self._total)
            self._stream.flush()
            self._journal = stack.enter_context(journal.open("ab" if self._entries else "wb"))
            # The last line may lack its end.
            self._journal.write(b"\n")
            self._close = stack.pop_all().close

    def __enter__(self) -> "JournaledWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def write(self, linear: str, layer: int, arrays: Mapping[str, Array], note: Sequence[float]) -> None:
        """Write one layer of a linear, and list it in the journal with a note."""
        parts = ((f"{linear}.{name}", layer * data.nbytes, data) for name, data in arrays.items())
        self.write_parts(linear, layer, parts, note)

    def write_parts(
        self, linear: str, layer: int, parts: Iterable[tuple[str, int, Array]], note: Sequence[float] = ()
    ) -> None:
        """Write parts of tensors in the same way: name of a tensor, first byte of it, and the data."""
        written = []
        for tensor, offset, data in parts:
            self._write(tensor, data, offset)
            written.append((tensor, offset, data.nbytes, zlib.crc32(data.data)))
        self._stream.flush()
        entry: _Entry = {"linear": linear, "layer": layer, "parts": written, "note": list(note)}
        self._journal.write(_with_checksum(json.dumps(entry).encode()) + b"\n")
        self._journal.flush()
        # Now, as it may raise: what is in the journal is not made again.
        self._show()

    def write_tensor(self, tensor: str, data: Array) -> None:
        """Write a tensor without a line in the journal: it is soon made again."""
        self._write(tensor, data, 0)
        self._show()

    def _write(self, tensor: str, data: Array, offset: int) -> None:
        self._stream.seek(self._offsets[tensor] + offset)
        self._stream.write(data.data)
        self._done += data.nbytes

    def finished(self, linear: str, layer: int) -> list[float] | None:
        """Return the note of a layer of a linear that an earlier try has written; None if it has not.

        The file must hold what was written: not all of it may have reached the disk.
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
        self._done += size
        self._show()
        return entry["note"]

    def _show(self) -> None:
        """Tell the bytes that are written, or were found to be finished."""
        if self._progress is not None:
            self._progress(self._done, self._total)


def _read_journal(file: Path) -> dict[tuple[str, int], _Entry]:
    """Return the entries of a journal that are whole."""
    try:
        lines = read_small(file, _LARGEST_JOURNAL).splitlines()
    except OSError:
        return {}
    entries: list[_Entry] = [json.loads(text) for text in map(_without_checksum, lines) if text]
    return {(entry["linear"], entry["layer"]): entry for entry in entries}
