"""Replies constrained by a JSON schema or a grammar, through the llguidance library.

The library computes the mask of the tokens that may come next, before the sampler sees the logits. Control tokens are
never text: only the model's own stop tokens pass, where the reply may end, and those that a grammar of calls names.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tinychat.errors import SettingError
from tinychat.generate.constraint_state import ConstraintState, check_library
from tinychat.generate.grammar_tokens import GrammarTokens, llguidance
from tinychat.limited_process import LimitedProcess, LimitError

if TYPE_CHECKING:
    from llguidance import LLMatcher

# Bounded, or a model could write spaces for ever: one space, or a new line and its indentation.
_WHITESPACE = r" |\n {0,16}"
# Or the library would ask the tokenizer how it spells text that the grammar forces; ours marks the
# first word by a space, which is not what the grammar says.
_NO_FORCING = '%llguidance {"no_forcing": true}'

# Ids in a grammar of calls. Any will do for a test whether it compiles: the helper process has a small vocabulary.
_IDS = re.compile(r"<\[[\d,-]+\]>")

_LONGEST = 256 << 10
# Grammars that are known to compile: at most 8 MiB.
_COMPILED = 32
_CHECKER = LimitedProcess("tinychat.generate.grammar_check")


@dataclass(frozen=True)
class Grammar:
    """A grammar in llguidance's Lark, compiled once in the helper process; `source` names it in errors.

    `SettingError` if the library is missing, or refuses the grammar, or compiling exceeds a limit.
    """

    lark: str
    source: str
    names_control: bool = False  # whether the control tokens that it names may come
    # Whether it leaves the text of the reply free: then the reply is prose, and is watched as such.
    leaves_text: bool = False

    def __post_init__(self) -> None:
        llguidance()
        _check_compiles(_IDS.sub("<[0]>", self.lark) if self.names_control else self.lark, self.source)

    @classmethod
    def from_schema(cls, schema: str, source: str = "the schema", is_lenient: bool = False) -> Grammar:
        """Return the grammar of the JSON texts that are valid under a JSON schema, with bounded whitespace.

        Keywords and formats that the library does not know are an error or, with `is_lenient`, not held.
        """
        return cls(f"start: {_json_rule(schema, source, is_lenient)}\n{_NO_FORCING}", source)

    @classmethod
    def from_text(cls, text: str, source: str = "the grammar") -> Grammar:
        """Return a grammar written in Lark, as llguidance knows it, or in llama.cpp's GBNF."""
        _check_length(text, source)
        return cls(f"{_limited('translate', text, source)}\n{_NO_FORCING}", source)

    @classmethod
    def of_calls(cls, lark: str, leaves_text: bool) -> Grammar:
        """Return the grammar of replies with calls of tools, as `CallFormat.grammar` writes it."""
        _check_length(lark, "tools")
        return cls(f"{lark}\n{_NO_FORCING}", "tools", names_control=True, leaves_text=leaves_text)

    @classmethod
    def of_calls_or_schema(cls, lark: str, schema: str, source: str) -> Grammar:
        """Return the grammar of replies that are calls alone, whose grammar `lark` begins with ``start``, or JSON."""
        _check_length(lark, "tools")
        calls = re.sub(r"^start\b", "only_calls", lark, count=1, flags=re.MULTILINE)
        either = f"start: only_calls | json_answer\njson_answer: {_json_rule(schema, source, is_lenient=True)}"
        return cls(f"{calls}\n{either}\n{_NO_FORCING}", "tools", names_control=True)


def _json_rule(schema: str, source: str, is_lenient: bool) -> str:
    """Return the JSON texts that are valid under a schema, in llguidance's Lark."""
    _check_length(schema, source)
    try:
        parsed = json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise SettingError(f"{source} is no JSON: {error}") from None
    if parsed is True:
        parsed = {}
    if not isinstance(parsed, dict):
        raise SettingError(f"{source} is no JSON schema: it must be an object")
    parsed["x-guidance"] = {"whitespace_pattern": _WHITESPACE, "lenient": is_lenient}
    return f"%json {json.dumps(parsed)}"


class Constraint:
    """A grammar over a model's vocabulary; `SettingError` if it is too large.

    With `after_thinking` it holds from the end of the think section of replies that begin in one, and those with calls
    may begin one themselves. `leaves_text` is that of the grammar, `is_of_calls` whether it is one of calls.
    """

    def __init__(self, grammar: Grammar, tokens: GrammarTokens, after_thinking: bool = False) -> None:
        self._matcher: LLMatcher = llguidance().LLMatcher(tokens.library_tokens, grammar.lark, log_level=0)
        check_library(self._matcher.get_error(), grammar.source)
        self.leaves_text = grammar.leaves_text
        self._source, self._tokens = grammar.source, tokens
        self._text_ids = np.ones_like(tokens.text_ids) if grammar.names_control else tokens.text_ids
        self._after_thinking, self.is_of_calls = after_thinking, grammar.names_control

    def start(
        self, begins_thinking: bool = False, may_think: bool = True, shown: frozenset[int] = frozenset()
    ) -> ConstraintState:
        """Return the state of a new reply, which begins in a think section, or `may_think` before its calls.

        The control tokens that are `shown` end that section.
        """
        state = ConstraintState(self._matcher.deep_copy(), self._tokens, self._text_ids, self._source, shown)
        if self._after_thinking and begins_thinking:
            state.begin_thinking()
        elif self._after_thinking and self.is_of_calls:
            state.begin_before_thinking(may_think)
        return state


def _limited(action: str, text: str, source: str) -> str:
    """Process a grammar in the helper process, under its limits."""
    llguidance()
    try:
        answer: str = _CHECKER.call([action, text])
    except LimitError as error:
        raise SettingError(f"{source} cannot be used: {error}") from None
    return answer


@lru_cache(_COMPILED)
def _check_compiles(lark: str, source: str) -> None:
    """Compile a grammar in the helper process; what has compiled is not compiled there again."""
    check_library(_limited("compile", lark, source), source)


def _check_length(text: str, source: str) -> None:
    if len(text) > _LONGEST:
        raise SettingError(f"{source} is longer than {_LONGEST >> 10} KiB: write a smaller one")
