"""Calls of gpt-oss: ``<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>`` (harmony).

A reply is a row of messages, each with a header: thoughts in the channel ``analysis``, text in ``final``
(https://github.com/openai/harmony).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tinychat.tools.definitions import Tool, ToolCall, ToolChoice
from tinychat.tools.formats.call_format import CallFormat
from tinychat.tools.formats.messages import MESSAGE, START, MessageReader
from tinychat.tools.formats.reading import CallReader, Steps
from tinychat.tools.grammars.arguments import json_object
from tinychat.tools.grammars.markers import Markers, quoted
from tinychat.tools.grammars.replies import any_tool
from tinychat.tools.grammars.rules import Rules

CHANNEL, CONSTRAIN = "<|channel|>", "<|constrain|>"
END, CALL = "<|end|>", "<|call|>"
_ENDS = (END, CALL, START, "<|return|>")


@dataclass(frozen=True, kw_only=True)
class HarmonyFormat(CallFormat):
    """Each call is a message to a function; a reply begins within its header."""

    name: ClassVar = "harmony"

    call_begin: str = f"{CHANNEL}commentary to=functions."
    call_end: str = CALL
    separator: str = f"{START}assistant"

    def parser(self, tools: Sequence[Tool]) -> CallReader:
        """Return a parser of one reply."""
        return _HarmonyReader(self)

    def tool_rule(self, rules: Rules, choice: ToolChoice, tool: Tool, number: int) -> str:
        """Return a call of a tool, in Lark: it names its tool before or behind its channel."""
        markers, name = rules.markers, quoted(f" to=functions.{tool.name}")
        arguments = rules.add(f"arguments_{number}", json_object(choice, tool))
        kind = rules.add("kind", f'" "? {markers.lark(f"{CONSTRAIN}json")} | " json"')
        early = f"{name} {markers.lark(f'{CHANNEL}commentary')} {kind}"
        late = f"{markers.lark(f'{CHANNEL}commentary')} {name} {kind}"
        return f"({early} | {late}) {markers.lark(MESSAGE)} {arguments}"

    def add_reply(self, rules: Rules, choice: ToolChoice) -> None:
        """Add the rule of a reply behind ``<|start|>assistant``.

        Messages on the channels analysis, of thoughts, and commentary come before the last one, which is the answer or
        a call. A call ends the reply.
        """
        markers = rules.markers
        ending = "" if markers.is_stop(CALL) else f"({markers.lark(CALL)})?"
        rules.add("call", f"{any_tool(rules, choice)} {ending}")
        said, following = rules.until("said", END), markers.lark(self.separator)
        before = ("analysis", "commentary") if choice.thinks else ("commentary",)
        rules.add("before", f"{_opened(markers, *before)} {said} {following}")
        rules.add("answer", f"{_opened(markers, 'final', 'commentary')} TEXT?")
        rules.add("start", "before* call" if choice.required else "before* (call | answer)")

    def spell_body(self, call: ToolCall, number: int) -> str:
        """Return name and arguments."""
        return f"{call.name} {CONSTRAIN}json{MESSAGE}{call.arguments}"

    @property
    def markers(self) -> str:
        """All texts that the format writes beside names and values."""
        return "\n".join((self.call_begin, CONSTRAIN, MESSAGE, *_ENDS))


def _opened(markers: Markers, *channels: str) -> str:
    """Return the beginning of a message on one of the channels."""
    forms = [markers.lark(f"{CHANNEL}{channel}{MESSAGE}") for channel in channels]
    return f"({' | '.join(forms)})"


class _HarmonyReader(MessageReader):
    HEADERS = (CHANNEL, START, MESSAGE, "to=functions.")
    INNER = (CHANNEL, START)
    ENDS = _ENDS
    RECIPIENT = re.compile(r"\bto=functions\.([^\s<]+)")
    THOUGHTS = f"{CHANNEL}analysis"

    def _call(self) -> Steps[None]:
        yield from self._object()

    def _call_of(self, name: str) -> Steps[None]:
        yield self._begin(name)
        yield from self._call()
