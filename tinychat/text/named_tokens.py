"""What every tokenizer says of its named tokens, whatever its format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property


class NamedTokens(ABC):
    """The begin and end tokens, found among the special tokens by name.

    Attributes
    ----------
    special_tokens : Mapping of str to str
        "bos_token", "eos_token", ... to their texts.
    """

    special_tokens: Mapping[str, str]

    @abstractmethod
    def token_id(self, text: str) -> int | None:
        """Id of the token spelled exactly so, or None."""

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
