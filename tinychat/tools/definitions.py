"""Definitions and calls of tools, in OpenAI's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tinychat.errors import FieldError

_MOST_TOOLS = 512
_LONGEST_NAME = 256


@dataclass(frozen=True)
class Tool:
    """A function that a model may call."""

    name: str
    description: str = ""
    # The JSON schema of its arguments, an object.
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool = False  # whether its arguments must be valid under the schema

    def as_dict(self) -> dict[str, object]:
        """Return the definition in OpenAI's form, as chat templates take it."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool that the model asks for.

    `id` names the call in the message of its result; `arguments` is a JSON object, or whatever the model has written
    instead.
    """

    id: str
    name: str
    arguments: str = "{}"

    def as_dict(self) -> dict[str, object]:
        """Return the call in OpenAI's form."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True)
class ToolChoice:
    """Which tools a reply may or must call."""

    tools: tuple[Tool, ...] = ()  # those that the model is told of
    required: bool = False  # whether the reply is a call
    only: str | None = None  # the one tool that may be called
    is_parallel: bool = True  # whether a reply may have several calls
    constrains: bool = False  # whether calls are held to the schemas of all tools, not only to those of strict ones
    thinks: bool = True  # whether a grammar may let thoughts come first, where replies are messages

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """The tools that a required call may name."""
        return tuple(tool for tool in self.tools if self.only in (None, tool.name))

    @property
    def is_constrained(self) -> bool:
        """Whether a grammar holds the calls."""
        return bool(self.tools) and (self.required or self.constrains or any(tool.strict for tool in self.tools))


def tool_choice(tools: object, choice: object, is_parallel: object) -> ToolChoice:
    """Return the choice of tools by the fields ``tools``, ``tool_choice`` and ``parallel_tool_calls``.

    `FieldError` if one of them is malformed, or names a tool that is not there.
    """
    found = as_tools(tools)
    if not isinstance(is_parallel, bool | None):
        raise FieldError("parallel_tool_calls", "must be true or false")
    parallel = is_parallel is not False
    match choice:
        case None | "auto":
            return ToolChoice(found, is_parallel=parallel)
        case "none":
            return ToolChoice()
        case "required" | "any" if found:
            return ToolChoice(found, required=True, is_parallel=parallel)
        case {"type": "function", "function": {"name": str() as name}} if name in [tool.name for tool in found]:
            return ToolChoice(found, required=True, only=name, is_parallel=False)
    raise FieldError("tool_choice", 'must be "none", "auto", "required", or name a function that is in tools')


def as_tools(value: object) -> tuple[Tool, ...]:
    """Return the tools of definitions in OpenAI's form; `FieldError` names a definition that is wrong."""
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) > _MOST_TOOLS:
        raise FieldError("tools", f"must be a list of at most {_MOST_TOOLS} tools")
    tools = tuple(_as_tool(item, f"tools[{index}]") for index, item in enumerate(value))
    if len({tool.name for tool in tools}) < len(tools):
        raise FieldError("tools", "must have names that differ")
    return tools


def _as_tool(value: object, path: str) -> Tool:
    if not isinstance(value, Mapping) or value.get("type") != "function":
        raise FieldError(path, 'must be {"type": "function", "function": {"name": "...", "parameters": {...}}}')
    function = value.get("function")
    if not isinstance(function, Mapping):
        raise FieldError(f"{path}.function", "must be an object with a name")
    name, description = function.get("name"), function.get("description") or ""
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
        raise FieldError(f"{path}.function.name", f"must be a text of 1 to {_LONGEST_NAME} characters")
    if not isinstance(description, str):
        raise FieldError(f"{path}.function.description", "must be a text")
    if not isinstance(parameters, Mapping):
        raise FieldError(f"{path}.function.parameters", "must be a JSON schema")
    strict = function.get("strict") or False
    if not isinstance(strict, bool):
        raise FieldError(f"{path}.function.strict", "must be true or false")
    return Tool(name, description, parameters, strict)
