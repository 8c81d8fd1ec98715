"""The vocabulary of a model, as the library of grammars reads it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tinychat.errors import SettingError
from tinychat.installing import install_command
from tinychat.text.think_sections import OPEN

if TYPE_CHECKING:
    from tinychat.text.tokenizer import Tokenizer


class GrammarTokens:
    """The vocabulary of a model, read once for all of its grammars.

    Attributes
    ----------
    library_tokens : LLTokenizer
        The tokens as the library has them.
    text_ids, goes_on : bool arrays [vocab_size]
        Which tokens are no control tokens, but for stop tokens; which tokens are no stop tokens.
    opening_ids : list of int
        The tokens that begin a think section.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, stop_ids: Iterable[int]) -> None:
        size, stop_ids = vocab_size, sorted(token_id for token_id in stop_ids if token_id < vocab_size)
        vocabulary = _GrammarVocabulary(
            tokens=[tokenizer.token_bytes(token_id) for token_id in range(size)],
            special_token_ids=sorted(tokenizer.special_ids | set(stop_ids)),
            stop_ids=stop_ids,
        )
        library = llguidance()
        ends = stop_ids or [vocabulary.eos_token_id]
        self.library_tokens = library.LLTokenizer(library.TokenizerWrapper(vocabulary), eos_token=ends)
        self.tokenizer = tokenizer
        self.text_ids = np.ones(size, dtype=np.bool_)
        control_ids = [token_id for token_id in tokenizer.special_ids - set(stop_ids) if token_id < size]
        self.text_ids[control_ids] = False
        self.goes_on = np.ones(size, dtype=np.bool_)
        self.goes_on[stop_ids] = False
        spelled = tokenizer.encode_rendered(OPEN)
        marks = tokenizer.thought_marks
        opening = {marks.ids[token] for token in marks.openings} if marks else set[int]()
        opening |= {*spelled} if len(spelled) == 1 else set()
        self.opening_ids = sorted(token_id for token_id in opening if token_id < size)


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


def llguidance() -> Any:
    """Import llguidance, an optional dependency."""
    try:
        import llguidance as library
    except ImportError:
        raise SettingError(f"a schema or grammar needs llguidance: {install_command('llguidance')}") from None
    return library
