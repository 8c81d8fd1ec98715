"""Addresses and types of arrays, of which compiled code makes them again (`memory.from_pointers`)."""

from typing import Any

import numpy as np


def pointers_of(arrays) -> np.ndarray:
    """Return the addresses and shapes of C-contiguous arrays, and the bits of numbers, int64.

    arrays : a tuple of arrays, of numbers, or of such tuples.
    """
    return np.array(_flat(arrays), np.int64)


def _flat(part) -> list[int]:
    if isinstance(part, np.ndarray):
        return [part.ctypes.data, *part.shape]
    if isinstance(part, tuple):
        return [number for inner in part for number in _flat(inner)]
    if isinstance(part, float | np.floating):
        return [int(np.float64(part).view(np.int64))]
    return [int(part)]


def sample_of(part) -> Any:
    """Return arguments of the same types, without the memory: arrays have no elements, numbers stay.

    `TypeError` if an array is not C-contiguous: `pointers_of` leaves out its strides.
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
    """Return the name of the type of an array, a number or a tuple of such; no two types share one."""
    if isinstance(part, np.ndarray):
        return f"{part.dtype.str}[{part.ndim}]{'' if part.flags.writeable else ' const'}"
    kind = type(part)
    if isinstance(part, tuple):
        return f"{kind.__module__}.{kind.__qualname__}({', '.join(map(type_name, part))})"
    return kind.__name__
