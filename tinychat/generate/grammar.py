"""Replies constrained by a JSON schema or a grammar, through the llguidance library.

The library computes the mask of the tokens that may come next, before the sampler sees the logits. Control tokens are
never text: only the model's own stop tokens pass, where the reply may end, and those that a grammar of calls names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tinychat.errors import SettingError
from tinychat.installing import install_command
from tinychat.limited_process import LimitedProcess, LimitError
from tinychat.text.think_sections import ThinkSections

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from tinychat.text.tokenizer import Tokenizer

# Bounded, or a model could write spaces for ever: one space, or a new line and its indentation.
_WHITESPACE = r" |\n {0,16}"
# Or the library would ask the tokenizer how it spells text that the grammar forces; ours marks the
# first word by a space, which is not what the grammar says.
_NO_FORCING = '%llguidance {"no_forcing": true}'

# Ids in a grammar of calls. Any will do for a test whether it compiles: the helper process has a small vocabulary.
_IDS = re.compile(r"<\[[\d,-]+\]>")

_LONGEST = 256 << 10
_LONGEST_REASON = 200
# Grammars that are known to compile: at most 8 MiB.
_COMPILED = 32
_CHECKER = LimitedProcess("tinychat.generate.grammar_check")

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Grammar:
    """A grammar in llguidance's Lark, compiled once in the helper process; `source` names it in errors.

    `SettingError` if the library is missing, or refuses the grammar, or compiling exceeds a limit.

    Attributes
    ----------
    lark, source : str
    names_control : bool
        Whether the control tokens that it names may come.
    leaves_text : bool
        Whether it leaves the text of the reply free: then the reply is prose, and is watched as such.
    """

    lark: str
    source: str
    names_control: bool = False
    leaves_text: bool = False

    def __post_init__(self) -> None:
        _library()
        _check_compiles(_IDS.sub("<[0]>", self.lark) if self.names_control else self.lark, self.source)

    @classmethod
    def from_schema(cls, schema: str, source: str = "the schema") -> Grammar:
        """Return the grammar of the JSON texts that are valid under a JSON schema, with bounded whitespace."""
        _check_length(schema, source)
        try:
            parsed = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise SettingError(f"{source} is no JSON: {error}") from None
        if parsed is True:
            parsed = {}
        if not isinstance(parsed, dict):
            raise SettingError(f"{source} is no JSON schema: it must be an object")
        parsed["x-guidance"] = {"whitespace_pattern": _WHITESPACE}
        return cls(f"start: %json {json.dumps(parsed)}\n{_NO_FORCING}", source)

    @classmethod
    def from_text(cls, text: str, source: str = "the grammar") -> Grammar:
        """Return a grammar written in Lark, as llguidance knows it, or in llama.cpp's GBNF."""
        _check_length(text, source)
        return cls(f"{_limited('translate', text, source)}\n{_NO_FORCING}", source)

    @classmethod
    def of_calls(cls, lark: str, leaves_text: bool, source: str = "tools") -> Grammar:
        """Return the grammar of replies with calls of tools, as `CallFormat.grammar` writes it."""
        _check_length(lark, source)
        return cls(f"{lark}\n{_NO_FORCING}", source, names_control=True, leaves_text=leaves_text)


