"""Token ids to text, one token at a time."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from tinychat.text.thought_reader import ThoughtReader
from tinychat.text.tokenizer import Tokenizer

# A character takes four bytes at most, and a token of byte fallback holds one.
_CONTEXT_TOKENS = 8
# To look it up takes as long as to decode some tokens.
_Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Text of a growing sequence of tokens, in final deltas.

    The bytes of a character that is not yet whole are held back. All deltas joined equal ``tokenizer.decode`` of all
    ids. With the ids of `after`, which the new tokens continue, the space that begins a word stays even where it comes
    first; without them the text starts afresh, as `decode` does. Control tokens are no text, unless they are `shown`,
    and those that mark `thoughts` become tags: the one before the text that `add` returns last is its `tag`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        after: Sequence[int] = (),
        shown: frozenset[int] = frozenset(),
        thoughts: ThoughtReader | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._shown = shown
        self._hidden = tokenizer.special_ids - shown
        self.tag = ""
        self._thoughts: ThoughtReader | None = None
        self._decoder = _Decoder("replace")
        self._strip = tokenizer.strips_first_space
        for token_id in after[-_CONTEXT_TOKENS:]:
            self.add(token_id)
        self._thoughts = thoughts

    def add(self, token_id: int) -> str:
        """Return the text that this token makes final, often empty."""
        self.tag = ""
        if self._thoughts is not None:
            if token_id in self._shown:
                self._thoughts.end_thoughts()
            elif (found := self._thoughts.add(token_id)) is not None:
                self.tag = found
                return ""
        if token_id in self._hidden:
            return ""
        self.tag = "" if self._thoughts is None else self._thoughts.take_tag()
        return self._without_first_space(self._decoder.decode(self._tokenizer.token_bytes(token_id)))

    def finish(self) -> str:
        """Return the rest: U+FFFD for a character that never became whole."""
        return self._without_first_space(self._decoder.decode(b"", final=True))

    def _without_first_space(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text
