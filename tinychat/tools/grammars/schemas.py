"""JSON schemas as formats need them whose arguments are no JSON: references resolved, types named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinychat.tools.schema_reference import referred

Schema = Mapping[str, Any]
_TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
_MOST_REFERENCES = 16
_DEEPEST = 6


def resolved(schema: object, root: Schema) -> Schema:
    """Return a schema without a reference at its top, the parts of its ``allOf`` joined to it."""
    found = _target(schema, root)
    parts = found.get("allOf")
    if not isinstance(parts, list):
        return found
    merged = {key: value for part in parts for key, value in _target(part, root).items() if key != "allOf"}
    return merged | {key: value for key, value in found.items() if key != "allOf"}


def _target(schema: object, root: Schema) -> Schema:
    """Return the schema that references lead to; one that allows anything where there is none that can be used."""
    for _ in range(_MOST_REFERENCES):
        if not isinstance(schema, Mapping):
            return {}
        if "$ref" not in schema:
            return schema
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


def allowed_types(schema: object, root: Schema, depth: int = 0) -> list[str]:
    """Return the types that a schema allows, by what it lists and by its parts where it names none itself."""
    found = resolved(schema, root)
    if "type" not in found and (values := choices_of(found)) is not None:
        return [type_of(value) for value in values]
    parts = parts_of(found)
    if "type" in found or depth == _DEEPEST or not parts:
        return types_of(found)
    return [kind for part in parts for kind in allowed_types(part, root, depth + 1)]


def type_of(value: object) -> str:
    """Return the name of the type of a value."""
    return "null" if value is None else _NAMES.get(type(value), "string")


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
