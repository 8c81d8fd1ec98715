"""Calls whose name stands before a JSON object: ``[TOOL_CALLS]f[ARGS]{...}`` (Mistral), DeepSeek, Kimi, functionary."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tinychat.tools.definitions import Tool, ToolCall, ToolChoice
from tinychat.tools.formats.call_format import CallFormat, filled
from tinychat.tools.formats.reading import LONGEST_NAME, CallReader, MalformedCall, Steps
from tinychat.tools.grammars.arguments import json_object
from tinychat.tools.grammars.markers import quoted
from tinychat.tools.grammars.replies import ID, NUMBER, PLACEHOLDERS, wild
from tinychat.tools.grammars.rules import Rules


@dataclass(frozen=True, kw_only=True)
class NamedFormat(CallFormat):
    """Each call is a name, `name_end`, which may have number or id of the call too, and the object of its arguments."""

    name: ClassVar = "name and JSON"

    name_end: str

    def parser(self, tools: Sequence[Tool]) -> CallReader:
        """Return a parser of one reply."""
        return _NamedReader(self)

    def tool_rule(self, rules: Rules, choice: ToolChoice, tool: Tool, number: int) -> str:
        """Return a call of a tool, in Lark."""
        arguments = rules.add(f"arguments_{number}", json_object(choice, tool))
        return f"{quoted(tool.name)} {wild(rules, self.name_end)} {arguments}"

    def spell_body(self, call: ToolCall, number: int) -> str:
        """Return name and arguments."""
        return f"{call.name}{filled(self.name_end, call, number)}{call.arguments}"

    @property
    def head(self) -> re.Pattern[str]:
        """The pattern of what stands between the first text of `call_begin` and the last one of `name_end`."""
        begin, end = PLACEHOLDERS.split(self.call_begin), PLACEHOLDERS.split(self.name_end)
        parts = [*begin[1:], "\0", *end[:-1]]
        wild = {NUMBER: r"\d+", ID: r"\S*?", "\0": rf"(.{{1,{LONGEST_NAME}}}?)"}
        return re.compile("".join(wild.get(part) or re.escape(part.strip()) for part in parts), re.DOTALL)


class _NamedReader(CallReader):
    _form: NamedFormat

    def _call(self) -> Steps[None]:
        form = self._form
        # The last text before the arguments: those before it may be parts of a name.
        last = form.name_end.rpartition("}")[2].strip()
        text = yield from self._until(*([last] if last else ["{"]), longest=2 * LONGEST_NAME)
        head = form.head.fullmatch(text.strip())
        if head is None:
            raise MalformedCall(f"it has no name before {last}")
        yield from self._expect(last)
        yield self._begin(head[1].strip())
        yield from self._object()
        yield from self._expect(form.call_end)
