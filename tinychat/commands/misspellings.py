"""Misspelt commands and model names, told from words that begin a question."""

from __future__ import annotations

from collections.abc import Iterable

# English words that are an edit away from a command: they begin a question.
_ORDINARY = frozenset(
    "what that cat hat chart char charm chats full pill poll dull bull null how slow snow shot shop shown long lot dog"
    " fog lag leg logo low beach bunch match watch catch patch bath concert covert converse mode modes model modern"
    " confirm compete completed completely compile compute doctors each both back".split()
)
_LONG, _MAX_EDITS = 5, 2
# Names of models often differ by two characters, as in qwen2 for qwen2.5; a shorter prefix is too ambiguous.
_MIN_PREFIX = 4


def near_command(word: str, commands: Iterable[str]) -> str | None:
    """Return the command that a word misspells (by one edit, a longer word by two), None if it begins a question."""
    # Commands are in lower case: "Show" begins a sentence.
    if word in _ORDINARY or not word.islower() or not word.isalpha():
        return None
    return _nearest(word, commands, _MAX_EDITS if len(word) >= _LONG else 1)


def near_name(word: str, names: Iterable[str], stands_alone: bool) -> str | None:
    """Return the name of a model that a word misspells or begins, None if it begins a question.

    Only if it `stands_alone`, with at most one word after it, can a word of letters alone misspell a name.
    """
    if word.isalpha():
        is_name = stands_alone and len(word) >= _MIN_PREFIX and word not in _ORDINARY
        return _nearest(word, (name for name in names if name.isalpha()), 1) if is_name else None
    mixed = [name for name in names if not name.isalpha()]
    begins = (name for name in mixed if len(word) >= _MIN_PREFIX and name.startswith(word.lower()))
    return _nearest(word.lower(), mixed, _MAX_EDITS if len(word) >= _LONG else 1) or next(begins, None)


def _nearest(word: str, known: Iterable[str], most: int) -> str | None:
    found = [(edits(word, each), each) for each in known if abs(len(each) - len(word)) <= most]
    return next((each for count, each in sorted(found) if count <= most), None)


def edits(first: str, second: str) -> int:
    """Return the edit distance of two words: insertions, deletions, substitutions and swaps of neighbours."""
    before: list[int] = []
    last: list[int] = [*range(len(second) + 1)]
    for i, a in enumerate(first, 1):
        row: list[int] = [i]
        for j, b in enumerate(second, 1):
            row.append(min(last[j] + 1, row[j - 1] + 1, last[j - 1] + int(a != b)))
            if i > 1 and j > 1 and a == second[j - 2] and b == first[i - 2]:
                row[j] = min(row[j], before[j - 2] + 1)
        before, last = last, row
    return last[-1]
