"""The spelling of bytes in the vocabulary of a ``tokenizer.json``, read from its decoder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from tinychat.errors import TextError
from tinychat.text.tokenizers_library import steps_of

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SUPPORTED = frozenset({"ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Sequence", "Strip", "WordPiece"})


@dataclass(frozen=True)
class TokenSpelling:
    """One of three schemes: every byte a printable letter, text with a sign for the space, or words and their parts."""

    byte_level: bool = False  # GPT-2's letters for bytes; the other fields then do not matter
    space: str = "\u2581"  # the sign for a space
    byte_fallback: bool = False  # <0x0A> spells a byte
    strips_first_space: bool = False  # a space at the very start of the text belongs to the format
    inside: str | None = None  # before tokens that go on inside a word; others begin one behind a space

    @classmethod
    def from_decoder(cls, decoder: object, source: str) -> TokenSpelling:
        """Read the decoder section, parsed; a step that is not known is a TextError."""
        steps = list(steps_of(decoder, "decoders"))
        kinds = {str(step.get("type")) for step in steps}
        if not kinds or kinds - _SUPPORTED:
            unknown = ", ".join(sorted(kinds - _SUPPORTED)) or "none"
            raise TextError(
                f"{source}: decoder not supported: {unknown}; expected some of {', '.join(sorted(_SUPPORTED))}"
            )
        if "ByteLevel" in kinds:
            return cls(byte_level=True)
        if inside := [str(step.get("prefix", "##")) for step in steps if step["type"] == "WordPiece"]:
            return cls(strips_first_space=True, inside=inside[0])
        signs = [step.get("replacement") for step in steps if step["type"] == "Metaspace"]
        signs += [_replaced(step) for step in steps if step["type"] == "Replace" and step.get("content") == " "]
        return cls(
            space=next((sign for sign in signs if isinstance(sign, str) and sign), "\u2581"),
            byte_fallback="ByteFallback" in kinds,
            strips_first_space=any(_strips(step) for step in steps),
        )

    def token_bytes(self, piece: str) -> bytes:
        """Return the bytes that a piece of the vocabulary spells."""
        if self.byte_level:
            values = _byte_letters()
            try:
                return bytes(values[letter] for letter in piece)
            except KeyError:
                return piece.encode()
        if self.inside is not None:
            return (piece.removeprefix(self.inside) if piece.startswith(self.inside) else f" {piece}").encode()
        if self.byte_fallback and (match := _BYTE_PIECE.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        return piece.replace(self.space, " ").encode()

    def letters(self, text: str) -> list[str]:
        """Return the smallest pieces that a text can be spelled with."""
        if not self.byte_level:
            return list(text.replace(" ", self.space))
        return list(byte_letters(text.encode()))


def byte_letters(data: bytes) -> str:
    """Return bytes in GPT-2's letters, one for each."""
    return data.decode("latin-1").translate(_letters_by_value())


@cache
def _letters_by_value() -> dict[int, str]:
    return {value: letter for letter, value in _byte_letters().items()}


@cache
def _byte_letters() -> dict[str, int]:
    """Letter to byte: printable Latin-1 is itself, the other 68 bytes are U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in printable]
    letters = {chr(value): value for value in printable}
    return letters | {chr(0x100 + index): value for index, value in enumerate(others)}


def _replaced(step: dict[str, object]) -> object:
    pattern = step.get("pattern")
    return pattern.get("String") if isinstance(pattern, dict) else None


def _strips(step: dict[str, object]) -> bool:
    if step["type"] == "Metaspace":
        return step.get("prepend_scheme", "always") != "never"
    return step["type"] == "Strip" and step.get("content") == " " and step.get("start") != 0
