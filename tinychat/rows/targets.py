"""Writers of rows: JSON Lines, CSV and Parquet."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, BinaryIO

from tinychat.errors import SettingError
from tinychat.rows.locations import Location, arrow
from tinychat.rows.tables import Columns, arrow_type, as_text

Fields = Mapping[str, Any]
Write = Callable[[Fields, bytes], object]
"""Writes a row: its line in JSON Lines, else its values by column."""

# Rows, and bytes of their lines, of a row group of Parquet: all of one are in memory.
_GROUP_ROWS, _GROUP_BYTES = 8192, 64 << 20


@contextmanager
def row_writer(target: Location, columns: Columns) -> Iterator[Write]:
    """Yield a function that writes rows to a file, which replaces `target` at the end if nothing goes wrong."""
    with (
        target.replacing() as file,
        _compressing(file, target.format.compression) as stream,
        _rows_to(stream, columns, target) as write,
    ):
        yield write


def _rows_to(stream: BinaryIO, columns: Columns, target: Location) -> AbstractContextManager[Write]:
    if target.format.kind == "parquet":
        return _parquet_rows(stream, columns, target)
    if target.format.kind == "csv":
        return _csv_rows(stream, columns)
    return nullcontext(lambda _fields, line: stream.write(line))


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


@contextmanager
def _csv_rows(stream: BinaryIO, columns: Columns) -> Iterator[Write]:
    """Write CSV in UTF-8 with a header; a missing value is an empty cell."""
    text = io.TextIOWrapper(stream, "utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    yield lambda fields, _line: writer.writerow([as_text(fields.get(name)) for name in columns])
    text.flush()
    # The stream below is closed by whoever has opened it.
    text.detach()


@contextmanager
def _parquet_rows(stream: BinaryIO, columns: Columns, target: Location) -> Iterator[Write]:
    """Write Parquet in groups of rows."""
    pyarrow = arrow()
    schema = pyarrow.schema([(name, arrow_type(kind)) for name, kind in columns.items()])
    rows: list[Fields] = []
    size = 0
    with pyarrow.parquet.ParquetWriter(stream, schema) as writer:

        def write_group() -> None:
            nonlocal size
            writer.write_table(_table(rows, schema, target))
            rows.clear()
            size = 0

        def write(fields: Fields, line: bytes) -> None:
            nonlocal size
            rows.append(fields)
            size += len(line)
            if len(rows) == _GROUP_ROWS or size > _GROUP_BYTES:
                write_group()

        yield write
        write_group()


def _table(rows: Sequence[Fields], schema: Any, target: Location) -> Any:
    """Return rows as a table of Arrow; `SettingError` for a value that is not of its column's type."""
    pyarrow = arrow()
    arrays = []
    for field in schema:
        values = [row.get(field.name) for row in rows]
        if pyarrow.types.is_string(field.type) or pyarrow.types.is_large_string(field.type):
            values = [as_text(value) for value in values]
        try:
            arrays.append(pyarrow.array(values, field.type))
        except (pyarrow.ArrowException, ValueError, TypeError, OverflowError) as error:
            reason = " ".join(str(error).split())[:100]
            raise SettingError(f"{target}: column {field.name!r} cannot be written: {reason}") from None
    return pyarrow.table(arrays, schema=schema)
