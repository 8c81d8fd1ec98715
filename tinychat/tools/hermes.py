"""Calls in the format of Hermes: ``<tool_call>{"name": "f", "arguments": {...}}</tool_call>``.

Qwen2.5, Qwen3, SmolLM3, Granite 4 and many tunes write it (https://huggingface.co/NousResearch/Hermes-2-Pro-Llama-3-8B).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from tinychat.tools.definitions import ToolChoice

OPEN, CLOSE = "<tool_call>", "</tool_call>"
# A call is told once its name is known and its arguments begin.
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
# Where no call in this format can begin otherwise.
_LONGEST_HEAD = 1000


class CallText(NamedTuple):
    """Text outside of calls."""

    text: str


class CallBegin(NamedTuple):
    """A call of a tool begins; its number counts the calls of the reply from 0."""

    number: int
    name: str


class CallArguments(NamedTuple):
    """The next part of the arguments of a call: all parts together are a JSON object."""

    number: int
    text: str


CallEvent = CallText | CallBegin | CallArguments


class HermesCalls:
    """Finds the calls of a reply while it is written. Anything that is no call stays text.

    Attributes
    ----------
    count : int
        Calls that have begun.
    ended : int
        Calls whose arguments are whole.
    """

    def __init__(self) -> None:
        self.count = self.ended = 0
        self._pending = ""
        self._state = self._in_text
        self._arguments = _ObjectScanner()

    def feed(self, text: str) -> Iterator[CallEvent]:
        """Yield what is certain after the next text."""
        self._pending += text
        while (event := self._state()) is not None:
            if event != CallText(""):
                yield event

    def finish(self) -> Iterator[CallEvent]:
        """Yield what was held back: a call that did not begin is text."""
        if self._state == self._in_head:
            self._pending = OPEN + self._pending
        if self._state != self._in_tail and self._pending:
            yield CallText(self._pending)
        self._pending = ""

    def _in_text(self) -> CallEvent | None:
        begin = self._pending.find(OPEN)
        if begin < 0:
            sure = len(self._pending) - _beginning_of(OPEN, self._pending)
            # Space between the text and a call belongs to neither.
            sure = min(sure, len(self._pending[:sure].rstrip()))
            return CallText(self._take(sure)) if sure else None
        text = self._take(begin).rstrip()
        self._take(len(OPEN))
        self._state = self._in_head
        return CallText(text)

    def _in_head(self) -> CallEvent | None:
        if (head := _HEAD.match(self._pending)) is not None:
            self._take(head.end())
            self._state, self._arguments = self._in_arguments, _ObjectScanner()
            self.count += 1
            return CallBegin(self.count - 1, str(json.loads(head[1])))
        if (end := self._pending.find(CLOSE)) >= 0:
            return self._whole_call(self._take(end))
        if len(self._pending) > _LONGEST_HEAD:
            self._state = self._in_text
            return CallText(OPEN + self._take(len(self._pending)))
        return None

    def _whole_call(self, text: str) -> CallEvent:
        """Take a call whose keys are in another order, or whose arguments are text; what is no call is text."""
        self._take(len(CLOSE))
        self._state = self._in_text
        call = _as_call(text)
        if call is None:
            return CallText(f"{OPEN}{text}{CLOSE}")
        name, arguments = call
        self.count += 1
        self._pending = f"{arguments}{CLOSE}{self._pending}"
        self._state, self._arguments = self._in_arguments, _ObjectScanner()
        return CallBegin(self.count - 1, name)

    def _in_arguments(self) -> CallEvent | None:
        length, is_whole = self._arguments.scan(self._pending)
        if is_whole:
            self.ended += 1
            self._state = self._in_tail
        return CallArguments(self.count - 1, self._take(length)) if length else None

    def _in_tail(self) -> CallEvent | None:
        """Leave out all up to the end of the call."""
        end = self._pending.find(CLOSE)
        if end < 0:
            self._take(len(self._pending) - _beginning_of(CLOSE, self._pending))
            return None
        self._take(end + len(CLOSE))
        self._pending = self._pending.lstrip("\n")
        self._state = self._in_text
        return CallText("")

    def _take(self, length: int) -> str:
        taken, self._pending = self._pending[:length], self._pending[length:]
        return taken


class _ObjectScanner:
    """Finds the end of a JSON object that comes in parts."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._is_escaped = False

    def scan(self, text: str) -> tuple[int, bool]:
        """Return how many characters of `text` belong to the object, and whether it ends there."""
        for index, character in enumerate(text):
            if self._in_string:
                self._in_string = self._is_escaped or character != '"'
                self._is_escaped = character == "\\" and not self._is_escaped
            elif character == '"':
                self._in_string = True
            else:
                self._depth += (character in "{[") - (character in "}]")
                if self._depth == 0:
                    return index + 1, True
        return len(text), False


def _as_call(text: str) -> tuple[str, str] | None:
    """Return name and arguments of a call as JSON, or None."""
    try:
        call = json.loads(text)
        arguments = call.get("arguments", call.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
    except (ValueError, AttributeError, RecursionError):
        return None
    if not isinstance(call.get("name"), str) or not isinstance(arguments, dict):
        return None
    return call["name"], json.dumps(arguments, ensure_ascii=False)


def _beginning_of(tag: str, text: str) -> int:
    """Return how many characters at the end of `text` may begin `tag`."""
    return next((n for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n])), 0)


def call_grammar(choice: ToolChoice) -> str:
    """Return the grammar, in llguidance's Lark, of a reply that consists of required calls."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.name}, "arguments": dict(tool.parameters)},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in choice.callable_tools
    ]
    schema = json.dumps({"anyOf": calls, "x-guidance": {"whitespace_pattern": " ?"}})
    more = ' ("\\n" call)*' if choice.is_parallel else ""
    return f'start: call{more}\ncall: "{OPEN}\\n" body "\\n{CLOSE}"\nbody: %json {schema}'
