"""Kinds of setting values: how a value is checked, parsed from a person's text, and written as one."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

_LONGEST_SHOWN = 80
_LONGEST_WORD = 20
_MOST_DIGITS = 18
_MOST_BITS = 64
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SCALED = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([KMG])", re.IGNORECASE)
# Nobody means so few bytes: a unit was forgotten.
_FEWEST_BARE_BYTES = 1 << 16
_UNITS_OF_TIME = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([+-]?)((?:\d{1,12}(?:\.\d{0,9})?(?:ns|us|µs|ms|s|m|h))+|0)", re.ASCII)
_PART_OF_DURATION = re.compile(r"([\d.]+)(ns|us|µs|ms|s|m|h)", re.ASCII)
_ESCAPES = {"\\n": "\n", "\\t": "\t"}


def whole_number(text: str) -> int | None:
    """Return the number that a text is, in digits of any script; None for another text, and for more than 18 digits.

    Python reads no number of thousands of digits.
    """
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def seconds_of(text: str) -> float | None:
    """Return the seconds of a duration as Go writes them, such as "1h30m"; None if it is none."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    seconds = sum(float(number) * _UNITS_OF_TIME[unit] for number, unit in _PART_OF_DURATION.findall(found[2]))
    return -seconds if found[1] == "-" else seconds


class Kind:
    """The values of a setting, and their words in messages and help.

    `noun` names a value, `typed` one that a person types; `bounds` is the range in words, `note` that of a command's
    help, where `metavar` names the value. `words` may be typed.
    """

    def __init__(self, noun: str, typed: str = "", bounds: str = "", note: str = "", metavar: str = "TEXT") -> None:
        self.noun, self.typed = noun, typed or noun
        self.bounds, self.note, self.metavar = bounds, note, metavar
        self.words: tuple[str, ...] = ()

    def has_type(self, value: Any) -> bool:
        """Return whether a value is of this kind, its range aside."""
        return isinstance(value, str)

    def refusal(self, value: Any) -> str:
        """Return the fault of a value of this kind; empty if there is none."""
        return ""

    def plain(self, value: Any) -> Any:
        """Return a value in range in its canonical form."""
        return value

    def parse(self, text: str) -> Any:
        """Parse a person's text, or return it; ValueError has the reason why it cannot be a value."""
        return text

    def meant(self, text: str) -> str:
        """Return the text that a person probably meant by an invalid one; empty if unknown."""
        return ""

    def write(self, value: Any) -> str:
        """Return the text that a person would type for a value."""
        return str(value)


