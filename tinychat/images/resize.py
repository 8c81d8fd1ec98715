"""Resize pixels to the same bits as Pillow, whose pixels models were trained with (libImaging/Resample.c).

Each column of the result is a weighted sum of the columns around its centre, then each row likewise of rows. Weights
are whole numbers of 22 bits and a product with a pixel has 30, so that float64 sums them exactly in any order: a
matrix product, whose blocks are small because weights are zero far from the centre.

Columns always come first, as in torchvision. Pillow 13 begins with the rows where they shrink much more; its older
versions do not. The result between them is rounded, so that the order counts.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tinychat.models.portable_math import cos_sin

Floats = npt.NDArray[np.float64]
Pixels = npt.NDArray[np.uint8]

_WEIGHT_BITS = 22
# Rows of the result in a matrix product: with more, most weights are zeros, with fewer, rows are read more often.
_BLOCK_ROWS = 16
# Of the pixels that a product reads, as float64.
_BLOCK_PIXELS = 1 << 18


def resize(pixels: Pixels, height: int, width: int, resample: str) -> Pixels:
    """Return pixels [height, width, channels] of another size; `resample` is one of `FILTERS`."""
    old_height, old_width, channels = pixels.shape
    if old_width != width:
        columns = np.ascontiguousarray(pixels.swapaxes(0, 1)).reshape(old_width, -1)
        columns = _resized_rows(columns, width, resample)
        pixels = columns.reshape(width, old_height, channels).swapaxes(0, 1)
    if old_height != height:
        rows = _resized_rows(np.ascontiguousarray(pixels).reshape(old_height, -1), height, resample)
        pixels = rows.reshape(height, width, channels)
    return np.ascontiguousarray(pixels)


def _resized_rows(rows: Pixels, count: int, resample: str) -> Pixels:
    """Return `count` rows for those of a matrix of pixels."""
    old_count, columns = rows.shape
    found = np.empty((count, columns), np.uint8)
    for begin in range(0, count, _BLOCK_ROWS):
        block = slice(begin, min(begin + _BLOCK_ROWS, count))
        first, weights = _weights(np.arange(block.start, block.stop), old_count, count, resample)
        last = first + weights.shape[1]
        step = max(1, _BLOCK_PIXELS // weights.shape[1])
        for column in range(0, columns, step):
            part = slice(column, column + step)
            sums = weights @ rows[first:last, part].astype(np.float64)
            sums += 0.5
            # Positive numbers are truncated, which rounds the sums to the nearest.
            found[block, part] = np.clip(sums, 0, 255, out=sums)
    return found


def _weights(indices: npt.NDArray[np.int64], old_count: int, count: int, resample: str) -> tuple[int, Floats]:
    """Return the first of the old rows that these new ones are made of, and the weights [new, old] of it and more."""
    support, filter_of = FILTERS[resample]
    scale = old_count / count
    stretch = max(scale, 1.0)
    centers = (indices + 0.5) * scale
    begins = np.maximum((centers - support * stretch + 0.5).astype(np.int64), 0)
    ends = np.minimum((centers + support * stretch + 0.5).astype(np.int64), old_count)
    first = int(begins[0])
    old = np.arange(first, int(ends[-1]))
    is_near = (begins[:, None] <= old) & (old < ends[:, None])
    weights = np.zeros(is_near.shape)
    weights[is_near] = filter_of(((old - centers[:, None] + 0.5) * (1 / stretch))[is_near])
    # From the first to the last, as Pillow adds them.
    weights /= np.add.accumulate(weights, axis=1)[:, -1:]
    whole: Floats = np.trunc(weights * (1 << _WEIGHT_BITS) + np.copysign(0.5, weights))
    return first, whole / (1 << _WEIGHT_BITS)


def _triangle(x: Floats) -> Floats:
    found: Floats = np.maximum(1 - np.abs(x), 0)
    return found


def _cubic(x: Floats) -> Floats:
    x = np.abs(x)
    near = (1.5 * x - 2.5) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * -0.5
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _lanczos(x: Floats) -> Floats:
    return np.where((-3 <= x) & (x < 3), _sinc(x) * _sinc(x / 3), 0.0)


def _sinc(x: Floats) -> Floats:
    angles = np.where(x == 0, 1.0, x * math.pi)
    return np.where(x == 0, 1.0, cos_sin(angles)[1] / angles)


# Of each, the distance from which on it is zero, in old rows or, where they are more, in new ones.
FILTERS: dict[str, tuple[float, Callable[[Floats], Floats]]] = {
    "bilinear": (1.0, _triangle),
    "bicubic": (2.0, _cubic),
    "lanczos": (3.0, _lanczos),
}
