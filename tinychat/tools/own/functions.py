"""Python functions as tools: type hints and docstrings become schemas."""

from __future__ import annotations

import inspect
import json
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from tinychat.errors import TextError, ToolError
from tinychat.files import read_text
from tinychat.json_file import one_line
from tinychat.tools.definitions import Tool
from tinychat.tools.own.docstrings import parts_of
from tinychat.tools.own.prints import FunctionPrint, Tell
from tinychat.tools.own.type_schemas import schema_of_type, value_of_type
from tinychat.tools.runnable import RunnableTool, ToolResult

_MAX_SOURCE_BYTES = 1 << 20
_MODULE = "tinychat_functions_"
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_SHOWN_DEFAULTS = (bool, int, float, str)


class FunctionTool(RunnableTool):
    """A Python function of the user.

    It runs in a thread of this process, and cannot be ended from outside: once the user stops the call, its result is
    dropped. A parameter with the hint ``threading.Event`` gets the event that tells of that; the model does not see it.
    """

    def __init__(
        self,
        definition: Tool,
        function: Callable[..., Any],
        hints: dict[str, Any],
        events: list[str],
        prints: FunctionPrint | None = None,
    ) -> None:
        self.definition = definition
        self._prints = prints
        self._function = function
        self._hints = hints
        self._events = events

    def run(self, arguments: dict[str, Any], stop: threading.Event) -> ToolResult:
        """Return the result of the function: a text as it is, anything else as JSON."""
        values = {name: value_of_type(value, self._hints[name]) for name, value in arguments.items()}
        with nullcontext() if self._prints is None else self._prints.of_call(self.definition.name, stop):
            return ToolResult(_as_text(self._function(**values, **dict.fromkeys(self._events, stop))))


def function_tool(function: Callable[..., Any], prints: FunctionPrint | None = None) -> FunctionTool:
    """Return the tool of a function, whose parameters must have type hints; `ToolError` if it cannot be one.

    `prints` is the `print` of its file, None for Python's own.
    """
    name = getattr(function, "__name__", type(function).__name__)
    try:
        return _tool_of(function, name, prints)
    except RecursionError:
        raise ToolError(f"the function {name} has a type that contains itself: use another") from None
    except (NameError, TypeError, ValueError, ToolError) as error:
        raise ToolError(f"the function {name} cannot be a tool: {one_line(str(error), 300)}") from None


def functions_of(path: Path, tell: Tell) -> list[FunctionTool]:
    """Return the tools of the public functions of a Python file, which is run; `tell` gets the lines that they print.

    `ToolError` if it fails or has none.
    """
    prints = FunctionPrint(path.name, tell)
    module = _run(path, prints)
    functions = [
        value for name, value in vars(module).items() if inspect.isfunction(value) and not name.startswith("_")
    ]
    tools = [function_tool(function, prints) for function in functions if function.__module__ == module.__name__]
    if not tools:
        raise ToolError(f"{path} has no public functions: define one with type hints and a docstring")
    return tools


def _run(path: Path, prints: FunctionPrint) -> ModuleType:
    """Run a file as a module of its own, which imports nothing from the working folder."""
    module = ModuleType(_MODULE + path.stem)
    module.__file__ = str(path)
    vars(module)["print"] = prints
    # Types that are named in texts are looked up there.
    sys.modules[module.__name__] = module
    try:
        exec(compile(read_text(path, _MAX_SOURCE_BYTES), str(path), "exec"), vars(module))
    except TextError as error:
        raise ToolError(str(error)) from None
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) else next(iter(lines), None)
        reason = one_line(f"{type(error).__name__}: {error}", 300)
        raise ToolError(f"{path} cannot be run: {reason}{f' (line {line})' if line else ''}") from None
    return module


def _tool_of(function: Callable[..., Any], name: str, prints: FunctionPrint | None) -> FunctionTool:
    if inspect.iscoroutinefunction(function):
        raise ToolError("it is async: define it without")
    hints = get_type_hints(function, include_extras=True)
    description, texts = parts_of(inspect.getdoc(function) or "")
    properties, required, events = {}, [], []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in _BY_NAME:
            raise ToolError(f"the parameter {parameter.name} cannot be given by its name")
        if parameter.name not in hints:
            raise ToolError(f"the parameter {parameter.name} has no type hint")
        if hints[parameter.name] is threading.Event:
            events.append(parameter.name)
            continue
        schema = schema_of_type(hints[parameter.name])
        if text := texts.get(parameter.name):
            schema["description"] = text
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
        elif type(parameter.default) in _SHOWN_DEFAULTS:
            schema["default"] = parameter.default
        properties[parameter.name] = schema
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return FunctionTool(Tool(name, description, schema), function, hints, events, prints)


def _as_text(value: object) -> str:
    if value is None:
        return "done"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: object) -> object:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)
