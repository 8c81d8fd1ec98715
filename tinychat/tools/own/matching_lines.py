"""The lines of a text that match; also the module of the helper process that runs regular expressions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_LONGEST_LINE = 300


def lines_with(words: str, text: str, most: int, ignore_case: bool) -> list[tuple[int, str]]:
    """Return number and text of the first `most` lines that have some words."""
    if ignore_case:
        folded = words.casefold()
        return _matching(lambda line: folded in line.casefold(), text, most)
    return _matching(lambda line: words in line, text, most)


def answer(request: dict[str, Any]) -> list[tuple[int, str]]:
    """Return the lines that a regular expression matches: called in the helper process only."""
    expression = re.compile(request["pattern"], re.IGNORECASE if request["ignore_case"] else 0)
    return _matching(lambda line: expression.search(line) is not None, request["text"], request["most"])


def _matching(is_match: Callable[[str], bool], text: str, most: int) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if len(found) >= most:
            break
        if is_match(line):
            found.append((number, line[:_LONGEST_LINE].rstrip("\r")))
    return found
