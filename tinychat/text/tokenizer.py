"""The interface of every tokenizer format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from tinychat.errors import TextError
from tinychat.text.added_tokens import AddedToken
from tinychat.text.guard import guard, spelling_pattern, well_formed
from tinychat.text.think_sections import OPEN, ends_in_thought, split_reply
from tinychat.text.thought_marks import ThoughtMarks, thought_marks_of


class PairTokens(NamedTuple):
    """The token ids before, between and after two texts as one; and whether the second text has a kind of its own."""

    before: list[int]
    between: list[int]
    after: list[int]
    has_kinds: bool

    def join(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], int]:
        """Return the token ids of two texts, and at which of them the second kind begins."""
        head = [*self.before, *first, *self.between]
        ids = [*head, *second, *self.after]
        return ids, len(head) if self.has_kinds else len(ids)


class Tokenizer(ABC):
    """Text to token ids and back.

    `tokens` are matched as a whole before the rest is split; `special_tokens` has the named ones as chat templates know
    them: ``bos_token``, ``eos_token``, ``unk_token``, ...
    """

    vocab_size: int  # tokens the tokenizer knows; the model's vocabulary may be padded beyond it
    prefix_ids: list[int]  # put before a text, such as the begin token
    suffix_ids: list[int]  # put after a text that nothing continues, such as the end token of an embedding model
    pair_tokens: PairTokens | None = None  # None where the tokenizer's makers do not join two texts
    strips_first_space: bool  # one space at the very start of decoded text belongs to the format

    def __init__(self, tokens: Sequence[AddedToken], special_tokens: Mapping[str, str]) -> None:
        self.special_tokens = special_tokens
        # Control tokens: they never come from plain text and `decode` leaves them out.
        self.special_ids = frozenset(token.id for token in tokens if token.special)
        self.added_tokens = {token.content: token.id for token in tokens}
        self._added_texts = {token.id: token.content for token in tokens}
        self._special_spellings = spelling_pattern(token.content for token in tokens if token.special)

    @property
    def bos_token(self) -> str | None:
        """Text of the begin token."""
        return self.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        """Text of the end token."""
        return self.special_tokens.get("eos_token")

    @cached_property
    def bos_id(self) -> int | None:
        """Id of the begin token."""
        return self.token_id(self.bos_token or "")

    @cached_property
    def eos_id(self) -> int | None:
        """Id of the end token."""
        return self.token_id(self.eos_token or "")

    @cached_property
    def thought_marks(self) -> ThoughtMarks | None:
        """The tokens that mark thoughts; None where thoughts are plain text."""
        return thought_marks_of(self.added_tokens, self.special_ids)

    @property
    def adds_bos(self) -> bool:
        """Whether `encode` puts the begin token first."""
        return self.bos_id in self.prefix_ids

    def agrees_with(self, other: Tokenizer) -> bool:
        """Return whether all ids that both know are the same tokens."""
        return all(self.piece(i) == other.piece(i) for i in range(min(self.vocab_size, other.vocab_size)))

    def encode(self, text: str, add_bos: bool = True) -> list[int]:
        """Ids of plain text: the spelling of a special token stays text, whatever it says."""
        ids = self.encode_rendered(guard(well_formed(text), self._special_spellings))
        return [*self.prefix_ids, *ids] if add_bos else ids

    def encode_reply(self, text: str) -> list[int]:
        """Return the token ids of a reply's text as the model writes it: its own marks for the tags of thoughts."""
        marks = self.thought_marks
        if marks is None:
            return self.encode(text, add_bos=False)
        rendered, (thoughts, answer) = self.encode_rendered, split_reply(text)
        if ends_in_thought(text):
            return [*rendered(marks.opening), *self.encode(thoughts, add_bos=False)]
        if not text.lstrip().startswith(OPEN):
            return [*rendered(marks.before_answer), *self.encode(text, add_bos=False)]
        opened = [*rendered(marks.opening), *self.encode(thoughts.removesuffix("\n"), add_bos=False)]
        return [*opened, *rendered(marks.closing), *self.encode(answer, add_bos=False)]

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of ids; bytes that are not UTF-8 become U+FFFD, ids without a token vanish."""
        skipped = self.special_ids if skip_special else frozenset[int]()
        data = b"".join(self.token_bytes(token_id) for token_id in ids if token_id not in skipped)
        text = data.decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strips_first_space else text

    @abstractmethod
    def encode_rendered(self, text: str) -> list[int]:
        """Ids of text that a chat template wrote: special tokens count, guarded ones stay text."""

    def encode_many(self, texts: Sequence[str | None]) -> list[list[int] | None]:
        """Ids of texts as `encode_rendered` gives them; None for None, and for a text that has an error."""
        return [None if text is None else self._encoded_or_none(text) for text in texts]

    def _encoded_or_none(self, text: str) -> list[int] | None:
        try:
            return self.encode_rendered(text)
        except TextError:
            return None

    @abstractmethod
    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 bytes, perhaps of part of a character, that a token adds to running text."""

    @abstractmethod
    def piece(self, token_id: int) -> str:
        """Return one token as its vocabulary spells it, empty where the id has none."""

    @abstractmethod
    def token_id(self, text: str) -> int | None:
        """Id of the token spelled exactly so, or None."""
