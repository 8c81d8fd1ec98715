"""The interface of a format of calls: how a model writes them, and how they are found in its replies."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

from tinychat.tools.definitions import Tool, ToolCall, ToolChoice
from tinychat.tools.events import CallEvent

IdRule = Literal["any", "nine", "named"]
"""Ids that a template accepts: any, nine letters and digits (Mistral), or ``functions.NAME:NUMBER`` (Kimi)."""


class CallParser(Protocol):
    """Finds the calls of a reply while it is written. Anything that is no call stays text.

    Attributes
    ----------
    count : int
        Calls that have begun.
    ended : int
        Calls whose arguments are whole.
    """

    count: int
    ended: int

    def feed(self, text: str) -> Iterator[CallEvent]:
        """Yield what is certain after the next text."""
        ...

    def finish(self) -> Iterator[CallEvent]:
        """Yield what was held back."""
        ...


class CallFormat(ABC):
    """How a model writes calls.

    Attributes
    ----------
    name : str
        Of the family, for messages.
    id_rule : str
        The ids that the model's template accepts.
    """

    name: str
    id_rule: IdRule = "any"

    @abstractmethod
    def parser(self, tools: Sequence[Tool]) -> CallParser:
        """Return a parser of one reply; the schemas of the tools type arguments that are written as bare text."""

    @abstractmethod
    def grammar(self, choice: ToolChoice) -> str | None:
        """Return the grammar, in llguidance's Lark, of a reply with calls; None where it may be any text."""

    @abstractmethod
    def spell(self, call: ToolCall) -> str:
        """Return a reply that is this call, as the model writes it."""

    @property
    @abstractmethod
    def end(self) -> str:
        """The text that ends a call, without space."""

    def call_id(self, number: int, name: str = "", salt: str = "") -> str:
        """Return the id of a call by its number in the reply; other salts give other ids."""
        if self.id_rule == "named":
            return f"functions.{name}:{number}"
        if self.id_rule == "nine":
            return hashlib.sha256(f"{salt}{number}".encode()).hexdigest()[:9]
        return f"call_{salt}{number:04}"
