"""Marks around text that spells a special token without being one.

A chat template writes its control tokens and the user's words into one string. Before rendering,
each spelling of a control token inside the words is wrapped in two marks; the encoder
of the string then tells both apart. The marks stand around the spelling, not inside, so that a template that
looks for ``</think>`` in a message still finds it. They are Unicode noncharacters, which no real text
holds; a forged one is removed first, and so are the two that `huggingface_tokenizer` has a use of its own for: removing
them later might join the halves of a token's spelling.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from tinychat.errors import TextError

GUARD_START = "\ufdd0"
GUARD_END = "\ufdd1"

# Those of published tokenizers have some 6500 tokens, and 100 kB.
MOST_SPELLINGS, _MOST_CHARACTERS = 20_000, 500_000

_DEEPEST = 50

_MARKS = re.compile("[\ufdd0-\ufdd3]")
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


class Guarded(str):
    """A text in which every spelling of a control token that is none stands between marks already."""

    __slots__ = ()


def spelling_pattern(spellings: Iterable[str]) -> re.Pattern[str]:
    """Match any of the spellings, the longest where several begin; nothing if there are none.

    Too many spellings, or too long ones, are a TextError.
    """
    words = sorted({*spellings} - {""})
    if len(words) > MOST_SPELLINGS or sum(map(len, words)) > _MOST_CHARACTERS:
        raise TextError(f"the tokenizer has more than {MOST_SPELLINGS} added tokens, or too long ones: use another")
    try:
        return re.compile(_tree(words) if words else "(?!)")
    except RecursionError:
        raise TextError("the tokenizer has added tokens that begin alike too often: use another") from None


def _tree(words: list[str]) -> str:
    """Return a pattern for sorted words that reads each common beginning once.

    A plain list of alternatives takes seconds to compile for the thousands of tokens that some tokenizers have,
    and is tried from first to last wherever one may begin.
    """
    beginning = os.path.commonprefix([words[0], words[-1]])  # noqa: RUF071
    rest = [word[len(beginning) :] for word in words]
    is_whole = not rest[0]
    branches = [_tree([*group]) for _, group in groupby(rest[is_whole:], key=lambda word: word[0])]
    if not branches:
        return re.escape(beginning)
    return f"{re.escape(beginning)}(?:{'|'.join(branches)}){'?' if is_whole else ''}"


def guard(value: Any, spellings: re.Pattern[str], depth: int = 0) -> Any:
    """Copy plain nested data with every match of `spellings` wrapped in marks, in keys of mappings, too.

    `TextError` if it is nested too deep, or is no plain data.
    """
    if isinstance(value, Guarded):
        return str(value)
    if isinstance(value, str):
        return spellings.sub(f"{GUARD_START}\\g<0>{GUARD_END}", unguard(value))
    if depth > _DEEPEST:
        raise TextError("a chat message is nested too deep")
    if isinstance(value, Mapping):
        return {guard(str(key), spellings): guard(item, spellings, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [guard(item, spellings, depth + 1) for item in value]
    if value is None or isinstance(value, int | float):
        return value
    kind = type(value).__name__
    raise TextError(f"a chat message holds a {kind}; only text, numbers, lists and mappings can be written")


def unguard(text: str) -> str:
    """Remove the marks: the text as a person should see it."""
    return _MARKS.sub("", text)


def well_formed(text: str) -> str:
    """Replace lone surrogates, which undecodable input leaves in a str, by U+FFFD."""
    return _LONE_SURROGATES.sub("\ufffd", text)


def well_formed_data(value: Any) -> Any:
    """Return plain data of JSON with `well_formed` texts, keys included."""
    return json.loads(well_formed(json.dumps(value, ensure_ascii=False)))
