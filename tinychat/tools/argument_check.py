"""The arguments of a call against the JSON schema of its tool.

Checked are ``type``, ``enum``, ``const``, ``properties``, ``required``, ``additionalProperties``, ``items``,
``prefixItems``, ``anyOf``, ``oneOf``, ``allOf``, ``$ref`` into the same schema, and the limits of numbers, lengths and
counts. Other keywords (``pattern``, ``multipleOf``, ``not``, ``if`` and their like) are left to the tool. Schemas come
from servers, so a check takes a bounded number of steps, and a part of a schema that makes no sense asks for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import ge, gt, le, lt
from typing import Any

from tinychat.errors import ToolError
from tinychat.json_file import one_line
from tinychat.tools.schema_reference import referred

_MOST_STEPS = 50_000
_DEEPEST = 60
_LONGEST_CHOICES = 200

_IS_KIND: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "number": lambda value: _is_number(value),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
# Of each keyword: the kind of value, the comparison that must hold, and the rule in words.
_LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool], str]] = {
    "minimum": ("number", ge, "must be at least {}"),
    "maximum": ("number", le, "must be at most {}"),
    "exclusiveMinimum": ("number", gt, "must be more than {}"),
    "exclusiveMaximum": ("number", lt, "must be less than {}"),
    "minLength": ("string", ge, "must have at least {} characters"),
    "maxLength": ("string", le, "must have at most {} characters"),
    "minItems": ("array", ge, "must have at least {} items"),
    "maxItems": ("array", le, "must have at most {} items"),
}


def check_arguments(arguments: dict[str, Any], schema: Mapping[str, Any]) -> None:
    """Raise a `ToolError` of one line, for the model, if the arguments are not valid under the schema."""
    check = _Check(schema)
    for problem in check.problems(arguments, schema, ""):
        raise ToolError(problem)


class _Check:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._steps = 0

    def problems(self, value: Any, schema: object, path: str, depth: int = 0) -> Iterator[str]:
        """Yield one line for each thing that is wrong with a value."""
        self._steps += 1
        if self._steps > _MOST_STEPS or depth > _DEEPEST:
            raise ToolError("the schema of the tool is too deep or too large to check the arguments")
        name = f"the argument {one_line(path[1:])}" if path else "the object of arguments"
        if schema is False:
            yield f"{name} must be left out"
        if not isinstance(schema, Mapping):
            return
        kinds = _as_list(schema.get("type"))
        if kinds and not any(_is_kind(value, kind) for kind in kinds):
            yield f"{name} must be {' or '.join(map(str, kinds))}, not {_kind_of(value)}"
            return
        choices = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(choices, list) and not any(_is_same(value, choice) for choice in choices):
            shown = ", ".join(repr(choice) for choice in choices)
            yield f"{name} must be {'one of ' if len(choices) > 1 else ''}{one_line(shown, _LONGEST_CHOICES)}"
        for keyword, (kind, is_within, rule) in _LIMITS.items():
            limit = schema.get(keyword)
            if _is_number(limit) and _is_kind(value, kind):
                measured = value if kind == "number" else len(value)
                if not is_within(measured, limit):
                    yield f"{name} {rule.format(limit)}"
        if isinstance(value, dict):
            yield from self._of_object(value, schema, path, depth)
        if isinstance(value, list):
            yield from self._of_list(value, schema, path, depth)
        yield from self._of_branches(value, schema, path, depth, name)

    def _of_object(self, value: dict[str, Any], schema: Mapping[str, Any], path: str, depth: int) -> Iterator[str]:
        for key in _as_list(schema.get("required")):
            if key not in value:
                yield f"the argument {one_line(f'{path}.{key}'[1:])} is missing"
        properties = schema.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        others = True if "patternProperties" in schema else schema.get("additionalProperties", True)
        for key, item in value.items():
            if key in known:
                yield from self.problems(item, known[key], f"{path}.{key}", depth + 1)
            elif others is False:
                names = one_line(", ".join(map(str, known)) or "none", _LONGEST_CHOICES)
                yield f"there is no argument {one_line(f'{path}.{key}'[1:])}: they are {names}"
            else:
                yield from self.problems(item, others, f"{path}.{key}", depth + 1)

    def _of_list(self, value: list[Any], schema: Mapping[str, Any], path: str, depth: int) -> Iterator[str]:
        first = _as_list(schema.get("prefixItems"))
        for index, item in enumerate(value):
            each = first[index] if index < len(first) else schema.get("items", True)
            yield from self.problems(item, each, f"{path}[{index}]", depth + 1)

    def _of_branches(self, value: Any, schema: Mapping[str, Any], path: str, depth: int, name: str) -> Iterator[str]:
        if "$ref" in schema:
            # One into another document asks for nothing.
            yield from self.problems(value, referred(self._root, schema["$ref"]), path, depth + 1)
        for branch in _as_list(schema.get("allOf")):
            yield from self.problems(value, branch, path, depth + 1)
        for keyword in ("anyOf", "oneOf"):
            branches = _as_list(schema.get(keyword))
            firsts = [next(self.problems(value, branch, path, depth + 1), None) for branch in branches]
            if branches and None not in firsts:
                # Of a value or null, which is the usual case, the value's own problem says more.
                yield next((first for first in firsts if first and "must be null" not in first), f"{name} fits nothing")
            elif keyword == "oneOf" and firsts.count(None) > 1:
                yield f"{name} fits more than one of the forms that it may have"


def _as_list(value: object) -> list[Any]:
    if isinstance(value, list):
        return value
    return [value] if isinstance(value, str) else []


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_kind(value: object, kind: object) -> bool:
    """Return whether a value is of a kind; everything is of a kind that JSON does not have."""
    return _IS_KIND[kind](value) if isinstance(kind, str) and kind in _IS_KIND else True


def _kind_of(value: object) -> str:
    return next(kind for kind, is_kind in _IS_KIND.items() if is_kind(value))


def _is_same(value: object, choice: object) -> bool:
    """Return whether JSON has two values for the same: 1 is 1.0, and not true."""
    return value == choice and isinstance(value, bool) == isinstance(choice, bool)
