"""Marks around text that spells a special token without being one.

A chat template writes its control tokens and the user's words into one string. Before rendering,
each spelling of a control token inside the words is wrapped in two marks; whoever encodes the
string then tells both apart. The marks stand around the spelling, not inside, so that a template that
looks for ``</think>`` in a message still finds it. They are Unicode noncharacters, which no real text
holds; a forged one is removed first, and so are the two that `huggingface_tokenizer` has a use of its own for: whoever
removed them later might join the halves of a token's spelling.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import overload

GUARD_START = "\ufdd0"
GUARD_END = "\ufdd1"

_MARKS = re.compile("[\ufdd0-\ufdd3]")
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


def spelling_pattern(spellings: Iterable[str]) -> re.Pattern[str]:
    """Match any of the spellings, the longest where several begin; nothing if there are none."""
    longest_first = sorted(filter(None, spellings), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


@overload
def guard(value: str, spellings: re.Pattern[str]) -> str: ...
@overload
def guard(value: object, spellings: re.Pattern[str]) -> object: ...
def guard(value: object, spellings: re.Pattern[str]) -> object:
    """Wrap every match of `spellings` in marks, in all strings of plain nested data.

    Parameters
    ----------
    value : str, list, tuple, dict or anything else
        Keys of dicts, and whatever is neither text nor container, stay as they are.
    spellings : re.Pattern
        From `spelling_pattern`.
    """
    if isinstance(value, str):
        return spellings.sub(f"{GUARD_START}\\g<0>{GUARD_END}", unguard(value))
    if isinstance(value, dict):
        return {key: guard(item, spellings) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [guard(item, spellings) for item in value]
    return value


def unguard(text: str) -> str:
    """Remove the marks: the text as a person should see it."""
    return _MARKS.sub("", text)


def well_formed(text: str) -> str:
    """Replace lone surrogates, which undecodable input leaves in a str, by U+FFFD."""
    return _LONE_SURROGATES.sub("\ufffd", text)
