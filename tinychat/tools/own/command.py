"""Tools that run programs: run_command without a shell, run_shell_line with one."""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Mapping
from typing import Any

from tinychat.errors import ToolError
from tinychat.tools.definitions import Tool
from tinychat.tools.own.bounded_command import Stopped, run_bounded
from tinychat.tools.own.files import schema_of
from tinychat.tools.own.root import Root
from tinychat.tools.runnable import RunnableTool, ToolResult

_SECONDS = 60
_GRACE_SECONDS = 0.05
# What programs need to find each other, and to write in the user's language. Keys and tokens have any name, so that
# a list of what to leave out would miss some.
_PASSED = ("HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV")
_FIXED = {"TERM": "dumb", "NO_COLOR": "1", "PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}
_TIME_LIMIT = {"type": "integer", "minimum": 1, "maximum": 600, "description": f"Time limit, {_SECONDS} if left out"}


def environment_of(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that commands get: neither keys nor tokens."""
    passed = {name: text for name, text in variables.items() if name in _PASSED or name.startswith("LC_")}
    return passed | _FIXED


class RunCommand(RunnableTool):
    """Runs a program."""

    exact_only = True
    definition = Tool(
        "run_command",
        "Run a program in the working folder, without a shell, and read its output. It has no input.",
        schema_of(
            ("command",),
            command={
                "type": "array",
                "items": {"type": "string"},
                "minItems": 1,
                "description": 'The program and its arguments, as in ["ls", "-l"]',
            },
            seconds=_TIME_LIMIT,
        ),
    )

    def __init__(self, root: Root) -> None:
        self._root = root

    def _command(self, arguments: dict[str, Any]) -> list[str]:
        command: list[str] = arguments["command"]
        return command

    def preview(self, arguments: dict[str, Any]) -> str:
        """Return the folder and the command line."""
        return f"in {self._root.folder}\n$ {shlex.join(arguments['command'])}"

    def run(self, arguments: dict[str, Any], stop: threading.Event) -> ToolResult:
        """Return the output, and how the command has ended."""
        command, seconds = self._command(arguments), arguments.get("seconds", _SECONDS)
        try:
            data, _, ending = run_bounded(
                command,
                stop.is_set,
                seconds,
                folder=self._root.folder,
                environment=environment_of(os.environ),
                grace_seconds=_GRACE_SECONDS,
            )
        except Stopped:
            return ToolResult("the user stopped this command", is_error=True)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ToolError(f"the command cannot be run: {reason}") from None
        text = f"[{len(data):,} bytes that are not text]" if b"\0" in data else data.decode(errors="replace")
        return ToolResult(f"{text.rstrip() or '[no output]'}\n[{ending or 'exit code 0'}]", is_error=bool(ending))


class RunShellLine(RunCommand):
    """Runs a line in a shell."""

    definition = Tool(
        "run_shell_line",
        "Run one line in sh in the working folder, with pipes and wildcards, and read its output. It has no input.",
        schema_of(("line",), line={"type": "string", "minLength": 1}, seconds=_TIME_LIMIT),
    )

    def _command(self, arguments: dict[str, Any]) -> list[str]:
        return ["/bin/sh", "-c", arguments["line"]]

    def preview(self, arguments: dict[str, Any]) -> str:
        """Return the folder and the line."""
        return f"in {self._root.folder}\n$ {arguments['line']}"
