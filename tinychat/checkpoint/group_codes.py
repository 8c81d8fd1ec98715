"""Weights that a checkpoint holds as codes with scales: the form in which readers give them to conversion."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class GroupCodes(NamedTuple):
    """Rows of a weight [N, K]: ``f * scale * (code - zero) + h * offset``.

    Columns share scales and offsets in groups, and factors in spans of groups, whose sizes follow from the shapes. ``f
    * scale`` must have at most 22 significant bits, then sums of products are exact: any float16 or bfloat16 does, and
    one times a whole number of up to 11 bits. Where codes of eight bits count from 0 and go beyond 127, 128 scales are
    added to offsets: their form must hold that, and both factors be the same.
    """

    codes: NDArray[np.uint8]  # [N, K]: 0 to 15 or 0 to 255; of two bits 0 to 3, of one bit 0 and 2
    scales: Floats  # [N, K / group]
    offsets: Floats | None = None  # [N, K / group]; None: all 0
    factors: Floats | None = None  # [N, K / span, 2]: those of scales, f, and of offsets, h; None: all 1
    zero: int = 0  # the code of 0 where there are no offsets, as 8 or 128, of fewer than four bits 1; else 0

    def rows(self, order: NDArray[np.intp]) -> "GroupCodes":
        """Return some rows, in some order."""
        offsets = None if self.offsets is None else self.offsets[order]
        factors = None if self.factors is None else self.factors[order]
        return GroupCodes(self.codes[order], self.scales[order], offsets, factors, self.zero)

    def times(self, factor: np.float32) -> "GroupCodes":
        """Return the same of weights without factors, of scales of 1, times a number of 22 bits (`in_22_bits`)."""
        return self._replace(factors=np.full((len(self.codes), 1, 2), factor))


def in_22_bits(number: np.float32) -> np.float32:
    """Return a number with 22 significant bits, off by 2**-23 at most: sums of products with it are then exact."""
    bits = np.float32(number).view(np.uint32)
    found: np.float32 = ((bits + np.uint32(2)) & ~np.uint32(3)).view(np.float32)
    return found


def concatenate(parts: Sequence[GroupCodes]) -> GroupCodes:
    """Return rows of one form and one zero, one below the other."""

    def stacked(arrays: Sequence[Floats | None]) -> Floats | None:
        found = [array for array in arrays if array is not None]
        return np.concatenate(found) if found else None

    codes, scales, offsets, factors, zeros = zip(*parts)
    return GroupCodes(np.concatenate(codes), np.concatenate(scales), stacked(offsets), stacked(factors), zeros[0])
