"""How much one run of a chat template may cost."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from tinychat.errors import TextError

TIME_LIMIT = 1.0
"""Seconds; the templates of real models take milliseconds."""

# Some filters walk over a whole text, letter by letter, before they report anything.
_VALUE_LIMIT = 200_000
_VALUE_LIMIT_PER_INPUT = 4
_TOTAL_LIMIT = 64
_SEARCH_LIMIT = 64
_LIST_ITEM_COST = 32
_INTEGER_BITS = 4096


class Budget:
    """Bounds the time, the size of every value, and the sum of all sizes.

    The template's runner reports each loop step, call and new value here. Between two reports
    lies one operation on values within the limits, hence of bounded cost.

    Parameters
    ----------
    input_size : int
        Characters that the template is given; the limits grow with it.
    """

    def __init__(self, input_size: int = 0) -> None:
        self._value_limit = _VALUE_LIMIT + _VALUE_LIMIT_PER_INPUT * input_size
        self._total_left = _TOTAL_LIMIT * self._value_limit
        self._deadline = time.monotonic() + TIME_LIMIT

    def tick(self) -> None:
        """Report one step.

        Raises
        ------
        TextError
            The time is over.
        """
        if time.monotonic() > self._deadline:
            raise TextError(f"it runs longer than {TIME_LIMIT:g} s")

    def take(self, size: int) -> None:
        """Report a text of so many characters, before it is built where it may be large.

        Raises
        ------
        TextError
            This text, or all of them together, are too large, or the time is over.
        """
        self.tick()
        self._total_left -= size
        if size > self._value_limit or self._total_left < 0:
            raise TextError("it builds texts or lists that are too large")

    def search(self, text: str, *arguments: object) -> None:
        """Report that a text is searched for others, or stripped of their letters: some ways to do so are quadratic.

        Raises
        ------
        TextError
            It would take too many steps, or the time is over.
        """
        self.tick()
        if len(text) * sum(map(_length, arguments)) > _SEARCH_LIMIT * self._value_limit:
            raise TextError("it searches a long text for another long text")

    def measure(self, value: object) -> None:
        """Report a value just built, however nested.

        Raises
        ------
        TextError
            It is too large, or the time is over.
        """
        if isinstance(value, int) and value.bit_length() > _INTEGER_BITS:
            raise TextError("it computes with numbers that are too large")
        if not isinstance(value, list | tuple | dict):
            self.take(_length(value))
            return
        self._total_left -= _LIST_ITEM_COST * len(value)
        if self._total_left < 0 or self.weigh(value) > self._value_limit:
            raise TextError("it builds texts or lists that are too large")

    def weigh(self, value: object) -> int:
        """Count characters and items of nested data, shared parts as often as they appear.

        That is what printing or comparing the value costs: ``[a, a]`` repeated a hundred times is a
        small object and an endless text.
        """
        total = 0
        waiting = [value]
        while waiting:
            item = waiting.pop()
            children = _children(item)
            waiting += children
            total += 1 + _length(item)
            self.tick()
            if total > self._value_limit:
                break
        return total

    def counted(self, items: Iterable[object]) -> CountedList:
        """Gather items, lazily made ones too, in a list that reports every walk over it."""
        gathered = CountedList(self)
        for item in items:
            self.tick()
            gathered.append(item)
        return gathered


class CountedList(list[object]):
    """A list that reports each step of a walk over it."""

    def __init__(self, budget: Budget) -> None:
        super().__init__()
        self._budget = budget

    def __iter__(self) -> Iterator[object]:
        for item in super().__iter__():
            self._budget.tick()
            yield item


def _length(value: object) -> int:
    return len(value) if isinstance(value, str) else 0


def _children(value: object) -> list[object]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return [*value] if isinstance(value, list | tuple) else []
