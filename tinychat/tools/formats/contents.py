"""Calls of Inkling: messages whose content is a JSON object that names the tool once more.

A reply is a row of messages, each with a mark of what its content is, and before the mark of a call the name of the
tool. All begin with ``<|message_model|>``, with which the prompt ends:

    <|content_thinking|>thoughts<|end_message|>
    <|message_model|><|content_text|>text<|end_message|>
    <|message_model|>f<|content_invoke_tool_json|>{"name":"f","args":{...}}<|end_message|>
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tinychat.tools.definitions import Tool, ToolCall, ToolChoice
from tinychat.tools.formats.json_calls import JsonFormat, JsonReader
from tinychat.tools.formats.messages import MessageReader, add_messages
from tinychat.tools.formats.reading import LONGEST_NAME, CallReader, Steps, as_json
from tinychat.tools.grammars.arguments import json_object, json_text
from tinychat.tools.grammars.markers import quoted
from tinychat.tools.grammars.rules import Rules

START, END, END_OF_TURN = "<|message_model|>", "<|end_message|>", "<|content_model_end_sampling|>"
THOUGHTS, TEXT, CALL = "<|content_thinking|>", "<|content_text|>", "<|content_invoke_tool_json|>"
# Their content is text, too: what is said to a tool that takes no JSON, and an error of a tool.
_OTHER_TEXTS = ("<|content_invoke_tool_text|>", "<|content_tool_error|>")
_NAME = re.compile(rf"[^\s<]{{0,{LONGEST_NAME}}}")


@dataclass(frozen=True, kw_only=True)
class ContentFormat(JsonFormat):
    """Each call is a message with the name of its tool before the mark of its content."""

    name: ClassVar = "contents"

    call_begin: str = CALL
    separator: str = f"{END}{START}"
    arguments_key: str = "args"

    def parser(self, tools: Sequence[Tool]) -> CallReader:
        """Return a parser of one reply."""
        return _ContentReader(self)

    def tool_rule(self, rules: Rules, choice: ToolChoice, tool: Tool, number: int) -> str:
        """Return a call of a tool with its header, in Lark."""
        arguments = rules.add(f"arguments_{number}", json_object(choice, tool))
        header = f"{quoted(tool.name)} {rules.markers.lark(self.call_begin)}"
        begin, key = (quoted(text) for text in (f'{{"{self.name_key}":', f',"{self.arguments_key}":'))
        return f'{header} {begin} {json_text(tool.name)} {key} {arguments} "}}"'

    def add_reply(self, rules: Rules, choice: ToolChoice) -> None:
        """Add the rule of a reply behind ``<|message_model|>``."""
        add_messages(rules, choice, THOUGHTS, TEXT, END, START)

    def spell_body(self, call: ToolCall, number: int) -> str:
        """Return the object."""
        return f'{{"{self.name_key}":{as_json(call.name)},"{self.arguments_key}":{call.arguments}}}'

    def spell(self, *calls: ToolCall) -> str:
        """Return calls as the model writes them in one reply."""
        spell = super().spell
        return self.separator.join(f"{call.name}{spell(call)}" for call in calls)

    @property
    def markers(self) -> str:
        """All texts that the format writes beside names and values."""
        return "\n".join((super().markers, THOUGHTS, TEXT, *_OTHER_TEXTS, END_OF_TURN))


class _ContentReader(MessageReader, JsonReader):
    HEADERS = INNER = (THOUGHTS, TEXT, CALL, *_OTHER_TEXTS)
    # The beginning of a message says nothing of what it is.
    ENDS = (END, END_OF_TURN, START)
    RECIPIENT = re.compile(f"(.*){re.escape(CALL)}")
    THOUGHTS = THOUGHTS

    def _header(self) -> Steps[str]:
        """Take the mark of a message's content and the name before it; empty where words are no name, but text."""
        while (name := _NAME.match(self._text, self._at)) and name.end() == len(self._text) and not self._is_last:
            yield None
        start, self._at = self._at, name.end() if name else self._at
        if mark := (yield from self._next(*self.HEADERS)):
            return mark
        self._at = start
        return ""

    def _call_of(self, name: str) -> Steps[None]:
        """Read the object, whose name of the tool counts."""
        yield from self._call()
