"""The calls of a reply told from the text that a person reads, while both stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Self

from tinychat.conversation.messages import MOST_CALLS
from tinychat.text.think_sections import SectionDelta, ThinkSections
from tinychat.tools.definitions import Tool, ToolCall
from tinychat.tools.events import CallArguments, CallBegin, CallEvent, CallThought
from tinychat.tools.formats.call_format import CallFormat

if TYPE_CHECKING:
    from tinychat.generate.reply import Reply

# As chat templates write them.
_OPEN, _CLOSE = "<think>\n", "</think>\n\n"
# No tool has a longer one.
_LONGEST_NAME = 64


class ReplyCalls:
    """Splits a reply into text and calls; calls in a think section are thoughts.

    `tools` are those that the model is told of. With `opens_thinking` the reply begins inside its think section. `salt`
    tells the ids of its calls from those of other replies.
    """

    def __init__(self, form: CallFormat, tools: Sequence[Tool], opens_thinking: bool, salt: str) -> None:
        self._form, self._parser, self._salt = form, form.parser(tools), salt
        self._sections = ThinkSections(opens_thinking)
        self._in_thought = opens_thinking
        self._text: list[str] = []
        self._names: list[str] = []
        self._arguments: list[list[str]] = []
        self._thoughts: list[str] = []

    @classmethod
    def of_reply(cls, reply: Reply, form: CallFormat, tools: Sequence[Tool], salt: str) -> Self:
        """Return text and calls of a reply that has ended."""
        calls = cls(form, tools, reply.prompt.opens_thinking, salt)
        calls.feed(reply.text)
        calls.finish()
        return calls

    @property
    def content(self) -> str:
        """The text so far, think section included, without calls."""
        return "".join(self._text)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The first 128 calls that have begun; the arguments of a malformed one are what the model has written."""
        return tuple(
            ToolCall(self._form.call_id(number, name, self._salt), name, "".join(parts) or "{}")
            for number, (name, parts) in enumerate(zip(self._names[:MOST_CALLS], self._arguments))
        )

    @property
    def reasoning(self) -> str | None:
        """Thoughts that the format keeps apart from the text, None if there are none."""
        return "".join(self._thoughts) or None

    @property
    def faults(self) -> list[str]:
        """An account of each malformed call, in one line."""
        return self._parser.faults

    def feed(self, text: str) -> str:
        """Return the text that is certain after a delta of the reply."""
        return self._added(self._sections.feed(text))

    def finish(self) -> str:
        """Return the text that was held back."""
        return self._added(self._sections.finish()) + self._noted(self._parser.finish())

    def _added(self, sections: Iterable[SectionDelta]) -> str:
        return "".join(self._section(section) for section in sections)

    def _section(self, section: SectionDelta) -> str:
        if section.thinking:
            opening, self._in_thought = "" if self._in_thought else _OPEN, True
            return self._kept(opening + section.text)
        closing, self._in_thought = _CLOSE if self._in_thought else "", False
        return self._kept(closing) + self._noted(self._parser.feed(section.text))

    def _noted(self, events: Iterable[CallEvent]) -> str:
        return "".join(self._event(event) for event in events)

    def _event(self, event: CallEvent) -> str:
        if isinstance(event, CallBegin):
            self._names.append(event.name[:_LONGEST_NAME])
            self._arguments.append([])
        elif isinstance(event, CallArguments):
            self._arguments[event.number].append(event.text)
        elif isinstance(event, CallThought):
            self._thoughts.append(event.text)
        else:
            return self._kept(event.text)
        return ""

    def _kept(self, text: str) -> str:
        self._text.append(text)
        return text
