"""Unified diffs in bounded time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Literal

_CONTEXT = 3
# Of more lines than that the comparison could take minutes: they are shown as replaced altogether.
_MOST_COMPARED = 500

_Kind = Literal["replace", "delete", "insert", "equal"]
_Opcode = tuple[_Kind, int, int, int, int]


def diff_of(name: str, before: str | None, after: str) -> str:
    """Return the unified diff of a text; `before` is None for a file that is made."""
    old, new = [] if before is None else before.split("\n"), after.split("\n")
    head = [f"--- {'/dev/null' if before is None else name}", f"+++ {name}"]
    return "\n".join([*head, *_hunks(old, new)])


class _Compared(SequenceMatcher[str]):
    """Groups operations that are known by their distance."""

    def __init__(self, operations: list[_Opcode]) -> None:
        super().__init__(None, "", "")
        self._operations = operations

    def get_opcodes(self) -> list[_Opcode]:
        return self._operations


def _hunks(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    for group in _Compared(_operations(old, new)).get_grouped_opcodes(_CONTEXT):
        (_, i, _, j, _), (_, _, i_end, _, j_end) = group[0], group[-1]
        yield f"@@ -{i + (i_end > i)},{i_end - i} +{j + (j_end > j)},{j_end - j} @@"
        for kind, start, end, new_start, new_end in group:
            if kind == "equal":
                yield from (f" {line}" for line in old[start:end])
                continue
            yield from (f"-{line}" for line in old[start:end])
            yield from (f"+{line}" for line in new[new_start:new_end])


def _operations(old: Sequence[str], new: Sequence[str]) -> list[_Opcode]:
    """Return the operations that make `new` from `old`: equal ends are found first, the rest is compared if short."""
    shorter = min(len(old), len(new))
    first = sum(1 for _ in takewhile(lambda i: old[i] == new[i], range(shorter)))
    last = sum(1 for _ in takewhile(lambda i: old[-1 - i] == new[-1 - i], range(shorter - first)))
    i, j = len(old) - last, len(new) - last
    if max(i, j) - first <= _MOST_COMPARED:
        inner = SequenceMatcher(None, old[first:i], new[first:j], autojunk=False).get_opcodes()
        middle: list[_Opcode] = [(kind, first + a, first + b, first + c, first + d) for kind, a, b, c, d in inner]
    else:
        middle = [("replace", first, i, first, j)]
    whole: list[_Opcode] = [("equal", 0, first, 0, first), *middle, ("equal", i, len(old), j, len(new))]
    return [operation for operation in whole if operation[1] < operation[2] or operation[3] < operation[4]]
