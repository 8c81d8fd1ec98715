"""JSON schemas as a grammar needs them where arguments are no JSON: references resolved, types named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinychat.tools.schema_reference import referred

Schema = Mapping[str, Any]
_TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
_MOST_REFERENCES = 16


def resolved(schema: object, root: Schema) -> Schema:
    """Return a schema without a reference at its top; one that allows anything where there is none that can be used."""
    for _ in range(_MOST_REFERENCES):
        if not isinstance(schema, Mapping):
            return {}
        if "$ref" not in schema:
            return _merged(schema)
        schema = referred(root, schema["$ref"])
    return {}


def types_of(schema: Schema) -> list[str]:
    """Return the types that a schema allows, all if it names none."""
    named = schema.get("type")
    names = [named] if isinstance(named, str) else named if isinstance(named, Sequence) else []
    if not names:
        names = ["object"] * ("properties" in schema) or ["array"] * ("items" in schema) or [*_TYPES]
    known = {str(name).lower() for name in names} | ({"null"} if schema.get("nullable") is True else set())
    found = [name for name in _TYPES if name in known] or [*_TYPES]
    # Each whole number is a number.
    return [name for name in found if name != "integer" or "number" not in found]


def choices_of(schema: Schema) -> Sequence[Any] | None:
    """Return the only values that a schema allows; None if it does not list them."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) and values else None


def parts_of(schema: Schema) -> Sequence[object]:
    """Return the schemas of which one must hold; none if there is no such list."""
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list) and schema[key]:
            return list(schema[key])
    return []


def properties_of(schema: Schema) -> list[tuple[str, object, bool]]:
    """Return name, schema and whether it is required of the properties that an object lists."""
    properties, required = schema.get("properties"), schema.get("required")
    needed = required if isinstance(required, list) else []
    if not isinstance(properties, Mapping):
        return []
    return [(name, value, name in needed) for name, value in properties.items()]


def _merged(schema: Schema) -> Schema:
    """Return a schema with the parts of its ``allOf`` joined to it."""
    parts = schema.get("allOf")
    if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
        return schema
    merged = {key: value for part in parts for key, value in part.items() if key != "$ref"}
    return merged | {key: value for key, value in schema.items() if key != "allOf"}
