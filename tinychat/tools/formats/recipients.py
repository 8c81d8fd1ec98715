"""Calls of Muse Glimmer: messages to a tool, whose arguments are texts between tags.

A reply is a row of messages, each with a header that names whom it is to: ``to=self`` has thoughts, ``to=user`` text,
and ``to=f`` a call:

    <|start|>assistant to=f<|message|><atem:function_calls>
    <atem:invoke name="f">
    <atem:parameter name="key">value</atem:parameter>
    </atem:invoke>
    </atem:function_calls><|eom|>
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tinychat.tools.definitions import Tool, ToolCall, ToolChoice
from tinychat.tools.formats.messages import MESSAGE, START, MessageReader, add_messages
from tinychat.tools.formats.reading import CallReader, Steps
from tinychat.tools.formats.tagged import TaggedFormat, TaggedReader
from tinychat.tools.grammars.markers import quoted
from tinychat.tools.grammars.rules import Rules

END_OF_MESSAGE, END_OF_TURN = "<|eom|>", "<|eot|>"
_THOUGHTS, _ANSWER = " to=self", " to=user"


@dataclass(frozen=True, kw_only=True)
class RecipientFormat(TaggedFormat):
    """Each call is a message to its tool; a reply begins within a header."""

    name: ClassVar = "recipients"

    section_begin: str = "<atem:function_calls>\n"
    section_end: str = "</atem:function_calls>"
    call_begin: str = '<atem:invoke name="'
    call_end: str = "</atem:invoke>\n"
    separator: str = f"{END_OF_MESSAGE}{START}assistant"
    name_end: str = '">\n'
    key_begin: str = '<atem:parameter name="'
    key_end: str = '">'
    value_end: str = "</atem:parameter>\n"

    def parser(self, tools: Sequence[Tool]) -> CallReader:
        """Return a parser of one reply; the schemas of the tools type the values."""
        return _RecipientReader(self, tools)

    def tool_rule(self, rules: Rules, choice: ToolChoice, tool: Tool, number: int) -> str:
        """Return a call of a tool with its header, in Lark."""
        begin = rules.markers.lark(f"{MESSAGE}{self.section_begin}{self.call_begin}")
        call = super().tool_rule(rules, choice, tool, number)
        return f"{quoted(f' to={tool.name}')} {begin} {call} {quoted(self.call_end + self.section_end)}"

    def add_reply(self, rules: Rules, choice: ToolChoice) -> None:
        """Add the rule of a reply behind ``<|start|>assistant``."""
        thoughts, answer = (f"{recipient}{MESSAGE}" for recipient in (_THOUGHTS, _ANSWER))
        add_messages(rules, choice, thoughts, answer, END_OF_MESSAGE, f"{START}assistant")

    def spell(self, *calls: ToolCall) -> str:
        """Return calls as the model writes them in one reply."""
        spell = super().spell
        return self.separator.join(f" to={call.name}{MESSAGE}{spell(call)}" for call in calls)

    @property
    def markers(self) -> str:
        """All texts that the format writes beside names and values."""
        return "\n".join((super().markers, MESSAGE))


class _RecipientReader(MessageReader, TaggedReader):
    HEADERS = (START, MESSAGE, "to=")
    INNER = (START,)
    ENDS = (END_OF_MESSAGE, END_OF_TURN)
    RECIPIENT = re.compile(r"\bto=(?!(?:self|user)\b(?!\.))([^\s<]+)")
    THOUGHTS = _THOUGHTS.strip()

    def _call_of(self, name: str) -> Steps[None]:
        """Read what is to a tool: calls, of which each names its tool once more."""
        yield from self._expect(self._form.section_begin)
        while not (yield from self._next(self._form.section_end)):
            yield from self._expect(self._form.call_begin)
            yield from self._call()
