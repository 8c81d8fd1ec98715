"""Weights that a checkpoint holds as codes with scales: the form in which readers give them to conversion."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
# Twice the values of a sign, two bits of exponent and one of fraction (Open Compute Project, 2023,
# https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf).
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


class GroupCodes(NamedTuple):
    """Rows of a weight [N, K]: ``f * scale * (code - zero) + h * offset``, or ``table[code]`` for ``code - zero``.

    Columns share scales and offsets in groups, and factors in spans of groups, whose sizes follow from the shapes. ``f
    * scale`` must have at most 22 significant bits, then sums of products are exact: any float16 or bfloat16 does, and
    one times a whole number of up to 11 bits. Where codes of eight bits count from 0 and go beyond 127, 128 scales are
    added to offsets: their form must hold that, and both factors be the same.
    """

    codes: NDArray[np.uint8]  # [N, K]: 0 to 15 or 0 to 255; of two bits 0 to 3, of one bit 0 and 2
    scales: Floats  # [N, K / group]
    offsets: Floats | None = None  # [N, K / group]; None: all 0
    factors: Floats | None = None  # [N, K / span, 2]: those of scales, f, and of offsets, h; None: all 1
    # The code of 0 where there are neither offsets nor a table: 8 or 128, of fewer than four bits 1; else 0.
    zero: int = 0
    table: NDArray[np.int8] | None = None  # [16], of all rows: of codes of four bits

    def rows(self, order: NDArray[np.intp]) -> "GroupCodes":
        """Return some rows, in some order."""
        offsets = None if self.offsets is None else self.offsets[order]
        factors = None if self.factors is None else self.factors[order]
        return self._replace(codes=self.codes[order], scales=self.scales[order], offsets=offsets, factors=factors)

    def times(self, factor: np.float32) -> "GroupCodes":
        """Return the same times a number that has at most 22 bits times any scale and its factor."""
        own = np.ones((len(self.codes), 1, 2), np.float32) if self.factors is None else self.factors
        return self._replace(factors=factor * own)


def looked_up(rows: GroupCodes) -> Floats:
    """Return the numbers of codes with a table and a factor for each row; the caller reports what is not finite."""
    assert rows.table is not None and rows.factors is not None
    with np.errstate(all="ignore"):
        scales = rows.scales * rows.factors[:, :, 0]
        spread = np.repeat(scales, rows.codes.shape[1] // scales.shape[1], axis=1)
        return rows.table[rows.codes].astype(np.float32) * spread


def nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return bytes four bits at a time, the lower ones first: of [..., n], [..., 2 n]."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], 2 * packed.shape[-1])


def powers_of_two(exponents: NDArray[np.uint8]) -> Floats:
    """Return 2 to the power of exponents less 127, as E8M0 has them; 0 for 0, infinity for 255."""
    return (exponents.astype(np.uint32) << 23).view(np.float32)


def in_22_bits(number: np.float32) -> np.float32:
    """Return a number with 22 significant bits, off by 2**-23 at most: sums of products with it are then exact."""
    found: np.float32 = _without_last_bits(np.array([number], np.float32), 2)[0]
    return found


def in_18_bits(numbers: Floats) -> Floats:
    """Return numbers with 18 significant bits, off by 2**-19 at most: times scales of four bits they have 22."""
    return _without_last_bits(numbers, 6)


def _without_last_bits(numbers: Floats, count: int) -> Floats:
    """Return numbers whose last bits are rounded off."""
    bits, unit = numbers.view(np.uint32), np.uint32(1 << count)
    return ((bits + unit // np.uint32(2)) & ~(unit - np.uint32(1))).view(np.float32)


def concatenate(parts: Sequence[GroupCodes]) -> GroupCodes:
    """Return rows of one form, one zero and one table, one below the other."""

    def stacked(arrays: Sequence[Floats | None]) -> Floats | None:
        found = [array for array in arrays if array is not None]
        return np.concatenate(found) if found else None

    codes, scales, offsets, factors, zeros, tables = zip(*parts)
    whole = np.concatenate(codes), np.concatenate(scales), stacked(offsets), stacked(factors)
    return GroupCodes(*whole, zeros[0], tables[0])
