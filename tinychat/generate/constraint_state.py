"""The state of one reply in its grammar: the tokens that may come next, and how free the choice among them is."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tinychat.errors import SettingError
from tinychat.text.think_sections import ThinkSections
from tinychat.text.thought_reader import ThoughtReader

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from tinychat.generate.grammar_tokens import GrammarTokens

# Text is free where the grammar allows one in so many of all tokens: names, numbers and signs are far fewer.
_FREE = 4
# A run of backslashes that is longer is no escape worth looking at.
_TAIL_BYTES = 64
_LONGEST_REASON = 200

Mask = npt.NDArray[np.bool_]


class Region(Enum):
    """How free the next token of a reply is.

    `PROSE` is free text that may end anywhere; `STRING` is free text within a structure, such as a string of JSON;
    `STRUCTURE` is what a grammar prescribes: marks, names, numbers, choices.
    """

    PROSE, STRING, STRUCTURE = range(3)


class ConstraintState:
    """The state of one reply in its grammar."""

    def __init__(
        self,
        matcher: LLMatcher,
        tokens: GrammarTokens,
        text_ids: Mask,
        source: str,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        self.region = Region.STRUCTURE  # that of the last mask
        # Whether the reply is in a think section, where the grammar does not hold yet, or may begin with one.
        self.may_think = False
        self._matcher, self._tokens = matcher, tokens
        self._text_ids, self._source, self._shown = text_ids, source, shown
        self._section: ThinkSections | None = None
        self._thoughts: ThoughtReader | None = None
        # Whether a section could begin here.
        self._is_at_beginning = False
        self._tail = b""

    def begin_thinking(self) -> None:
        """Let the grammar wait for the end of a think section, in which any token but a stop token may come."""
        self._section, self._is_at_beginning, self.may_think = ThinkSections(begun=True), False, True
        tokenizer = self._tokens.tokenizer
        if tokenizer.thought_marks is not None:
            self._thoughts = ThoughtReader(tokenizer.thought_marks, tokenizer, begun=True)

    def begin_before_thinking(self, may_think: bool) -> None:
        """Let the token that begins a think section come first, or forbid it there."""
        self._is_at_beginning = bool(self._tokens.opening_ids)
        self.may_think = may_think and self._is_at_beginning

    @property
    def finished(self) -> bool:
        """Whether the reply is complete and nothing can follow."""
        return self._section is None and bool(self._matcher.is_stopped())

    def allowed(self) -> Mask:
        """Return the mask of tokens that may come next, bool [vocab_size]; stop tokens only where the reply may end.

        `SettingError` if the grammar has become too complex, or no token fits it.
        """
        if self._section is not None:
            self.region = Region.PROSE
            return self._tokens.goes_on
        bits: npt.NDArray[np.uint8] = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        check_library(self._matcher.get_error(), self._source)
        unpacked = np.unpackbits(bits, count=len(self._text_ids), bitorder="little")
        mask: Mask = unpacked.view(np.bool_) & self._text_ids
        if not mask.any():
            raise SettingError(f"{self._source} wants a text here that no token of the model can begin")
        # Inside a character or an escape few tokens fit, however free the text around it is.
        if not _is_cut(self._tail):
            self.region = self._region(mask)
        if self._is_at_beginning and (self.may_think or self.region is Region.PROSE):
            mask[self._tokens.opening_ids] = self.may_think
        return mask

    def accept(self, token_id: int) -> None:
        """Advance by the chosen token."""
        if self._section is not None:
            self._think(self._section, token_id)
            return
        data = self._tokens.tokenizer.token_bytes(token_id)
        if self._is_at_beginning:
            if token_id in self._tokens.opening_ids and self.may_think:
                self.begin_thinking()
                return
            self._is_at_beginning = not data.strip()
            self.may_think &= self._is_at_beginning
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        self._matcher.consume_token(token_id)
        check_library(self._matcher.get_error(), self._source)

    def _region(self, mask: Mask) -> Region:
        if np.count_nonzero(mask) * _FREE < len(mask):
            return Region.STRUCTURE
        return Region.PROSE if self._matcher.is_accepting() else Region.STRING

    def _think(self, section: ThinkSections, token_id: int) -> None:
        """Advance in the think section; what its last token has beyond it is the first that the grammar sees."""
        tokenizer, rest = self._tokens.tokenizer, list[int]()
        if self._thoughts is not None and token_id in self._shown:
            rest = [token_id]
        elif self._thoughts is None or self._thoughts.add(token_id) is None:
            parts = list(section.feed(tokenizer.token_bytes(token_id).decode("utf-8", "replace")))
            if section.is_thinking:
                return
            rest = tokenizer.encode("".join(part.text for part in parts if not part.thinking), add_bos=False)
        elif self._thoughts.is_thinking:
            return
        self._section, self.may_think = None, False
        for each in rest:
            self.accept(each)


def _is_cut(text: bytes) -> bool:
    """Return whether a text ends inside a character of UTF-8, or behind the backslash of an escape."""
    if (len(text) - len(text.rstrip(b"\\"))) % 2:
        return True
    for length, byte in enumerate(text[: -min(4, len(text)) - 1 : -1], 1):
        if byte & 0xC0 != 0x80:
            return byte >= 0xC0 and length < 2 + (byte >= 0xE0) + (byte >= 0xF0)
    return False


def check_library(message: str, source: str) -> None:
    """Raise the error of llguidance, if there is one, without its excerpt of the grammar."""
    if not message or message.startswith("WARNING"):
        return
    reason = re.split(r"\n +\d+ \||\n<", message)[0]
    reason = re.sub(r"^at \d+\(\d+\): failed to compile JSON schema: ", "", reason)
    raise SettingError(f"{source} cannot be used: {' '.join(reason.split())[:_LONGEST_REASON]}")
