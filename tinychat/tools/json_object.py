"""JSON that comes in parts: the text of an object, valid as far as it goes."""

from __future__ import annotations

import re
from typing import Literal

_SPACE = " \t\n\r"
_SCALAR = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null", re.ASCII)
_SCALAR_BEGINNING = re.compile(
    r"-?(?:(?:0|[1-9]\d*)(?:\.\d*)?(?:(?<=\d)[eE][+-]?\d*)?)?|t(?:r(?:ue?)?)?|f(?:a(?:l(?:se?)?)?)?|n(?:u(?:ll?)?)?",
    re.ASCII,
)
_LONGEST_SCALAR = 400
_DEEPEST = 64
_CLOSING = {"{": "}", "[": "]"}


class JsonObject:
    """Checks an object character by character."""

    def __init__(self) -> None:
        self.status: Literal["open", "whole", "bad"] = "open"  # "open": more of it may come; "bad": it is no JSON
        self._expected = self._object
        self._open: list[str] = []
        self._scalar = ""
        self._digits = 0
        self._is_key = False

    @property
    def ends_value(self) -> bool:
        """Whether the last character ended a value of the object itself, or came behind one."""
        return self.status == "whole" or (len(self._open) == 1 and self._expected in (self._next, self._key))

    def feed(self, text: str) -> tuple[str, int]:
        """Return the addition of `text` to the object, and how many of its characters belong to it.

        A control character in a string, which many models write, is escaped: JSON knows it in no other form.
        """
        added: list[str] = []
        for index, character in enumerate(text):
            in_string = self._expected == self._string
            self._expected(character)
            if self.status == "bad":
                return "".join(added), index
            added.append(f"\\u{ord(character):04x}" if in_string and character < " " else character)
            if self.status == "whole":
                return "".join(added), index + 1
        return "".join(added), len(text)

    def _object(self, character: str) -> None:
        self._check(character == "{")
        self._value(character)

    def _value(self, character: str) -> None:
        if character in _SPACE:
            return
        if character in _CLOSING:
            self._open.append(character)
            self._expected = self._first_key if character == "{" else self._first_item
            self._check(len(self._open) <= _DEEPEST)
        elif character == '"':
            self._is_key, self._expected = False, self._string
        else:
            self._scalar, self._expected = character, self._in_scalar
            self._check(_SCALAR_BEGINNING.fullmatch(character) is not None)

    def _first_item(self, character: str) -> None:
        if character == "]":
            self._close()
        else:
            self._value(character)

    def _first_key(self, character: str) -> None:
        if character == "}":
            self._close()
        else:
            self._key(character)

    def _key(self, character: str) -> None:
        if character == '"':
            self._is_key, self._expected = True, self._string
        else:
            self._check(character in _SPACE)

    def _colon(self, character: str) -> None:
        if character == ":":
            self._expected = self._value
        else:
            self._check(character in _SPACE)

    def _string(self, character: str) -> None:
        if character == '"':
            self._expected = self._colon if self._is_key else self._next
        elif character == "\\":
            self._expected = self._escape

    def _escape(self, character: str) -> None:
        self._digits = 4 * (character == "u")
        self._expected = self._hex if character == "u" else self._string
        self._check(character in '"\\/bfnrtu')

    def _hex(self, character: str) -> None:
        self._digits -= 1
        if self._digits == 0:
            self._expected = self._string
        self._check(character in "0123456789abcdefABCDEF")

    def _in_scalar(self, character: str) -> None:
        if _SCALAR_BEGINNING.fullmatch(self._scalar + character):
            self._scalar += character
            self._check(len(self._scalar) <= _LONGEST_SCALAR)
        elif _SCALAR.fullmatch(self._scalar):
            self._expected = self._next
            self._next(character)
        else:
            self._check(False)

    def _next(self, character: str) -> None:
        if character == ",":
            self._expected = self._key if self._open[-1] == "{" else self._value
        elif character == _CLOSING[self._open[-1]]:
            self._close()
        else:
            self._check(character in _SPACE)

    def _close(self) -> None:
        self._open.pop()
        self._expected = self._next
        if not self._open:
            self.status = "whole"

    def _check(self, is_sound: bool) -> None:
        if not is_sound:
            self.status = "bad"
