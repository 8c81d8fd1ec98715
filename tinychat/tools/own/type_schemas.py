"""Type hints as JSON schemas, and values of JSON as values of those types."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from tinychat.errors import ToolError

_SCALARS: dict[object, str] = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}


def schema_of_type(hint: Any) -> dict[str, Any]:
    """Return the JSON schema of a type hint; `ToolError` for one that JSON has no values of."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return {}
    if hint in (list, dict):
        return {"type": "array" if hint is list else "object"}
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    if origin is Annotated:
        texts = [text for text in hint.__metadata__ if isinstance(text, str)]
        return schema_of_type(parts[0]) | ({"description": texts[0]} if texts else {})
    if origin is NotRequired:
        return schema_of_type(parts[0])
    if origin is Literal:
        return _schema_of_choices([*parts])
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of_type(part) for part in parts]}
    if origin in (list, Sequence):
        return {"type": "array", "items": schema_of_type(parts[0])}
    if origin in (dict, Mapping) and parts[0] is str:
        return {"type": "object", "additionalProperties": schema_of_type(parts[1])}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _schema_of_choices([member.value for member in hint])
    if is_typeddict(hint) or _is_dataclass(hint):
        inner = get_type_hints(hint, include_extras=True)
        properties = {name: schema_of_type(part) for name, part in inner.items()}
        required = [name for name in inner if name in _required(hint) and get_origin(inner[name]) is not NotRequired]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    raise ToolError(f"the type {hint} is none that a model can write: use those of JSON")


def value_of_type(value: Any, hint: Any) -> Any:
    """Return a value that is valid under the schema of a type as a value of this type."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint in (int, float) and value is not None:
        return hint(value)
    if origin in (Annotated, NotRequired):
        return value_of_type(value, parts[0])
    if origin in (Union, types.UnionType):
        return value_of_type(value, _part_of(value, parts))
    if origin in (list, Sequence):
        return [value_of_type(item, parts[0]) for item in value]
    if origin in (dict, Mapping):
        return {key: value_of_type(item, parts[1]) for key, item in value.items()}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    if is_typeddict(hint) or _is_dataclass(hint):
        inner = get_type_hints(hint, include_extras=True)
        given = {key: value_of_type(item, inner[key]) for key, item in value.items()}
        return given if is_typeddict(hint) else hint(**given)
    return value


def _part_of(value: Any, parts: Sequence[Any]) -> Any:
    """Return the first type of a union under whose schema a value is valid."""
    # Imported here, where unions are: most functions have none.
    from tinychat.tools.argument_check import check_arguments

    for part in parts:
        try:
            check_arguments({"x": value}, {"properties": {"x": schema_of_type(part)}})
        except ToolError:
            continue
        return part
    return Any


def _schema_of_choices(values: list[Any]) -> dict[str, Any]:
    kinds = {_SCALARS.get(type(value)) for value in values}
    if None in kinds:
        raise ToolError("the choices must be texts, numbers, true, false or null")
    return {"enum": values} | ({"type": kinds.pop()} if len(kinds) == 1 else {})


def _is_dataclass(hint: Any) -> bool:
    return isinstance(hint, type) and is_dataclass(hint)


def _required(hint: Any) -> list[str]:
    if is_typeddict(hint):
        return [*hint.__required_keys__]
    return [field.name for field in fields(hint) if field.default is MISSING and field.default_factory is MISSING]
