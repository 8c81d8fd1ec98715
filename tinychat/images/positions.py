"""Vectors of the positions in a grid of any shape, from the learned ones of a square grid, for a vision tower.

A vector is the sum of those around its place in the square, weighted by their distances along both axes. The square is
resized to the grid as an image is with bilinear filters that widen where it shrinks (torch's ``interpolate`` with
``antialias``); or the corners of both are the same, and a vector is of the four around its place (``align_corners``).
Sums are made term after term, in float64: the same bits on any processor.

Other towers have learned vectors for columns and for rows, which are added.
"""

import numpy as np
from numpy.typing import NDArray

Wide = NDArray[np.float64]


def grid_positions(
    learned: NDArray[np.generic], grid: tuple[int, int], *, from_corners: bool = False
) -> NDArray[np.float32]:
    """Return the vectors [rows columns, D] of a grid; learned : [side side, D], both row by row."""
    weights = _between_corners if from_corners else _widened
    side, (rows, columns) = round(len(learned) ** 0.5), grid
    square = learned.astype(np.float64).reshape(side, side, -1)
    lines = _weighted(weights(side, rows), square)
    found = _weighted(weights(side, columns), lines.transpose(1, 0, 2))
    return found.transpose(1, 0, 2).reshape(rows * columns, -1).astype(np.float32)


def axis_positions(learned: NDArray[np.generic], grid: tuple[int, int]) -> NDArray[np.float32]:
    """Return the vectors [rows columns, D] of a grid; learned : of columns, and as many of rows, [2 side, D]."""
    by_column, by_row = np.split(np.asarray(learned, np.float32), 2)
    rows, columns = grid
    found: NDArray[np.float32] = by_column[None, :columns] + by_row[:rows, None]
    return found.reshape(rows * columns, -1)


def _weighted(weights: Wide, parts: Wide) -> Wide:
    """Return the sums of parts [side, n, D] times weights [side, count]: [count, n, D]."""
    found = np.zeros((weights.shape[1], *parts.shape[1:]))
    for weight, part in zip(weights, parts):
        near = weight > 0
        found[near] += weight[near, None, None] * part
    return found


def _between_corners(side: int, count: int) -> Wide:
    """Return how much of each of `side` old places is in each of `count` new ones: [side, count]."""
    # Places are rounded to float32, as transformers has them.
    centers = np.arange(count, dtype=np.float32) * np.float32(side - 1) / np.float32(max(count - 1, 1))
    found: Wide = np.maximum(1 - np.abs(np.arange(side)[:, None] - centers.astype(np.float64)), 0)
    return found


def _widened(side: int, count: int) -> Wide:
    """Return the same, of filters that widen where there are fewer new ones."""
    scale = side / count
    centers = (np.arange(count) + 0.5) * scale - 0.5
    weights = np.maximum(1 - np.abs(np.arange(side)[:, None] - centers) / max(scale, 1.0), 0)
    sums = np.add.accumulate(weights, axis=0)[-1]
    found: Wide = weights / sums
    return found
