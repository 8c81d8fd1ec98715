"""The constraints of one model: its vocabulary is read once, and the grammars used last stay compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property, lru_cache
from threading import Lock
from typing import TYPE_CHECKING

from tinychat.errors import SettingError
from tinychat.generate.grammar import Constraint, Grammar
from tinychat.generate.grammar_tokens import GrammarTokens
from tinychat.tools.definitions import Tool, ToolChoice
from tinychat.tools.grammars.markers import Markers

if TYPE_CHECKING:
    from tinychat.text.tokenizer import Tokenizer
    from tinychat.tools.formats.call_format import CallFormat

_MOST = 8


class Constraints:
    """Makes the constraints of a model; any number of threads may use it."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, stop_ids: Iterable[int]) -> None:
        self._vocabulary = (tokenizer, vocab_size, frozenset(stop_ids))
        self._lock = Lock()

    @cached_property
    def markers(self) -> Markers:
        """The control tokens, as grammars of calls name them."""
        return Markers.of(*self._vocabulary)

    @cached_property
    def _constraint(self) -> Callable[[Grammar, bool], Constraint]:
        tokens = GrammarTokens(*self._vocabulary)
        return lru_cache(_MOST)(lambda grammar, after_thinking: Constraint(grammar, tokens, after_thinking))

    def of(self, grammar: Grammar, after_thinking: bool = False) -> Constraint:
        """Return the constraint of a grammar: the same one for the same grammar.

        With `after_thinking` it holds from the end of a think section in which a reply begins. `SettingError` if the
        grammar is too large.
        """
        with self._lock:
            return self._constraint(grammar, after_thinking)

    def of_calls(self, form: CallFormat, choice: ToolChoice) -> Constraint | None:
        """Return the constraint of replies with calls in a format; None where they may be any text.

        Where a choice holds all tools to their schemas, one with a schema that the library refuses may have any
        arguments. `SettingError` if the library is missing, or refuses the schema of a tool that asks to be strict.
        """
        lark = form.grammar(choice, self.markers)
        if lark is None:
            return None
        try:
            grammar = Grammar.of_calls(lark, leaves_text=not choice.required)
        except SettingError:
            loosened = tuple(self._loosened(form, choice, tool) for tool in choice.tools)
            if loosened == choice.tools:
                raise
            return self.of_calls(form, replace(choice, tools=loosened))
        return self.of(grammar, after_thinking=True)

    def _loosened(self, form: CallFormat, choice: ToolChoice, tool: Tool) -> Tool:
        """Return a tool without its schema, if that alone is refused; a strict one as it is."""
        if tool.strict or not tool.parameters:
            return tool
        alone = form.grammar(replace(choice, tools=(tool,), only=None), self.markers)
        try:
            Grammar.of_calls(alone or "", leaves_text=True)
        except SettingError:
            return replace(tool, parameters={})
        return tool