class Number(Kind):
    """A number from `low` to `high`."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__("a number", bounds=f"between {low:g} and {high:g}", metavar="FLOAT")
        self.low, self.high = low, high

    def has_type(self, value: Any) -> bool:
        return isinstance(value, Real) and not isinstance(value, bool)

    def refusal(self, value: Any) -> str:
        # NaN, which compares false with everything, is out of range too.
        return "" if self.low <= value <= self.high else f"must be {self.bounds}, not {shown(value)}"

    def plain(self, value: Any) -> Any:
        return float(value)

    def parse(self, text: str) -> Any:
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                pass
        return text

    def meant(self, text: str) -> str:
        return text.replace(",", ".") if re.fullmatch(r"\d*,\d+", text) else ""


class Integer(Number):
    """A whole number from `low` to `high`, of a unit; people type 8k for 8192. `bounds` is the range in other words."""

    def __init__(self, low: int, high: int | None = None, unit: str = "", bounds: str = "") -> None:
        super().__init__(low, float("inf") if high is None else high)
        self.noun = self.typed = f"a whole number of {unit}" if unit else "a whole number"
        self.metavar = unit.upper() or "INTEGER"
        self.bounds = bounds or (f"{low} or more" if high is None else f"between {low} and {high}")
        if not bounds and (low > 0 or high is not None):
            self.note = f"x>={low}" if high is None else f"{low}<=x<={high}"

    def has_type(self, value: Any) -> bool:
        return isinstance(value, Integral) and not isinstance(value, bool)

    def refusal(self, value: Any) -> str:
        # Python itself cannot print a number of many thousands of bits.
        is_wide = int(value).bit_length() > _MOST_BITS
        return f"must have at most {_MOST_BITS} bits" if is_wide else super().refusal(value)

    def plain(self, value: Any) -> Any:
        return int(value)

    def parse(self, text: str) -> Any:
        number = super().parse(text)
        return _scaled(text) if number is text else number

    def meant(self, text: str) -> str:
        return text.replace(",", "") if re.fullmatch(r"\d{1,3}(,\d{3})+", text) else ""


class Bytes(Integer):
    """A number of bytes, `low` or more; people type 500M or 2G."""

    def __init__(self, low: int) -> None:
        super().__init__(low)
        self.noun, self.typed, self.metavar, self.note = "a number of bytes", "a size, such as 500M or 2G", "SIZE", ""

    def parse(self, text: str) -> Any:
        number = re.sub(r"i?B$", "", text.strip(), flags=re.IGNORECASE)
        if not re.fullmatch(r"\d{1,12}", number):
            return _scaled(number)
        if number == text.strip() and 0 < int(number) < _FEWEST_BARE_BYTES:
            raise ValueError(f"must have a unit: did you mean {number}M? {number}B would be bytes")
        return int(number)

    def meant(self, text: str) -> str:
        return text.replace(",", ".") if re.fullmatch(r"\d+,\d+[KMG]", text, re.IGNORECASE) else ""

    def write(self, value: Any) -> str:
        return next(f"{value // size}{unit or 'B'}" for unit, size in reversed(_UNITS.items()) if value % size == 0)


class Percent(Integer):
    """A percentage from 1 to 100; people type 50%."""

    def __init__(self) -> None:
        super().__init__(1, 100, bounds="between 1% and 100%")
        self.noun = self.typed = "a percentage, such as 50%"
        self.metavar, self.note = "PERCENT", "1%<=x<=100%"

    def has_type(self, value: Any) -> bool:
        return super().has_type(value) or (isinstance(value, str) and bool(re.fullmatch(r"\d{1,3}%", value)))

    def refusal(self, value: Any) -> str:
        return super().refusal(self.plain(value))

    def plain(self, value: Any) -> Any:
        return int(value.removesuffix("%")) if isinstance(value, str) else int(value)

    def parse(self, text: str) -> Any:
        return super().parse(text.strip().removesuffix("%"))

    def write(self, value: Any) -> str:
        return f"{value}%"


class Switch(Kind):
    """True or false; people type on or off."""

    def __init__(self) -> None:
        super().__init__("true or false", "on or off", metavar="ON|OFF")
        self.words = ("on", "off")

    def has_type(self, value: Any) -> bool:
        return isinstance(value, bool)

    def parse(self, text: str) -> Any:
        return text == "on" if text in self.words else text

    def write(self, value: Any) -> str:
        return "on" if value else "off"


class SwitchOrName(Switch):
    """True, false, or the name of a thing; people type on, off or the name."""

    def __init__(self, thing: str) -> None:
        super().__init__()
        self.noun, self.typed = f"true, false or the name of a {thing}", f"on, off or the name of a {thing}"
        self.metavar = f"{thing.upper()}|ON|OFF"

    def has_type(self, value: Any) -> bool:
        return super().has_type(value) or (isinstance(value, str) and bool(value.strip()))

    def write(self, value: Any) -> str:
        return value if isinstance(value, str) else super().write(value)


class Choice(Kind):
    """One of several words."""

    def __init__(self, *words: str) -> None:
        super().__init__(f"one of {', '.join(words)}", metavar=f"[{'|'.join(words)}]")
        self.words = words

    def has_type(self, value: Any) -> bool:
        return value in self.words


class WordOrTokens(Kind):
    """One of several words or a positive number of tokens, of which 0 is the word `zero`."""

    def __init__(self, *words: str, zero: str) -> None:
        super().__init__(f"{', '.join(words)} or a number of tokens", metavar="on|off|TOKENS")
        self.words, self._zero = words, zero

    def has_type(self, value: Any) -> bool:
        word = _word(value)
        return word in self.words or word.isdecimal()

    def plain(self, value: Any) -> Any:
        word = _word(value)
        return word if word in self.words else int(word) or self._zero

    def parse(self, text: str) -> Any:
        return _scaled(text)


class Texts(Kind):
    """One text or several, none of them empty, since an empty one `would`."""

    def __init__(self, would: str) -> None:
        super().__init__("a text or a list of texts")
        self._would = would

    def has_type(self, value: Any) -> bool:
        return isinstance(value, str) or (isinstance(value, Sequence) and all(isinstance(text, str) for text in value))

    def refusal(self, value: Any) -> str:
        return "" if all(self.plain(value)) else f"must not be empty: an empty text would {self._would}"

    def plain(self, value: Any) -> Any:
        # A single text is one text, not one for each letter.
        return (value,) if isinstance(value, str) else tuple(value)

    def parse(self, text: str) -> Any:
        r"""Parse one text as it stands, or several in quotation marks, with ``\n`` and ``\t``; ``none`` is no text."""
        if text == "none":
            return ()
        texts = [text]
        if text[:1] in ("'", '"'):
            words = shlex.shlex(text, posix=True, punctuation_chars=False)
            words.whitespace_split, words.escape = True, ""
            try:
                texts = [*words]
            except ValueError:
                raise ValueError(f"has a quotation mark that is not closed: {text}") from None
        return tuple(_unescaped(each) for each in texts)

    def write(self, value: Any) -> str:
        return " ".join(map(repr, value)) or "none"


class Biases(Kind):
    """Biases of logits by token id: a mapping, or pairs of both."""

    def __init__(self, most: float) -> None:
        super().__init__("an object of token ids and numbers")
        self._most = most

    def has_type(self, value: Any) -> bool:
        pairs = value.items() if isinstance(value, Mapping) else value
        return isinstance(pairs, Iterable) and all(
            isinstance(pair, Sequence) and len(pair) == 2 and _is_id(pair[0]) and isinstance(pair[1], Real)
            for pair in pairs
        )

    def refusal(self, value: Any) -> str:
        pairs = value.items() if isinstance(value, Mapping) else value
        is_wrong = any(not abs(bias) <= self._most or int(token_id) >= 1 << 32 for token_id, bias in pairs)
        return f"must be biases between {-self._most:g} and {self._most:g}" if is_wrong else ""

    def plain(self, value: Any) -> Any:
        pairs = value.items() if isinstance(value, Mapping) else value
        return tuple(sorted((int(token_id), float(bias)) for token_id, bias in pairs))

    def parse(self, text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text

    def write(self, value: Any) -> str:
        return json.dumps({str(token_id): bias for token_id, bias in value})


def _is_id(value: object) -> bool:
    if isinstance(value, Integral):
        return not isinstance(value, bool) and int(value) >= 0
    return whole_number(str(value)) is not None


def _scaled(text: str) -> int | str:
    """Return the whole number of a text with a unit, such as 8k or 1.5G; any other text as it is."""
    found = _SCALED.fullmatch(text)
    return text if found is None else int(float(found[1]) * _UNITS[found[2].upper()])


def _word(value: Any) -> str:
    """Return a word or number as a person types it, empty for anything else."""
    if isinstance(value, str):
        word = value.strip().lower()
        return word if len(word) < _LONGEST_WORD else ""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_number and 0 <= value < 1 << _MOST_BITS else ""


def _unescaped(text: str) -> str:
    for written, meant in _ESCAPES.items():
        text = text.replace(written, meant)
    return text


def shown(value: object) -> str:
    """Return a value for a message: one line, not long."""
    try:
        text = repr(value) if not isinstance(value, Real) else str(value)
    except (ValueError, RecursionError):
        # Python does not print numbers of thousands of digits.
        text = f"a value of type {type(value).__name__} that is too large"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."
