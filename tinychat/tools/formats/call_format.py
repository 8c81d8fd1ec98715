"""The interface of a format of calls: how a model writes them, and how they are found in its replies."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from tinychat.tools.definitions import Tool, ToolCall, ToolChoice
from tinychat.tools.formats.reading import CallReader
from tinychat.tools.grammars.markers import TEXT_ONLY, Markers
from tinychat.tools.grammars.replies import ID, NUMBER, Frame, add_reply
from tinychat.tools.grammars.rules import Rules

IdRule = Literal["any", "nine", "named"]
"""Ids that a template accepts: any, nine letters and digits (Mistral), or ``functions.NAME:NUMBER`` (Kimi)."""

_IDS: dict[IdRule, str] = {"any": r"(?s:.*)", "nine": r"[a-zA-Z0-9]{9}", "named": r"functions\.(?s:.*):\d+"}


@dataclass(frozen=True, kw_only=True)
class CallFormat(Frame, ABC):
    """How a model writes calls.

    All texts are as the model writes them, with their space; where a call is read, any space, or none, may stand for
    it.
    """

    name: ClassVar[str]  # of the family, for messages

    id_rule: IdRule = "any"  # the ids that the model's template accepts

    @abstractmethod
    def parser(self, tools: Sequence[Tool]) -> CallReader:
        """Return a parser of one reply; the schemas of the tools type arguments that are written as bare text."""

    def grammar(self, choice: ToolChoice, markers: Markers = TEXT_ONLY) -> str | None:
        """Return the grammar, in llguidance's Lark, of a reply with calls; None where it may be any text.

        `markers` are the control tokens of the model's vocabulary.
        """
        if not choice.is_constrained:
            return None
        rules = Rules(markers)
        for number, tool in enumerate(choice.callable_tools):
            rules.add(f"tool_{number}", self.tool_rule(rules, choice, tool, number))
        self.add_reply(rules, choice)
        return rules.lark()

    @abstractmethod
    def tool_rule(self, rules: Rules, choice: ToolChoice, tool: Tool, number: int) -> str:
        """Return a call of the tool of this number between its beginning and its end, in Lark."""

    def add_reply(self, rules: Rules, choice: ToolChoice) -> None:
        """Add the rule ``start`` of a reply with calls of any tool."""
        add_reply(rules, choice, self)

    @abstractmethod
    def spell_body(self, call: ToolCall, number: int) -> str:
        """Return the text between beginning and end of the call of this number; its arguments must be an object."""

    def spell(self, *calls: ToolCall) -> str:
        """Return calls as the model writes them in one reply."""
        spelled = [
            f"{filled(self.call_begin, call, number)}{self.spell_body(call, number)}{self.call_end}"
            for number, call in enumerate(calls)
        ]
        return f"{self.section_begin}{self.separator.join(spelled)}{self.section_end}"

    @property
    def end(self) -> str:
        """A text that comes behind the arguments of every call, without space; empty where there is none."""
        return self.call_end.strip()

    @property
    def markers(self) -> str:
        """All texts that the format writes beside names and values."""
        texts = [value for field in fields(self) if isinstance(value := getattr(self, field.name), str)]
        return "\n".join([self.opening, *texts])

    def takes_id(self, number: str) -> bool:
        """Return whether the model's template accepts an id."""
        return re.fullmatch(_IDS[self.id_rule], number, re.ASCII) is not None

    def call_id(self, number: int, name: str = "", salt: str = "") -> str:
        """Return the id of a call by its number in the reply; other salts give other ids."""
        if self.id_rule == "named":
            return f"functions.{name}:{number}"
        if self.id_rule == "nine":
            return hashlib.sha256(f"{salt}{number}".encode()).hexdigest()[:9]
        return f"call_{salt}{number:04}"


def filled(text: str, call: ToolCall, number: int) -> str:
    """Return the beginning of a call with its number and its id."""
    return text.replace(NUMBER, str(number)).replace(ID, call.id)
