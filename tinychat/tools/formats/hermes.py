"""Calls in the format of Hermes: ``<tool_call>{"name": "f", "arguments": {...}}</tool_call>``.

Qwen2.5, Qwen3, SmolLM3, Granite 4 and many tunes write it (https://huggingface.co/NousResearch/Hermes-2-Pro-Llama-3-8B).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from tinychat.tools.definitions import Tool, ToolCall, ToolChoice
from tinychat.tools.events import CallArguments, CallBegin, CallEvent, CallText
from tinychat.tools.formats.call_format import CallFormat
from tinychat.tools.grammars.json_calls import hermes_grammar
from tinychat.tools.json_object import JsonObject

OPEN, CLOSE = "<tool_call>", "</tool_call>"
# A call is told once its name is known and its arguments begin.
_STRING = r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"'
_HEAD = re.compile(rf'\s*\{{\s*"name"\s*:\s*({_STRING})\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{{)')
_NOTHING = CallText("")


class HermesCalls:
    """Finds the calls of a reply while it is written. Anything that is no call stays text.

    The events do not depend on where the text is split. Arguments that turn out to be no JSON end before that: such a
    call is not whole, and what follows is text.

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
        # The tag of a call that has not begun, and the space before it: text, if it is none.
        self._tag = ""
        self._state = self._in_text
        self._arguments = JsonObject()

    def feed(self, text: str) -> Iterator[CallEvent]:
        """Yield what is certain after the next text."""
        self._pending += text
        while (event := self._state()) is not None:
            if event != _NOTHING:
                yield event

    def finish(self) -> Iterator[CallEvent]:
        """Yield what was held back: a call that did not begin is text."""
        text = self._tag + self._pending if self._state == self._in_head else self._pending
        if self._state in (self._in_head, self._in_text) and text:
            yield CallText(text)
        self._pending = ""

    def _in_text(self) -> CallEvent | None:
        begin = self._pending.find(OPEN)
        if begin < 0:
            sure = len(self._pending) - _beginning_of(OPEN, self._pending)
            # Space between the text and a call belongs to neither.
            sure = len(self._pending[:sure].rstrip())
            return CallText(self._take(sure)) if sure else None
        text = self._pending[:begin].rstrip()
        self._take(len(text))
        self._tag = self._take(begin - len(text) + len(OPEN))
        self._state = self._in_head
        return CallText(text)

    def _in_head(self) -> CallEvent | None:
        begun = self._pending.lstrip()
        if begun and begun[0] != "{":
            self._state = self._in_text
            return CallText(self._tag)
        end, head = self._pending.find(CLOSE), _HEAD.match(self._pending)
        if head is not None and (end < 0 or head.end() <= end):
            self._take(head.end())
            return self._begin(json.loads(head[1]))
        return None if end < 0 else self._whole_call(self._take(end))

    def _begin(self, name: str) -> CallBegin:
        self._state, self._arguments = self._in_arguments, JsonObject()
        self.count += 1
        # Half of a pair of surrogates is no text.
        return CallBegin(self.count - 1, name.encode("utf-8", "replace").decode())

    def _whole_call(self, text: str) -> CallEvent:
        """Take a call whose keys are in another order, or whose arguments are text; what is no call is text."""
        self._take(len(CLOSE))
        call = _as_call(text)
        if call is None:
            self._state = self._in_text
            return CallText(f"{self._tag}{text}{CLOSE}")
        name, arguments = call
        self._pending = f"{arguments}{CLOSE}{self._pending}"
        return self._begin(name)

    def _in_arguments(self) -> CallEvent | None:
        text, length = self._arguments.feed(self._pending)
        self._take(length)
        if self._arguments.status == "whole":
            self.ended += 1
            self._state = self._in_tail
        elif self._arguments.status == "bad":
            self._state = self._in_text
        elif not text:
            return None
        return CallArguments(self.count - 1, text) if text else _NOTHING

    def _in_tail(self) -> CallEvent | None:
        """Leave out all up to the end of the call."""
        end = self._pending.find(CLOSE)
        if end < 0:
            self._take(len(self._pending) - _beginning_of(CLOSE, self._pending))
            return None
        self._take(end + len(CLOSE))
        self._state = self._behind_call
        return _NOTHING

    def _behind_call(self) -> CallEvent | None:
        """Leave out the lines between a call and what follows."""
        self._pending = self._pending.lstrip("\n")
        if not self._pending:
            return None
        self._state = self._in_text
        return _NOTHING

    def _take(self, length: int) -> str:
        taken, self._pending = self._pending[:length], self._pending[length:]
        return taken


def _as_call(text: str) -> tuple[str, str] | None:
    """Return name and arguments of a call as JSON, or None."""
    try:
        call = json.loads(text, strict=False)
        arguments = call.get("arguments", call.get("parameters"))
        if isinstance(arguments, str):
            arguments = json.loads(arguments, strict=False)
        arguments = {} if arguments is None else arguments
        spelled = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (ValueError, AttributeError, RecursionError):
        return None
    if not isinstance(call.get("name"), str) or not isinstance(arguments, dict):
        return None
    # Half of a pair of surrogates stays the escape that it was.
    return call["name"], spelled.encode("utf-8", "backslashreplace").decode()


def _beginning_of(tag: str, text: str) -> int:
    """Return how many characters at the end of `text` may begin `tag`."""
    return next((n for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n])), 0)


class HermesFormat(CallFormat):
    """Each call is a JSON object with name and arguments between two tags."""

    name = "Hermes"
    end = CLOSE

    def parser(self, tools: Sequence[Tool]) -> HermesCalls:
        """Return a parser of one reply."""
        return HermesCalls()

    def grammar(self, choice: ToolChoice) -> str | None:
        """Return the grammar of a reply with calls."""
        return hermes_grammar(choice)

    def spell(self, call: ToolCall) -> str:
        """Return a reply that is this call."""
        return f'{OPEN}\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}\n{CLOSE}'


HERMES = HermesFormat()
