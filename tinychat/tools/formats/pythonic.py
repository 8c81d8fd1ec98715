"""Calls in Python: ``<|tool_call_start|>[f(a="x", n=2)]<|tool_call_end|>`` (LFM2), or a call in each line (OLMo 3)."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tinychat.tools.definitions import Tool, ToolCall, ToolChoice
from tinychat.tools.formats.call_format import CallFormat
from tinychat.tools.formats.reading import CallReader, MalformedCall, Steps, as_json
from tinychat.tools.grammars.arguments import held_schema
from tinychat.tools.grammars.literals import PythonLiterals
from tinychat.tools.grammars.rules import Rules

_WORDS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, kw_only=True)
class PythonicFormat(CallFormat):
    """Each call is a call of a function, its arguments literals with their names."""

    name: ClassVar = "Python"

    def parser(self, tools: Sequence[Tool]) -> CallReader:
        """Return a parser of one reply; arguments without a name are those of the schema, in its order."""
        return _PythonicReader(self, tools)

    def tool_rule(self, rules: Rules, choice: ToolChoice, tool: Tool, number: int) -> str:
        """Return a call of a tool, in Lark."""
        return PythonLiterals(rules, held_schema(choice, tool), number).call(tool.name)

    def spell_body(self, call: ToolCall, number: int) -> str:
        """Return the call in Python."""
        members = json.loads(call.arguments).items()
        return f"{call.name}({', '.join(f'{key}={python_literal(value)}' for key, value in members)})"

    @property
    def end(self) -> str:
        """Empty: what ends a call may be in a text."""
        return ""


class _PythonicReader(CallReader):
    def __init__(self, form: PythonicFormat, tools: Sequence[Tool]) -> None:
        super().__init__(form)
        self._keys = {tool.name: [*tool.parameters.get("properties", {})] for tool in tools}

    def _calls(self) -> Steps[None]:
        end = self._form.section_end.strip().lstrip("]")
        is_list = yield from self._next("[")
        while not (yield from self._next("]" if is_list else end)):
            self._settle()
            yield from self._next(",")
            yield from self._call()
        self._settle()
        if is_list:
            yield from self._next(end)

    def _call(self) -> Steps[None]:
        name = yield from self._name_before("(")
        if not all(part.isidentifier() for part in name.replace("-", "_").split(".")):
            raise MalformedCall(f"{name[:60]!r} is no name of a function")
        yield from self._expect("(")
        yield self._begin(name)
        keys = iter(self._keys.get(name, ()))
        while not (yield from self._next(")")):
            text = (yield from self._element(("'", '"'), True, ends=")")).strip()
            key, is_named, value = text.partition("=")
            if not is_named or key[:1] in "'\"[{":
                key, value = next(keys, ""), text
            if not key.strip():
                raise MalformedCall("it has an argument without a name")
            yield self._argument(key.strip(), python_value(value))
            yield from self._next(",")
        yield self._end()


def python_literal(value: object) -> str:
    """Return a JSON value as Python writes it, its texts in double quotes."""
    match value:
        case None | bool():
            return str(value)
        case dict():
            return f"{{{', '.join(f'{as_json(key)}: {python_literal(item)}' for key, item in value.items())}}}"
        case list():
            return f"[{', '.join(map(python_literal, value))}]"
    return as_json(value)


def python_value(text: str) -> object:
    """Return the value of a literal, of Python or of JSON; line ends may stand in its texts.

    `MalformedCall` if it is anything else.
    """
    text = text.strip()
    for spelled in (text, text.replace("\n", "\\n")):
        try:
            return _value(ast.parse(spelled, mode="eval").body)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    raise MalformedCall("it has a value that is no literal of Python")


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | int() | float() | bool() | None as value):
            return value
        case ast.Name(id=name) if name in _WORDS:
            return _WORDS[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return {str(_value(key)): _value(value) for key, value in zip(keys, values) if key is not None}
    raise ValueError
