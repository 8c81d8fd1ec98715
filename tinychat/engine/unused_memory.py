"""Memory that arrays keep and nobody needs, given back to the system."""

from __future__ import annotations

import mmap
from typing import Any

from numpy.typing import NDArray

from tinychat.machine import discard_pages


def give_back(array: NDArray[Any]) -> None:
    """Give the pages that lie wholly in a contiguous array back to the system; what the array held is lost.

    Pages that are written again are taken again.
    """
    size = mmap.PAGESIZE
    first = -(-array.ctypes.data // size) * size
    length = (array.ctypes.data + array.nbytes) // size * size - first
    if length > 0:
        discard_pages(first, length)
