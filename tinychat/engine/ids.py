"""Token ids: as plain integers, and how far those of two texts agree."""

from collections.abc import Iterable, Sequence
from operator import index
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
    return next((i for i, (a, b) in enumerate(zip(ids, others)) if a != b), min(len(ids), len(others)))
