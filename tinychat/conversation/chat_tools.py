"""The tools of a conversation, and what watches their calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tinychat.tools.definitions import ToolCall
from tinychat.tools.runnable import Toolbox, ToolResult

if TYPE_CHECKING:
    from tinychat.tools.consent import Consent
    from tinychat.tools.runnable import RunnableTool

MOST_ROUNDS = 10
"""Rounds of calls that answer one message, unless another number is set."""


@dataclass(frozen=True)
class CallResult:
    """A call with its result; `seconds` is None if it did not run."""

    call: ToolCall
    result: ToolResult
    seconds: float | None


@dataclass
class ChatTools:
    """The tools of a conversation, and who decides on their calls."""

    toolbox: Toolbox = field(default_factory=Toolbox)
    # Decides on each call; None runs all of them, for functions of the program's own.
    consent: Consent | None = None
    max_rounds: int = MOST_ROUNDS  # of calls that answer one message, at most
    on_call: Callable[[ToolCall], None] = lambda call: None  # called with each call before it runs
    on_result: Callable[[CallResult], None] = lambda result: None  # called for calls that did not run, too


def as_toolbox(tools: Iterable[Callable[..., Any] | RunnableTool]) -> Toolbox:
    """Return a toolbox of tools and Python functions; `ToolError` if one cannot be used."""
    return Toolbox(_of_function(tool) if callable(tool) else tool for tool in tools)


def _of_function(function: Callable[..., Any]) -> RunnableTool:
    # Imported here: most conversations have no tools.
    from tinychat.tools.own.functions import function_tool

    return function_tool(function)
