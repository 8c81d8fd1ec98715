"""Where arrays are, and of which types: all that compiled code is told of them."""

import numpy as np


def places_of(arrays) -> np.ndarray:
    """Return what `arrays_at` needs to find C-contiguous arrays: for each its address and shape, int64.

    arrays : a tuple of arrays, of numbers, which are noted themselves, or of such tuples.
    """
    return np.array(place_of(arrays), np.int64)


def place_of(part) -> list[int]:
    """Return the address and the shape of an array, or of all arrays of a tuple; of a number its bits."""
    if isinstance(part, np.ndarray):
        return [part.ctypes.data, *part.shape]
    if isinstance(part, tuple):
        return [number for inner in part for number in place_of(inner)]
    if isinstance(part, float | np.floating):
        return [int(np.float64(part).view(np.int64))]
    return [int(part)]
