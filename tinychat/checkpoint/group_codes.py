"""Weights that a checkpoint holds as codes with scales: what a reader gives so that conversion keeps them exactly.

A reader says so by being a `checkpoint.tensors.CodedFile`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class GroupCodes(NamedTuple):
    """Rows of a weight [N, K]: ``f * scale * (code - zero) + h * offset``.

    Columns share scales and offsets in groups, and factors in spans of groups; how many share them follows from the
    shapes. ``f * scale`` must have at most 22 significant bits, then sums of products are exact: any float16 or
    bfloat16 does, and one times a whole number of up to 11 bits.

    Attributes
    ----------
    codes : uint8 [N, K]
        0 to 15 or 0 to 255. Where those of eight bits count from 0 and go beyond 127, 128 scales are added to offsets:
        their form must hold that, and both factors be the same.
    scales : float32 [N, K / group]
    offsets : float32 [N, K / group], or None
        None: all 0.
    factors : float32 [N, K / span, 2], or None
        Those of scales, f, and those of offsets, h. None: all 1.
    zero : int
        The code that stands for 0 where there are no offsets, as 8 or 128; else 0.

    Examples
    --------
    GPTQ and AWQ, asymmetric (scale s and whole zero z of a group): scales 1, offsets -z, factors (s, s), with the form
    ``Form(4, "I8", group, span=group, offsets=True)``; symmetric: scales s, zero 8, ``Form(4, "F16", group)``. mlx
    (scale s and bias b): scales s, offsets b, ``Form(4, "F16", group, offsets=True)``; "F32" where float16 does not
    hold them, as bfloat16.
    """

    codes: NDArray[np.uint8]
    scales: Floats
    offsets: Floats | None = None
    factors: Floats | None = None
    zero: int = 0

    def values(self) -> Floats:
        """Return what the codes stand for, float32 [N, K], as formats compute it: offsets are added last."""
        N, K = self.codes.shape
        scales, offsets = self.effective()
        codes = self.codes.astype(np.float32) - np.float32(self.zero)
        numbers = codes.reshape(N, scales.shape[1], -1) * scales[:, :, None]
        if offsets is not None:
            numbers += offsets[:, :, None]
        return numbers.reshape(N, K)

    def rows(self, order: NDArray[np.intp]) -> "GroupCodes":
        """Return some rows, in some order."""
        offsets = None if self.offsets is None else self.offsets[order]
        factors = None if self.factors is None else self.factors[order]
        return GroupCodes(self.codes[order], self.scales[order], offsets, factors, self.zero)

    def effective(self) -> tuple[Floats, Floats | None]:
        """Return scales and offsets with their factors in them."""
        if self.factors is None:
            return self.scales, self.offsets
        times = self.scales.shape[1] // self.factors.shape[1]
        factors = np.repeat(self.factors, times, axis=1)
        return self.scales * factors[:, :, 0], None if self.offsets is None else self.offsets * factors[:, :, 1]


def joined_rows(parts: Sequence[GroupCodes]) -> GroupCodes:
    """Return rows of one form and one zero, one below the other."""

    def joined(arrays: Sequence[Floats | None]) -> Floats | None:
        found = [array for array in arrays if array is not None]
        return np.concatenate(found) if found else None

    codes, scales, offsets, factors, zeros = zip(*parts)
    return GroupCodes(np.concatenate(codes), np.concatenate(scales), joined(offsets), joined(factors), zeros[0])