class GrammarTokens:
    """The vocabulary of a model, read once for all of its grammars.

    Attributes
    ----------
    library_tokens : LLTokenizer
        The tokens as the library has them.
    text_ids, goes_on : bool arrays [vocab_size]
        Which tokens are no control tokens, but for stop tokens; which tokens are no stop tokens.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, stop_ids: Iterable[int]) -> None:
        size, stop_ids = vocab_size, sorted(token_id for token_id in stop_ids if token_id < vocab_size)
        vocabulary = _GrammarVocabulary(
            tokens=[tokenizer.token_bytes(token_id) for token_id in range(size)],
            special_token_ids=sorted(tokenizer.special_ids | set(stop_ids)),
            stop_ids=stop_ids,
        )
        library = _library()
        ends = stop_ids or [vocabulary.eos_token_id]
        self.library_tokens = library.LLTokenizer(library.TokenizerWrapper(vocabulary), eos_token=ends)
        self.tokenizer = tokenizer
        self.text_ids = np.ones(size, dtype=np.bool_)
        control_ids = [token_id for token_id in tokenizer.special_ids - set(stop_ids) if token_id < size]
        self.text_ids[control_ids] = False
        self.goes_on = np.ones(size, dtype=np.bool_)
        self.goes_on[stop_ids] = False


class Constraint:
    """A grammar over a model's vocabulary; `SettingError` if it is too large.

    With `after_thinking` it holds from the end of the think section of replies that begin in one. `leaves_text` is that
    of the grammar.
    """

    def __init__(self, grammar: Grammar, tokens: GrammarTokens, after_thinking: bool = False) -> None:
        self._matcher: LLMatcher = _library().LLMatcher(tokens.library_tokens, grammar.lark, log_level=0)
        _check(self._matcher.get_error(), grammar.source)
        self.leaves_text = grammar.leaves_text
        self._source, self._tokens = grammar.source, tokens
        self._text_ids = np.ones_like(tokens.text_ids) if grammar.names_control else tokens.text_ids
        self._after_thinking = after_thinking

    def start(self, begins_thinking: bool = False) -> ConstraintState:
        """Return the state of a new reply, which may begin in a think section."""
        state = ConstraintState(self._matcher.deep_copy(), self._text_ids, self._source)
        if begins_thinking and self._after_thinking:
            state.begin_behind_thinking(self._tokens.goes_on, self._tokens.tokenizer)
        return state


class ConstraintState:
    """The state of one reply in its grammar."""

    def __init__(self, matcher: LLMatcher, text_ids: Mask, source: str) -> None:
        self._matcher = matcher
        self._text_ids = text_ids
        self._source = source
        self._thinking: ThinkSections | None = None

    def begin_behind_thinking(self, goes_on: Mask, tokenizer: Tokenizer) -> None:
        """Let the grammar wait for the end of a think section, in which the tokens of a mask may come."""
        self._thinking, self._in_thought, self._tokenizer = ThinkSections(begun=True), goes_on, tokenizer

    @property
    def waits(self) -> bool:
        """Whether the reply is in its think section, where the grammar does not hold yet."""
        return self._thinking is not None

    @property
    def finished(self) -> bool:
        """Whether the reply is complete and nothing can follow."""
        return bool(self._matcher.is_stopped())

    def allowed(self) -> Mask:
        """Return the mask of tokens that may come next, bool [vocab_size]; stop tokens only where the reply may end.

        `SettingError` if the grammar has become too complex, or no token fits it.
        """
        if self.waits:
            return self._in_thought
        bits: npt.NDArray[np.uint8] = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        _check(self._matcher.get_error(), self._source)
        unpacked = np.unpackbits(bits, count=len(self._text_ids), bitorder="little")
        mask = unpacked.view(np.bool_) & self._text_ids
        if not mask.any():
            raise SettingError(f"{self._source} wants a text here that no token of the model can begin")
        return mask

    def accept(self, token_id: int) -> None:
        """Advance by the chosen token."""
        if self._thinking is not None:
            self._think(self._thinking, token_id)
            return
        self._matcher.consume_token(token_id)
        _check(self._matcher.get_error(), self._source)

    def _think(self, sections: ThinkSections, token_id: int) -> None:
        """Advance in the think section; what its last token has beyond it is the first that the grammar sees."""
        parts = list(sections.feed(self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")))
        if sections.is_thinking:
            return
        self._thinking = None
        for rest in self._tokenizer.encode("".join(part.text for part in parts if not part.thinking), add_bos=False):
            self.accept(rest)


class _GrammarVocabulary:
    """A vocabulary in llguidance's form: bytes of every token, and the special ones."""

    def __init__(self, tokens: list[bytes], special_token_ids: list[int], stop_ids: Sequence[int]) -> None:
        self.tokens = tokens
        self.special_token_ids = special_token_ids
        self.bos_token_id = None
        if not stop_ids:
            # The library needs a token that ends a text; this one is beyond what the model can choose.
            self.tokens = [*tokens, b"<end>"]
            self.special_token_ids = [*special_token_ids, len(tokens)]
        self.eos_token_id = stop_ids[0] if stop_ids else len(tokens)

    def __call__(self, text: bytes | str) -> list[int]:
        """Return no ids: forced text, their only use, is switched off."""
        return []


def _library() -> Any:
    """Import llguidance, an optional dependency."""
    try:
        import llguidance
    except ImportError:
        raise SettingError(f"a schema or grammar needs llguidance: {install_command('llguidance')}") from None
    return llguidance


def _limited(action: str, text: str, source: str) -> str:
    """Process a grammar in the helper process, under its limits."""
    _library()
    try:
        answer: str = _CHECKER.call([action, text])
    except LimitError as error:
        raise SettingError(f"{source} cannot be used: {error}") from None
    return answer


@lru_cache(_COMPILED)
def _check_compiles(lark: str, source: str) -> None:
    """Compile a grammar in the helper process; what has compiled is not compiled there again."""
    _check(_limited("compile", lark, source), source)


def _check_length(text: str, source: str) -> None:
    if len(text) > _LONGEST:
        raise SettingError(f"{source} is longer than {_LONGEST >> 10} KiB: write a smaller one")


def _check(message: str, source: str) -> None:
    """Raise the library's error, if there is one, without its excerpt of the grammar."""
    if not message or message.startswith("WARNING"):
        return
    reason = re.split(r"\n +\d+ \||\n<", message)[0]
    reason = re.sub(r"^at \d+\(\d+\): failed to compile JSON schema: ", "", reason)
    raise SettingError(f"{source} cannot be used: {' '.join(reason.split())[:_LONGEST_REASON]}")
