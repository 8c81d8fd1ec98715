"""How the model of a conversation is told of tools, and how its replies are held to their calls."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from tinychat.conversation.reply_calls import ReplyCalls
from tinychat.generate.grammar import Constraint
from tinychat.tools.definitions import Tool, ToolChoice

if TYPE_CHECKING:
    from tinychat.generate.model import Model


class CallRules:
    """The calls that a model may write: their format, and the grammar of the tools' schemas.

    Attributes
    ----------
    tools : tuple of Tool
        Those that the model is told of.
    """

    def __init__(self, model: Model, tools: Sequence[Tool]) -> None:
        self.tools = tuple(tools)
        self._model = model
        self._format = model.tool_template.form

    def of_reply(self, opens_thinking: bool, salt: str) -> ReplyCalls:
        """Return the splitter of a new reply; parameters are those of `ReplyCalls`."""
        return ReplyCalls(self._format, self._format.parser(self.tools), opens_thinking, salt)

    @cached_property
    def constraint(self) -> Constraint | None:
        """The constraint of replies: free text until a call begins; None where the format has no grammar.

        `SettingError` if llguidance is missing.
        """
        return self._model.call_constraint(ToolChoice(self.tools, constrains=True))
