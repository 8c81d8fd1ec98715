"""The interface of every tokenizer format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol


class Tokenizer(Protocol):
    """Text to token ids and back.

    Attributes
    ----------
    vocab_size : int
        Tokens the tokenizer knows; the model's vocabulary may be padded beyond it.
    bos_token, eos_token : str or None
        Text of the begin and end tokens.
    bos_id, eos_id : int or None
        Their ids.
    special_tokens : Mapping of str to str
        Named tokens as chat templates know them: ``bos_token``, ``eos_token``, ``unk_token``, ...
    special_ids : frozenset of int
        Control tokens: they never come from plain text and `decode` leaves them out.
    added_tokens : Mapping of str to int
        Every token that is matched as a whole before the rest is split, special or not.
    adds_bos : bool
        Whether `encode` puts the begin token first.
    strips_first_space : bool
        Whether one space at the very start of decoded text belongs to the format, not to the text.
    """

    @property
    def vocab_size(self) -> int: ...  # noqa: D102
    @property
    def bos_token(self) -> str | None: ...  # noqa: D102
    @property
    def eos_token(self) -> str | None: ...  # noqa: D102
    @property
    def bos_id(self) -> int | None: ...  # noqa: D102
    @property
    def eos_id(self) -> int | None: ...  # noqa: D102
    @property
    def special_tokens(self) -> Mapping[str, str]: ...  # noqa: D102
    @property
    def special_ids(self) -> frozenset[int]: ...  # noqa: D102
    @property
    def added_tokens(self) -> dict[str, int]: ...  # noqa: D102
    @property
    def adds_bos(self) -> bool: ...  # noqa: D102
    @property
    def strips_first_space(self) -> bool: ...  # noqa: D102

    def encode(self, text: str, add_bos: bool = True) -> list[int]:
        """Ids of plain text: the spelling of a special token stays text, whatever it says."""
        ...

    def encode_rendered(self, text: str) -> list[int]:
        """Ids of text that a chat template wrote: special tokens count, guarded ones stay text."""
        ...

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of ids; bytes that are not UTF-8 become U+FFFD, ids without a token vanish."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 bytes, perhaps of part of a character, that a token adds to running text."""
        ...

    def piece(self, token_id: int) -> str:
        """Show one token as its vocabulary spells it, empty where the id has none."""
        ...

    def token_id(self, text: str) -> int | None:
        """Id of the token spelled exactly so, or None."""
        ...
