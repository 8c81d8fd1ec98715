"""The types that a JSON schema allows an argument to have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinychat.tools.schema_reference import referred

_DEEPEST = 16
_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
_ALL = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})


def property_types(schema: Mapping[str, Any], key: str) -> frozenset[str]:
    """Return the names of the types that an object's schema allows for a property; empty where it says nothing."""
    properties = schema.get("properties")
    wanted = properties.get(key) if isinstance(properties, Mapping) else None
    if wanted is None:
        wanted = schema.get("additionalProperties")
    return _types(wanted, schema, _DEEPEST) or frozenset()


def type_of(value: object) -> str:
    """Return the name of the type of a value."""
    return "null" if value is None else _NAMES.get(type(value), "string")


def _types(schema: object, root: Mapping[str, Any], depth: int) -> frozenset[str] | None:
    """Return the types of a schema; None where it allows all."""
    if not isinstance(schema, Mapping) or not depth:
        return None
    found = [_own_types(schema)]
    if "$ref" in schema:
        found.append(_types(referred(root, schema["$ref"]), root, depth - 1))
    for name in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(name), list):
            each = [_types(choice, root, depth - 1) for choice in choices]
            found.append(None if None in each else frozenset().union(*(types for types in each if types)))
    if isinstance(parts := schema.get("allOf"), list):
        found += [_types(part, root, depth - 1) for part in parts]
    known = [types for types in found if types is not None]
    return frozenset.intersection(*known) if known else None


def _own_types(schema: Mapping[str, Any]) -> frozenset[str] | None:
    named = schema.get("type")
    if isinstance(named, str | list):
        return frozenset([named] if isinstance(named, str) else map(str, named)) & _ALL
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return frozenset(map(type_of, values))
    return None
