"""First words that are nearly a command or the name of a model, told from those that begin a question."""

from __future__ import annotations

from collections.abc import Iterable

# Words of a language that are an edit away from a command: they begin a question.
_ORDINARY = frozenset(
    "what that cat hat chart char charm chats full pill poll dull bull null how slow snow shot shop shown long lot dog"
    " fog lag leg logo low beach bunch match watch catch patch bath concert covert converse mode modes model modern"
    " confirm compete completed completely compile compute doctors each both back".split()
)
_LONG, _MOST_EDITS = 5, 2
# Differences in the names of models are often two characters, as in qwen2 for qwen2.5; shorter beginnings say little.
_LEAST_PREFIX = 4


def near_command(word: str, commands: Iterable[str]) -> str | None:
    """Return the command that a word is nearly, None if it is a word of a question.

    Short words may be one edit away, longer ones two. Commands are in lower case: "Show" begins a sentence.
    """
    if word in _ORDINARY or not word.islower() or not word.isalpha():
        return None
    return _nearest(word, commands, _MOST_EDITS if len(word) >= _LONG else 1)


def near_name(word: str, names: Iterable[str], stands_alone: bool) -> str | None:
    """Return the name of a model that a word is nearly, None if it is a word of a question.

    Parameters
    ----------
    word : str
    names : iterable of str
        Of models.
    stands_alone : bool
        Whether at most one other word follows: only then, a word of letters alone is taken for a name.
    """
    if word.isalpha():
        is_meant = stands_alone and len(word) >= _LEAST_PREFIX and word not in _ORDINARY
        return _nearest(word, (name for name in names if name.isalpha()), 1) if is_meant else None
    made = [name for name in names if not name.isalpha()]
    begun = (name for name in made if len(word) >= _LEAST_PREFIX and name.startswith(word.lower()))
    return _nearest(word.lower(), made, _MOST_EDITS if len(word) >= _LONG else 1) or next(begun, None)


def _nearest(word: str, known: Iterable[str], most: int) -> str | None:
    found = [(edits(word, each), each) for each in known if abs(len(each) - len(word)) <= most]
    return next((each for count, each in sorted(found) if count <= most), None)


def edits(first: str, second: str) -> int:
    """Return how many characters must be added, left out, changed or exchanged with the next to turn one into other."""
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
