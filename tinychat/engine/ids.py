"""Token ids: as plain integers, and how far those of two texts agree."""

from collections.abc import Iterable, Sequence
from itertools import compress, count
from operator import index, ne
from typing import SupportsIndex

from tinychat.errors import SettingError


def exact_ids(ids: Iterable[SupportsIndex]) -> list[int]:
    """Return a plain list of plain integers; SettingError if one is none.

    Subclasses of these may tell another length, order or value than compiled code would find.
    """
    try:
        return list(map(index, ids))
    except TypeError:
        raise SettingError("token ids must be integers: give a list of what `encode` returns") from None


def common_length(ids: Sequence[int], others: Sequence[int]) -> int:
    """Return how many leading ids are the same."""
    # Without a step of the interpreter for each id.
    return next(compress(count(), map(ne, ids, others)), min(len(ids), len(others)))
