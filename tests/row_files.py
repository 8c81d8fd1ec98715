"""Rows in every format, for tests."""

import csv
import gzip
import io
import json

import pytest

FORMATS = ["jsonl", "jsonl.gz", "jsonl.zst", "csv", "csv.gz", "parquet"]


def pyarrow():
    """Return pyarrow with Parquet, or skip the test."""
    pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    import pyarrow as package

    return package


def packed(data, name):
    """Compress bytes as the end of a name says."""
    if name.endswith(".gz"):
        return gzip.compress(data)
    return pyarrow().compress(data, codec="zstd", asbytes=True) if name.endswith(".zst") else data


def unpacked(data, name):
    if name.endswith(".gz"):
        return gzip.decompress(data)
    if name.endswith(".zst"):
        return pyarrow().input_stream(io.BytesIO(data), compression="zstd").read()
    return data


def write_rows(path, rows):
    """Write rows, which have the same keys, in the format of a path."""
    if path.name.endswith(".parquet"):
        pyarrow().parquet.write_table(pyarrow().Table.from_pylist(rows), path)
        return path
    text = io.StringIO()
    if ".csv" in path.name:
        writer = csv.DictWriter(text, [*rows[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        text.writelines(f"{json.dumps(row)}\n" for row in rows)
    path.write_bytes(packed(text.getvalue().encode(), path.name))
    return path


def rows_of(path):
    """Return the rows of a file in the format of its path."""
    if path.name.endswith(".parquet"):
        return pyarrow().parquet.read_table(path).to_pylist()
    text = unpacked(path.read_bytes(), path.name).decode()
    if ".csv" in path.name:
        return [*csv.DictReader(io.StringIO(text, newline=""))]
    return [json.loads(line) for line in text.splitlines()]
