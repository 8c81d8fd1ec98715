"""The vocabulary of a model, as the library of grammars reads it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tinychat.errors import SettingError
from tinychat.installing import install_command
from tinychat.text.think_sections import OPEN

if TYPE_CHECKING:
    from tinychat.text.tokenizer import Tokenizer


class GrammarTokens:
    """The vocabulary of a model, read once for all of its grammars."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, stop_ids: Iterable[int]) -> None:
        size, stop_ids = vocab_size, sorted(token_id for token_id in stop_ids if token_id < vocab_size)
        tokens, ends = [tokenizer.token_bytes(token_id) for token_id in range(size)], stop_ids
        if not ends:
            # The library needs a token that ends a text; this one is beyond what the model can choose.
            tokens, ends = [*tokens, b"<end>"], [size]
        library = llguidance()
        vocabulary = _GrammarVocabulary(tokens, sorted(tokenizer.special_ids | set(ends)), ends[0])
        # The tokens as the library has them.
        self.library_tokens = library.LLTokenizer(library.TokenizerWrapper(vocabulary), eos_token=ends)
        self.tokenizer = tokenizer
        # bool [vocab_size]: all tokens but control tokens that are no stop tokens.
        self.text_ids = np.ones(size, dtype=np.bool_)
        control_ids = [token_id for token_id in tokenizer.special_ids - set(stop_ids) if token_id < size]
        self.text_ids[control_ids] = False
        # bool [vocab_size]: all tokens but stop tokens.
        self.goes_on = np.ones(size, dtype=np.bool_)
        self.goes_on[stop_ids] = False
        spelled = tokenizer.encode_rendered(OPEN)
        marks = tokenizer.thought_marks
        opening = {marks.ids[token] for token in marks.openings} if marks else set[int]()
        opening |= {*spelled} if len(spelled) == 1 else set()
        # The tokens that begin a think section.
        self.opening_ids = sorted(token_id for token_id in opening if token_id < size)


@dataclass
class _GrammarVocabulary:
    """A vocabulary in llguidance's form: bytes of every token, and the special ones."""

    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_id: int
    bos_token_id: int | None = None

    def __call__(self, text: bytes | str) -> list[int]:
        """Return no ids: forced text, their only use, is switched off."""
        return []


def llguidance() -> Any:
    """Import llguidance, an optional dependency."""
    try:
        import llguidance as library
    except ImportError:
        raise SettingError(f"a schema or grammar needs llguidance: {install_command('llguidance')}") from None
    return library
