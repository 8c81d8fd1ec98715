"""Writers of rows: JSON Lines, CSV and Parquet."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO, Protocol, Self

from tinychat.errors import SettingError
from tinychat.rows.locations import Location, arrow
from tinychat.rows.tables import Columns, arrow_type, as_text

# Rows, and bytes of their lines, of a row group of Parquet: all of one are in memory.
_GROUP_ROWS, _GROUP_BYTES = 8192, 64 << 20


class RowWriter(Protocol):
    """Writes rows to a file."""

    def write(self, fields: Mapping[str, Any], line: bytes) -> None:
        """Write a row: its line in JSON Lines, else its values by column."""

    def finish(self) -> None:
        """Write what is still in memory."""


@contextmanager
def row_writer(target: Location, columns: Columns) -> Iterator[RowWriter]:
    """Yield a writer whose file replaces `target` at the end, and is gone if anything goes wrong."""
    with ExitStack() as stack:
        file = stack.enter_context(target.replacing())
        stream = stack.enter_context(_compressing(file, target.format.compression))
        writer: RowWriter
        if target.format.kind == "parquet":
            writer = stack.enter_context(_ParquetWriter(stream, columns, target))
        elif target.format.kind == "csv":
            writer = _CsvWriter(stream, columns)
        else:
            writer = _LineWriter(stream)
        yield writer
        writer.finish()


@contextmanager
def _compressing(file: BinaryIO, compression: str) -> Iterator[BinaryIO]:
    if compression == "gz":
        # No time and no name: the same rows have the same bytes.
        with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as stream:
            yield stream  # type: ignore[misc]
    elif compression == "zst":
        pyarrow = arrow()
        with pyarrow.CompressedOutputStream(pyarrow.PythonFile(file, "w"), "zstd") as stream:
            yield stream
    else:
        yield file


class _LineWriter:
    """Writes lines."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, fields: Mapping[str, Any], line: bytes) -> None:
        self._stream.write(line)

    def finish(self) -> None:
        pass


class _CsvWriter:
    """Writes CSV in UTF-8 with a header; a missing value is an empty cell."""

    def __init__(self, stream: BinaryIO, columns: Columns) -> None:
        self._columns = columns
        self._text = io.TextIOWrapper(stream, "utf-8", newline="")
        self._writer = csv.writer(self._text, lineterminator="\n")
        self._writer.writerow(columns)

    def write(self, fields: Mapping[str, Any], line: bytes) -> None:
        self._writer.writerow([as_text(fields.get(name)) for name in self._columns])

    def finish(self) -> None:
        self._text.flush()
        # The stream below is closed by whoever has opened it.
        self._text.detach()


class _ParquetWriter:
    """Writes Parquet in groups of rows."""

    def __init__(self, stream: BinaryIO, columns: Columns, target: Location) -> None:
        pyarrow = arrow()
        self._target = target
        self._schema = pyarrow.schema([(name, arrow_type(kind)) for name, kind in columns.items()])
        self._writer = pyarrow.parquet.ParquetWriter(stream, self._schema)
        self._rows: list[Mapping[str, Any]] = []
        self._bytes = 0

    def write(self, fields: Mapping[str, Any], line: bytes) -> None:
        self._rows.append(fields)
        self._bytes += len(line)
        if len(self._rows) == _GROUP_ROWS or self._bytes > _GROUP_BYTES:
            self._write_group()

    def finish(self) -> None:
        self._write_group()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._writer.close()

    def _write_group(self) -> None:
        pyarrow, rows = arrow(), self._rows
        self._rows, self._bytes = [], 0
        arrays = []
        for field in self._schema:
            values = [row.get(field.name) for row in rows]
            if pyarrow.types.is_string(field.type) or pyarrow.types.is_large_string(field.type):
                values = [as_text(value) for value in values]
            try:
                arrays.append(pyarrow.array(values, field.type))
            except (pyarrow.ArrowException, ValueError, TypeError, OverflowError) as error:
                reason = " ".join(str(error).split())[:100]
                raise SettingError(f"{self._target}: column {field.name!r} cannot be written: {reason}") from None
        self._writer.write_table(pyarrow.table(arrays, schema=self._schema))
