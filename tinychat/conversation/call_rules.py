"""How a model is told of tools, and how its replies are held to their calls."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tinychat.conversation.reply_calls import ReplyCalls
from tinychat.generate.grammar import Constraint
from tinychat.tools.definitions import Tool, ToolChoice

if TYPE_CHECKING:
    from tinychat.generate.model import Model
    from tinychat.generate.reply import Reply


class CallRules:
    """The calls that a model may write: their format, and the grammar of the tools' schemas."""

    def __init__(self, model: Model, choice: ToolChoice) -> None:
        self._model, self._choice = model, choice
        self._format = model.tool_template.form

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that the model is told of."""
        return self._choice.tools

    def of_reply(self, opens_thinking: bool, salt: str) -> ReplyCalls:
        """Return the splitter of a new reply; parameters are those of `ReplyCalls`."""
        return ReplyCalls(self._format, self.tools, opens_thinking, salt)

    def of_whole_reply(self, reply: Reply, salt: str) -> ReplyCalls:
        """Return text and calls of a reply that has ended."""
        calls = self.of_reply(reply.prompt.opens_thinking, salt)
        calls.feed(reply.text)
        calls.finish()
        return calls

    @cached_property
    def constraint(self) -> Constraint | None:
        """The constraint of replies; None where they may be any text.

        `SettingError` if llguidance is missing, or refuses the schema of a strict tool.
        """
        return self._model.call_constraint(self._choice)
