"""Rows of files in JSON Lines, CSV and Parquet, one after the other: memory does not grow with the file."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO

from tinychat.errors import TextError, TinychatError
from tinychat.rows.locations import Location, arrow

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

MAX_ROW_BYTES = 64 << 20
"""Most bytes of a line, or of a row of CSV."""

# Rows of Parquet in memory at once.
_PARQUET_ROWS = 512
_BOM = b"\xef\xbb\xbf"


@dataclass(slots=True)
class Row:
    """One row."""

    number: int  # from 1, over all files: of a line in JSON Lines, empty ones counted, else of a row below the header
    file: Location
    fields: Mapping[str, Any]  # values by column; a cell of CSV without text is None
    line: bytes = b""  # the line with its end, in JSON Lines
    error: str | None = None  # the problem of a row that cannot be read, which has no fields

    @property
    def unit(self) -> str:
        """The word for what `number` counts."""
        return "row" if self.file.format.is_table else "line"


class RowReader:
    """Iterates over the rows of a file, of all files of a folder, or of stdin.

    While iterating, `TextError` if a file is damaged, is not in its format, or has a row of more than `MAX_ROW_BYTES`.
    `SettingError` if a format or address needs a package that is not there, or a folder has no rows; `OSError` if a
    file cannot be opened.
    """

    def __init__(self, location: Location) -> None:
        self.files: list[Location] = location.files()
        for file in self.files:
            file.require()

    def __iter__(self) -> Iterator[Row]:
        before = 0
        for file in self.files:
            number = 0
            for row in _READERS[file.format.kind](file):
                number = row.number
                row.number += before
                yield row
            before += number

    def count(self) -> int | None:
        """Return the number of rows; None where that is slow to know: of streams, addresses and compressed files.

        None also of a damaged file, which is an error once its rows are read.
        """
        if any(file.is_remote or file.format.compression or not file.can_be_read_again for file in self.files):
            return None
        try:
            return sum(map(_count, self.files))
        except (OSError, TinychatError):
            return None


def _count(file: Location) -> int:
    if file.format.kind == "parquet":
        with parquet_file(file) as table:
            return int(table.metadata.num_rows)
    if file.format.kind == "csv":
        return sum(1 for _ in _csv(file))
    return sum(not line.isspace() for _, line in _lines(file))


def _lines(file: Location) -> Iterator[tuple[int, bytes]]:
    """Yield the numbers and lines of a file, decompressed."""
    number = 0
    with _readable(file), file.open() as raw, _decompressed(raw, file) as stream:
        while line := stream.readline(MAX_ROW_BYTES + 1):
            number += 1
            if len(line) > MAX_ROW_BYTES:
                raise TextError(f"{file} line {number} has more than {MAX_ROW_BYTES >> 20} MiB: split it")
            yield number, line.removeprefix(_BOM) if number == 1 else line


def _jsonl(file: Location) -> Iterator[Row]:
    for number, line in _lines(file):
        if line.isspace():
            continue
        try:
            fields = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            yield Row(number, file, {}, line, f"the line is not JSON in UTF-8: {error}")
            continue
        if isinstance(fields, dict):
            yield Row(number, file, fields, line)
        else:
            problem = 'the line is not a JSON object: expected {"prompt": "..."} or {"messages": [...]}'
            yield Row(number, file, {}, line, problem)


def _csv(file: Location) -> Iterator[Row]:
    csv.field_size_limit(MAX_ROW_BYTES)
    reader = csv.reader(_decoded(_lines(file), file), strict=True)
    try:
        header = next(reader, [])
        _check_columns(file, header)
        cells_of_rows = filter(None, reader)
        for number, cells in enumerate(cells_of_rows, start=1):
            if len(cells) == len(header):
                yield Row(number, file, dict(zip(header, (cell or None for cell in cells))))
            else:
                problem = f"the row has {len(cells)} cells, but the header has {len(header)}"
                yield Row(number, file, {}, error=problem)
    except csv.Error as error:
        raise TextError(f"{file} line {reader.line_num} is not CSV: {error}; correct the file") from None


def _parquet(file: Location) -> Iterator[Row]:
    with parquet_file(file) as table:
        batches = table.iter_batches(batch_size=_PARQUET_ROWS, use_threads=False)
        rows = chain.from_iterable(batch.to_pylist() for batch in batches)
        for number, fields in enumerate(rows, start=1):
            yield Row(number, file, fields)


_READERS = {"jsonl": _jsonl, "csv": _csv, "parquet": _parquet}


@contextmanager
def parquet_file(file: Location) -> Iterator[ParquetFile]:
    """Open a file in Parquet; errors are those of `RowReader`."""
    pyarrow = arrow()
    with _readable(file, pyarrow.ArrowException), file.open() as raw, pyarrow.parquet.ParquetFile(raw) as table:
        _check_columns(file, table.schema_arrow.names)
        yield table


def csv_header(file: Location) -> list[str]:
    """Return the columns of a file in CSV; errors are those of `RowReader`."""
    try:
        return next(csv.reader(_decoded(_lines(file), file), strict=True), [])
    except csv.Error as error:
        raise TextError(f"{file} line 1 is not CSV: {error}; correct the file") from None


def _check_columns(file: Location, names: list[str]) -> None:
    if double := sorted({name for name in names if names.count(name) > 1}):
        raise TextError(f"{file} has two columns {double[0]!r}: rename one")


def _decoded(lines: Iterator[tuple[int, bytes]], file: Location) -> Iterator[str]:
    for number, line in lines:
        try:
            yield line.decode("utf-8")
        except ValueError:
            raise TextError(f"{file} line {number} is not text in UTF-8: convert the file first") from None


@contextmanager
def _readable(file: Location, *others: type[Exception]) -> Iterator[None]:
    """Turn the errors of a damaged file into one line that names it."""
    damage: tuple[type[Exception], ...] = (OSError, EOFError, ValueError, zlib.error, *others)
    try:
        yield
    except TinychatError:
        raise
    except damage as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        reason = " ".join(str(error).split())[:200]
        raise TextError(f"{file} is damaged, or not in the format of its name: {reason}; get it again") from None


@contextmanager
def _decompressed(raw: BinaryIO, file: Location) -> Iterator[BinaryIO]:
    if file.format.compression == "gz":
        with gzip.GzipFile(fileobj=raw, mode="rb") as stream:
            yield io.BufferedReader(stream)
    elif file.format.compression == "zst":
        pyarrow = arrow()
        with pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, "r"), "zstd") as stream:
            yield io.BufferedReader(stream)
    else:
        yield raw
