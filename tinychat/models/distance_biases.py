"""Biases of attention's scores by the distance of a key, its position less the query's.

They are learned for buckets of distances: near ones have one each, farther ones share those of steps that grow, and all
beyond `REACH` the last; those of earlier keys are others than those of later ones (T5: Raffel et al., 2020,
https://arxiv.org/abs/1910.10683; MPNet: Song et al., 2020, https://arxiv.org/abs/2004.09297).
"""

import numpy as np
from numpy.typing import NDArray

BUCKETS, REACH = 32, 128
_SIDE, _SINGLE = BUCKETS // 2, BUCKETS // 4
DISTANCE_BIASES = "distance_biases"
"""Of the vectors in a model folder: for each bucket the numbers of all heads."""


def bucket_of(distance: int) -> int:
    """Return the bucket of a distance."""
    size = abs(distance)
    if size >= _SINGLE:
        # Two buckets for each power of two: they begin at _SINGLE times powers of the square root of 2.
        size = min(_SIDE - 1, _SINGLE - 1 + (size * size // (_SINGLE * _SINGLE)).bit_length())
    return size + _SIDE * (distance > 0)


def by_distance(biases: NDArray[np.float32], reach: int) -> NDArray[np.float32]:
    """Return the biases [..., BUCKETS H] of distances from 1 - `reach` to `reach`: float32 [..., H, 2 reach]."""
    buckets = [bucket_of(distance) for distance in range(1 - reach, reach + 1)]
    by_head = biases.reshape(*biases.shape[:-1], BUCKETS, -1)[..., buckets, :]
    return np.ascontiguousarray(np.swapaxes(by_head, -1, -2), np.float32)
