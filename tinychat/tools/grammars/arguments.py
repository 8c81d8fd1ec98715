"""Schemas of arguments, as grammars take them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tinychat.tools.definitions import Tool, ToolChoice
from tinychat.tools.grammars.markers import quoted

# Bounded: a model could write spaces for ever.
_SPACED: Mapping[str, Any] = {"whitespace_pattern": " ?"}
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COMPACT: Mapping[str, Any] = {"whitespace_flexible": False}


def held_schema(choice: ToolChoice, tool: Tool) -> dict[str, Any]:
    """Return the schema that the arguments of a call are held to: any object where the call is not constrained.

    A schema that lists its properties has no others, unless it says so: what a model adds is invented.
    """
    if not (choice.required or choice.constrains or tool.strict):
        return {"type": "object"}
    schema = dict(tool.parameters) | {"type": "object"}
    known = schema.get("properties")
    is_listed = isinstance(known, dict) and known and known.keys() >= {*map(str, schema.get("required") or ())}
    if is_listed and not schema.keys() & {"additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf"}:
        schema["additionalProperties"] = False
    return schema


def json_object(choice: ToolChoice, tool: Tool) -> str:
    """Return the arguments of a tool as JSON, in Lark: an object that is valid under its schema."""
    return json_value(held_schema(choice, tool), is_lenient=not tool.strict)


def json_value(schema: Mapping[str, Any], is_lenient: bool = True, is_compact: bool = False) -> str:
    """Return the JSON that is valid under a schema, in Lark; a lenient one may have keywords that are not known."""
    guidance = dict(_COMPACT if is_compact else _SPACED) | {"lenient": is_lenient}
    return f"%json {json.dumps(dict(schema) | {'x-guidance': guidance})}"


def json_number(schema: Mapping[str, Any], kind: str) -> str:
    """Return the numbers of a kind, "integer" or "number", within the bounds of a schema, in Lark."""
    bounds = {key: schema[key] for key in _BOUNDS if key in schema}
    return json_value({"type": kind, **bounds}, is_compact=True)


def json_text(text: str) -> str:
    """Return a text as a string of JSON, in Lark, plain or with all but ASCII escaped."""
    forms = dict.fromkeys([json.dumps(text, ensure_ascii=False), json.dumps(text)])
    return f"({' | '.join(map(quoted, forms))})"
