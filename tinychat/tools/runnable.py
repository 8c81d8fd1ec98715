"""Tools that can be run: what one offers, and the box of those that a chat may use."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from tinychat.errors import ToolError
from tinychat.json_file import one_line
from tinychat.text.guard import well_formed
from tinychat.tools.argument_check import check_arguments
from tinychat.tools.definitions import Tool

LONGEST_RESULT = 20_000
"""Characters of a result that the model reads."""

# Letters of other alphabets look alike, and some templates and APIs take no more.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LONGEST_DEFINITION = 64 << 10
_LONGEST_PREVIEW = 20_000
_SHOWN_NAMES = 20
_SECONDS_BETWEEN_LOOKS = 0.02
# For a tool to stop by itself, and to tell how far it came.
_GRACE_SECONDS = 0.12


@dataclass(frozen=True)
class ToolResult:
    """The result of a call: the text that the model reads, and whether it tells of a failure.

    The text is what the tool has written: a screen shows it by `tinychat.terminal.safe_text.escaped_text` only.
    """

    text: str
    is_error: bool = False


class RunnableTool(Protocol):
    """A tool that can be run."""

    definition: Tool
    writes: bool = True  # whether a call may change anything, so that it is not repeated without asking
    # Whether consent is for single calls only, never for the tool as a whole: a command may be any program.
    exact_only: bool = False

    def preview(self, arguments: dict[str, Any]) -> str | None:
        """Return the effect of a call, for a person to read before consent: a diff, a command line.

        `ToolError` if the call can only fail: its message is the result, and nobody is asked.
        """
        return None

    def run(self, arguments: dict[str, Any], stop: threading.Event) -> ToolResult:
        """Run the tool with arguments that are valid under its schema; end soon once `stop` is set.

        An exception is a result, too: its text is what the model reads.
        """
        ...


class Toolbox:
    """Tools by name.

    `ToolError` for a name that is taken (upper and lower case count as the same), has other characters than letters of
    ASCII, digits, "_" and "-", or for a definition that is too long.
    """

    def __init__(self, tools: Iterable[RunnableTool] = ()) -> None:
        self._tools: dict[str, RunnableTool] = {}
        for tool in tools:
            self.add(tool)

    def __len__(self) -> int:
        return len(self._tools)

    @property
    def definitions(self) -> tuple[Tool, ...]:
        """The definitions of all tools, in the order in which they were added."""
        return tuple(tool.definition for tool in self._tools.values())

    def add(self, tool: RunnableTool) -> None:
        """Add a tool; `ToolError` if its definition cannot be used."""
        name = tool.definition.name
        if not _NAME.fullmatch(name):
            raise ToolError(f"the tool {_quoted(name)} must have a name of 1 to 64 letters, digits, '_' and '-'")
        if any(name.lower() == other.lower() for other in self._tools):
            raise ToolError(f"two tools are called {_quoted(name)}: leave one of them out")
        fingerprint(tool.definition)
        self._tools[name] = tool

    def find(self, name: str) -> RunnableTool:
        """Return the tool of a name; `ToolError`, which the model may read, if there is none."""
        if name in self._tools:
            return self._tools[name]
        names = ", ".join([*self._tools][:_SHOWN_NAMES]) or "none"
        raise ToolError(f"there is no tool {_quoted(name)}: the tools are {names}")

    def check(self, name: str, arguments: str | Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call as an object that is valid under the tool's schema.

        `ToolError`, one line for the model, if there is no such tool, they are no JSON, or one of them is wrong.
        """
        tool = self.find(name)
        given = _parsed(arguments) if isinstance(arguments, str) else dict(arguments)
        if not isinstance(given, dict):
            raise ToolError("the arguments must be a JSON object")
        check_arguments(given, tool.definition.parameters)
        return given

    def preview(self, name: str, arguments: dict[str, Any]) -> str | None:
        """Return the effect of a checked call, in at most 20,000 characters; `ToolError` if it can only fail."""
        try:
            text = self.find(name).preview(arguments)
        except (OSError, ValueError) as error:
            raise ToolError(_reason(error)) from None
        return None if text is None else shortened(text, _LONGEST_PREVIEW)

    def run(self, name: str, arguments: dict[str, Any], stop: threading.Event | None = None) -> ToolResult:
        """Run a checked call and return its result, cut to the limit with a note.

        Once `stop` is set, the result is there within 0.2 seconds. A tool that does not stop by itself (a Python
        function cannot be ended from outside) is left to its thread: it goes on, and its result is dropped. Ctrl-C
        sets `stop`.
        """
        tool, stop, results = self.find(name), stop or threading.Event(), list[ToolResult]()
        done = threading.Event()

        def work() -> None:
            try:
                results.append(tool.run(arguments, stop))
            except BaseException as error:  # a function that calls sys.exit, too: it must not end in silence
                results.append(ToolResult(_reason(error), is_error=True))
            finally:
                done.set()

        threading.Thread(target=work, name=f"tool {name}", daemon=True).start()
        try:
            while not done.wait(_SECONDS_BETWEEN_LOOKS) and not stop.is_set():
                pass
        except BaseException:
            stop.set()
            # The program may end now: a command should not outlive it.
            done.wait(_GRACE_SECONDS)
            raise
        if not done.wait(_GRACE_SECONDS):
            return ToolResult("the user stopped this call", is_error=True)
        (result,) = results
        return ToolResult(well_formed(shortened(result.text, LONGEST_RESULT)), result.is_error)


def fingerprint(tool: Tool) -> str:
    """Return the hash of a tool's name, description and schema: consent ends when it changes.

    `ToolError` for a definition that is not plain data, or longer than 64 KiB.
    """
    try:
        text = json.dumps([tool.name, tool.description, tool.parameters], sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        raise ToolError(f"the tool {_quoted(tool.name)} has a schema that is not JSON") from None
    if len(text) > _LONGEST_DEFINITION:
        raise ToolError(f"the tool {_quoted(tool.name)} has a definition of more than {_LONGEST_DEFINITION >> 10} KiB")
    return hashlib.sha256(text.encode()).hexdigest()


def shortened(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters and a note for what is left out before its end."""
    if len(text) <= limit:
        return text
    end = limit // 4
    note = f"\n[{len(text) - limit} characters are left out here]\n"
    return text[: limit - end] + note + text[len(text) - end :]


def _parsed(text: str) -> object:
    try:
        return json.loads(text or "{}", parse_constant=_refuse_constant)
    except RecursionError:
        raise ToolError("the arguments are nested too deeply") from None
    except ValueError as error:
        raise ToolError(f"the arguments are not valid JSON: {one_line(str(error))}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _reason(error: BaseException) -> str:
    """Return an error as one line for the model; the kind of those that are not about a call or a file."""
    if isinstance(error, ToolError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return one_line(f"{error.strerror}: {error.filename}" if error.filename else error.strerror, 300)
    return one_line(f"{type(error).__name__}: {error}", 300)


def _quoted(name: str) -> str:
    return f"'{one_line(name, 70)}'"
