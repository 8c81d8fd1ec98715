"""Where arrays are, and of which types: all that an entry point is told of them."""

from typing import Any

import numpy as np


def pointers_of(arrays) -> np.ndarray:
    """Return what `from_pointers` needs to find C-contiguous arrays: for each its address and shape, int64.

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


def sample_of(part) -> Any:
    """Return an array of the same type without elements, a number as it is, or a tuple of such.

    It keeps none of the memory alive.

    Raises
    ------
    TypeError
        An array is not C-contiguous: `pointers_of` does not tell its strides.
    """
    if isinstance(part, np.ndarray):
        if not part.flags.c_contiguous:
            raise TypeError(f"an array of {part.dtype} and shape {part.shape} is not C-contiguous")
        sample = np.empty((0,) * part.ndim, part.dtype)
        sample.flags.writeable = part.flags.writeable
        return sample
    if isinstance(part, tuple):
        parts = [sample_of(inner) for inner in part]
        return type(part)(*parts) if hasattr(part, "_fields") else tuple(parts)
    return part


def type_name(part) -> str:
    """Return the type of an array, a number or a tuple of such in words that tell it from any other type."""
    if isinstance(part, np.ndarray):
        return f"{part.dtype.str}[{part.ndim}]{'' if part.flags.writeable else ' const'}"
    kind = type(part)
    if isinstance(part, tuple):
        return f"{kind.__module__}.{kind.__qualname__}({', '.join(map(type_name, part))})"
    return kind.__name__
