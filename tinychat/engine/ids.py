"""Token ids of two texts: how far they agree."""

from collections.abc import Sequence


def common_length(ids: Sequence[int], others: Sequence[int]) -> int:
    """Return how many leading ids are the same."""
    return next((i for i, (a, b) in enumerate(zip(ids, others)) if a != b), min(len(ids), len(others)))
