"""The columns of tables that are written: those of the source, and those of a JSON schema's properties."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tinychat.errors import SettingError, TextError
from tinychat.rows.locations import Location, arrow
from tinychat.rows.sources import RowReader, csv_header, parquet_file
from tinychat.tools.schema_reference import referred

Columns = Mapping[str, Any]
"""Types by column: `str`, `int`, `float` or `bool`, or a type of Arrow; None of a column without values."""

_DEEPEST_SCHEMA = 20
_INTEGERS = range(-(1 << 63), 1 << 63)


def source_columns(source: Location) -> dict[str, Any]:
    """Return the columns of all files of a source.

    Those of JSON Lines are found by reading all lines. A column whose files or lines disagree about its type is text.
    """
    found: dict[str, Any] = {}
    for file in source.files():
        if file.format.kind == "parquet":
            with parquet_file(file) as table:
                here = dict(zip(table.schema_arrow.names, table.schema_arrow.types))
        elif file.format.kind == "csv":
            here = dict.fromkeys(csv_header(file), str)
        else:
            here = {}
            for row in RowReader(file):
                _unite(here, {name: _type_of(value) for name, value in row.fields.items()})
        _unite(found, here)
    return found


def _unite(columns: dict[str, Any], more: Columns) -> None:
    for name, kind in more.items():
        known = columns.get(name)
        if known is None or kind is None or known == kind:
            columns[name] = kind if known is None else known
        else:
            columns[name] = float if {known, kind} == {int, float} else str


def _type_of(value: object) -> type | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return int if value in _INTEGERS else str
    return type(value) if isinstance(value, str | float | bool) else str


def arrow_type(kind: Any) -> Any:
    """Return the type of Arrow of a column."""
    pyarrow = arrow()
    if isinstance(kind, pyarrow.DataType):
        return kind
    names = {None: "string", str: "string", int: "int64", float: "float64", bool: "bool"}
    return pyarrow.type_for_alias(names[kind])


def as_text(value: object) -> str | None:
    """Return the text of a cell: JSON of what is none, with half a surrogate pair escaped, which is no UTF-8."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


class SchemaColumns:
    """The properties of a JSON schema as columns, each of the type of Arrow that has all its values, else JSON.

    Without `is_typed` no package is needed, and all columns are text. A schema without properties has no columns.
    """

    def __init__(self, schema: str, is_typed: bool) -> None:
        # It was checked when the grammar was made.
        self._schema = json.loads(schema)
        is_object = isinstance(self._schema, dict) and isinstance(self._schema.get("properties"), dict)
        properties = self._schema["properties"] if is_object else {}
        self.columns: Columns = {
            name: (self._arrow(part) or str) if is_typed else str for name, part in properties.items()
        }

    def values(self, reply: str) -> dict[str, Any]:
        """Return the values of a reply by column; `TextError` if it is no JSON, or a value is not of its type."""
        if not self.columns:
            return {}
        try:
            found = json.loads(reply)
        except (ValueError, RecursionError) as error:
            raise TextError(f"the reply is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise TextError(f"the reply is not a JSON object: {reply!r:.60}")
        return {name: _cell(name, found.get(name), kind) for name, kind in self.columns.items()}

    def _arrow(self, schema: object, depth: int = 0) -> Any:
        """Return the type of Arrow that has all values of a schema; None if there is none."""
        if not isinstance(schema, dict) or depth > _DEEPEST_SCHEMA:
            return None
        if "$ref" in schema:
            return self._arrow(referred(self._schema, schema["$ref"]), depth + 1)
        for key in ("anyOf", "oneOf"):
            if isinstance(options := schema.get(key), list):
                rest = [option for option in options if option != {"type": "null"}]
                return self._arrow(rest[0], depth + 1) if len(rest) == 1 else None
        pyarrow, kinds = arrow(), schema.get("type")
        if kinds is None and isinstance(values := schema.get("enum", [schema.get("const")]), list):
            types = {_type_of(value) for value in values if isinstance(value, str | int | float)} or {None}
            return arrow_type(*types) if len(types) == 1 and None not in types else None
        kinds = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind != "null"]
        if kinds == ["array"]:
            inner = self._arrow(schema.get("items"), depth + 1)
            return None if inner is None else pyarrow.list_(inner)
        if kinds == ["object"]:
            parts = schema.get("properties")
            fields = {name: self._arrow(part, depth + 1) for name, part in parts.items()} if parts else {}
            is_known = fields and None not in fields.values()
            return pyarrow.struct([*fields.items()]) if is_known else None
        plain = {"string": str, "integer": int, "number": float, "boolean": bool}
        return arrow_type(plain[kinds[0]]) if len(kinds) == 1 and kinds[0] in plain else None


def _cell(name: str, value: object, kind: Any) -> Any:
    if kind is str or value is None:
        return value
    pyarrow = arrow()
    try:
        return pyarrow.scalar(value, kind).as_py()
    except (pyarrow.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise TextError(f"the reply's {name} is not of its type: {' '.join(str(error).split())[:100]}") from None


def check_names(names: Iterable[str], added: Iterable[str]) -> None:
    """Refuse a source that has columns which the answers add; `SettingError`."""
    if taken := sorted({*names} & {*added}):
        raise SettingError(f"the rows have a column {taken[0]!r} already: rename it")
